"""A group of several learner processes: the collectives by torch.distributed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil
import torch
from torch import Tensor, nn

from learner.devices.capabilities import capabilities, make_current
from learner.parallel.base import STORE_VARIABLE, Group, GroupBroken, Life, Moments, beside, process_name, rank_and_size
from learner.parallel.peers import PeerWatch
from transport.text import say

if TYPE_CHECKING:
    import torch.distributed as distributed

SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS = 1e-4, 1e-2
TIMEOUT = timedelta(minutes=5)  # of collectives that all processes reach at about the same time
PATIENCE = timedelta(days=365)  # of waiting until every process has a batch, which may be never


class Ranks(Group):
    """One of several processes, started by learner/parallel/ranks.py. All must make the same calls in the same order.

    Only any() may wait for long: a process may have no batch yet when it is called. After it all processes compute. Every method
    raises GroupBroken when another process has ended, if the backend notices; PeerWatch ends this process if it does not.
    """

    def __init__(self, rank: int, size: int, store: str, device: torch.device, life: Life) -> None:
        """Waits for all processes and sends heartbeats meanwhile. `store` is the path of a file that all can open. Raises
        GroupBroken if this process is asked to stop before."""
        import torch.distributed as distributed  # not at the top: a single process needs no such import

        self.rank, self.size, self._life, self._distributed = rank, size, life, distributed
        _stay_on_this_host()
        file_store = distributed.FileStore(store, size)
        file_store.set(f"here/{rank}", str(os.getpid()))
        while not file_store.check(
            [f"here/{other}" for other in range(size)]
        ):  # init_process_group would wait without heartbeats
            life.beat()
            if life.stopping:
                raise GroupBroken("asked to stop before all processes had started")
            time.sleep(LONGEST_POLL_SECONDS)
        self._watch = PeerWatch(int(file_store.get(f"here/{other}")) for other in range(size) if other != rank)
        backend = capabilities(device).collectives
        make_current(device)
        with self._detecting_loss():
            backends = "gloo" if backend == "gloo" else f"cpu:gloo,{device.type}:{backend}"
            distributed.init_process_group(backends, store=file_store, rank=rank, world_size=size, timeout=TIMEOUT)
            self._patient = distributed.new_group(backend="gloo", timeout=PATIENCE)
        self.any(False)  # all are connected: if one ended earlier, by a wrong setting, gloo would print an error in another

    @contextmanager
    def _detecting_loss(self) -> Iterator[None]:
        """torch raises RuntimeError when another process has ended."""
        try:
            yield
        except RuntimeError as error:
            raise GroupBroken(str(error).strip().partition("\n")[0]) from error

    def _reduce(self, value: Tensor, how: distributed.ReduceOp.RedOpType) -> Tensor:
        """In place."""
        with self._detecting_loss():
            self._distributed.all_reduce(value, how)
        return value

    def any(self, flag: bool) -> bool:
        answer, pause = torch.tensor(int(flag)), SHORTEST_POLL_SECONDS
        with self._detecting_loss():
            work = self._distributed.all_reduce(answer, self._distributed.ReduceOp.MAX, group=self._patient, async_op=True)
            assert work is not None
            while not work.is_completed():
                self._life.beat()
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_POLL_SECONDS)
            work.wait()
        return bool(answer)

    def average(self, parameters: Sequence[nn.Parameter], items: int) -> None:
        """One message for all parameters. Its last entry is the number of items, which may differ between processes."""
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), gradients[0].new_ones(1)])
        self._reduce(flat.mul_(items), self._distributed.ReduceOp.SUM)
        means = flat.div_(flat[-1:].clone()).split([gradient.numel() for gradient in gradients] + [1])
        for parameter, gradient, mean in zip(parameters, gradients, means, strict=False):
            parameter.grad = gradient.copy_(mean.view(gradient.shape))

    def greatest(self, value: Tensor) -> Tensor:
        return self._reduce(value.detach().clone(), self._distributed.ReduceOp.MAX)

    def mean(self, value: Tensor) -> Tensor:
        return self._reduce(value.detach().clone(), self._distributed.ReduceOp.SUM) / self.size

    def least(self, number: int) -> int:
        return int(self._reduce(torch.tensor(number), self._distributed.ReduceOp.MIN))

    def total(self, number: int) -> int:
        return int(self._reduce(torch.tensor(number), self._distributed.ReduceOp.SUM))

    def var_mean(self, values: Tensor, weight: Tensor | None = None) -> Moments:
        """By sums of squares, in float64 for precision."""
        wide = values.double()
        one = torch.ones_like(wide)
        share = one if weight is None else beside(weight.double(), wide) * one
        sums = torch.stack([one, share, share * wide, share * wide.square()]).sum(1)  # [4, …]
        count, total, mean, square = self._reduce(sums, self._distributed.ReduceOp.SUM)
        mean, square = mean / total, square / total
        variance = (square - mean.square()).clamp(min=0)
        return count.flatten()[0].float(), variance.to(values.dtype), mean.to(values.dtype)

    def std_mean(self, values: Tensor) -> tuple[Tensor, Tensor]:
        _, variance, mean = self.var_mean(values)
        return variance.sqrt(), mean

    def equalise(self, tensors: Iterable[Tensor]) -> None:
        """One message per dtype."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for same in kinds.values():
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
            with self._detecting_loss():
                self._distributed.broadcast(flat, 0)
            for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.data.copy_(part.view(tensor.shape))

    def draw_apart(self) -> None:
        if self.rank:
            torch.manual_seed(int(torch.randint(2**62, ())) + self.rank)

    def say(self, line: str) -> None:
        if self.rank == 0:
            say(line)

    def warn(self, line: str) -> None:
        say(f"{process_name(self.rank)}: {line}" if self.rank else line)

    def close(self) -> None:
        self._watch.close()
        with suppress(RuntimeError):  # the other processes may have ended already
            self._distributed.destroy_process_group()


def join(device: torch.device, life: Life) -> Group:
    """Joins the group that this process was started in; a single process is a group of its own."""
    rank, size = rank_and_size()
    return Ranks(rank, size, os.environ[STORE_VARIABLE], device, life) if size > 1 else Group()


def _stay_on_this_host() -> None:
    """Makes gloo and NCCL use only the loopback interface, unless the user has set another."""
    for interface, addresses in psutil.net_if_addrs().items():
        if any(address.family == socket.AF_INET and address.address == "127.0.0.1" for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
            return
