"""The group of learner processes that train one policy, and the collectives between them.

All processes have the same weights. Each differentiates its own batch; after the last micro-batch the gradients are averaged as
one flat buffer, and all processes take the same step. docs/explanation/decisions.md says why this is not torch's
DistributedDataParallel.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import psutil
import torch
from torch import Tensor, nn

from learner.devices.capabilities import capabilities, make_current
from learner.parallel.peers import PeerWatch
from transport.text import say

if TYPE_CHECKING:
    import torch.distributed as distributed

STORE_VARIABLE = "HEADRACE_RANKS_FILE"  # path of the file through which the processes find each other
SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS = 1e-4, 1e-2
TIMEOUT = timedelta(minutes=5)  # of collectives that all processes reach at about the same time
PATIENCE = timedelta(days=365)  # of waiting until every process has a batch, which may be never

Moments = tuple[int | Tensor, Tensor, Tensor]  # count, variance, mean


class Life(Protocol):
    """The part of a process's Lifetime that a group uses."""

    @property
    def stopping(self) -> bool:
        """True once the process has been asked to stop."""

    def beat(self) -> None:
        """Sends a heartbeat."""


class GroupBroken(RuntimeError):
    """Another process of the group has ended, so this one cannot continue."""


def process_name(rank: int) -> str:
    """The process name of a rank; rank 0 is `learner` to all other processes."""
    return f"learner-{rank}" if rank else "learner"


class Group:
    """A learner of a single process: every collective returns its argument unchanged, bit for bit."""

    rank, size = 0, 1

    def any(self, flag: bool) -> bool:
        """True if the flag is set in any process. Waits for all processes, and sends heartbeats meanwhile."""
        return flag

    def average(self, parameters: Sequence[nn.Parameter], items: int) -> None:
        """Replaces each gradient, a mean over the `items` of this process, by the mean over the items of all processes."""

    def greatest(self, value: Tensor) -> Tensor:
        """The maximum over all processes: 0-d, on the device."""
        return value

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes: 0-d, on the device."""
        return value

    def least(self, number: int) -> int:
        """The minimum over all processes."""
        return number

    def total(self, number: int) -> int:
        """The sum over all processes."""
        return number

    def var_mean(self, values: Tensor, weight: Tensor | None = None) -> Moments:
        """Count, population variance […] and mean […] of the values [N, …] of all processes, each weighted by `weight` [N]."""
        if not len(values):
            return 0, values.sum(0), values.sum(0)
        if weight is None:
            return (len(values), *torch.var_mean(values, 0, correction=0))
        share = _beside(weight / weight.sum(), values)
        mean = (share * values).sum(0)
        return len(values), (share * (values - mean).square()).sum(0), mean

    def std_mean(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Population standard deviation and mean, 0-d, of the values [N] of all processes."""
        return torch.std_mean(values, correction=0)

    def equalise(self, tensors: Iterable[Tensor]) -> None:
        """Copies the tensors of rank 0 into those of all other processes."""

    def say(self, line: str) -> None:
        """Logs a line that is the same in all processes, once."""
        say(line)

    def warn(self, line: str) -> None:
        """Logs a line about this process alone, with its name where there are several."""
        say(line)

    def close(self) -> None:
        """Leaves the group: no collective comes after it, and the other processes may end."""


ALONE = Group()


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
        share = one if weight is None else _beside(weight.double(), wide) * one
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

    def say(self, line: str) -> None:
        if self.rank == 0:
            say(line)

    def warn(self, line: str) -> None:
        say(f"{process_name(self.rank)}: {line}" if self.rank else line)

    def close(self) -> None:
        self._watch.close()
        with suppress(RuntimeError):  # the other processes may have ended already
            self._distributed.destroy_process_group()


def _beside(weight: Tensor, values: Tensor) -> Tensor:
    """Weights [N] in a shape that multiplies values [N, …]."""
    return weight.reshape(-1, *[1] * (values.dim() - 1))


def rank_and_size() -> tuple[int, int]:
    """(rank, size) of this process; (0, 1) where it is the only one."""
    if STORE_VARIABLE not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


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
