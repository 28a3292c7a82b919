"""Several processes that learn one policy: what each has to know of the others between its batch and its step.

All have the same weights. Each differentiates a batch of its own; the gradients are averaged as one flat buffer, after the last
micro-batch, and all take the same step. torch's DistributedDataParallel is not used: ARCHITECTURE.md says why.
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

from learner.devices.capabilities import capabilities
from transport.lifetime import say

if TYPE_CHECKING:
    import torch.distributed as distributed

STORE_VARIABLE = "HEADRACE_RANKS_FILE"  # through it the processes of a learner find each other
SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS = 1e-4, 1e-2
TIMEOUT = timedelta(minutes=5)  # of what all do at the same time
PATIENCE = timedelta(days=365)  # of what waits for the slowest to have a batch, which may be never

Observed = tuple[int | Tensor, Tensor, Tensor]  # how many, their variance, their mean


class Life(Protocol):
    """What is asked of a process's Lifetime here."""

    @property
    def stopping(self) -> bool:
        """Whether it is to end."""

    def beat(self) -> None:
        """Says that it is not stuck."""


class GroupBroken(RuntimeError):
    """Another process of the group is gone, so that this one cannot go on."""


def process_name(rank: int) -> str:
    """What the process of a rank is called; rank 0 is the learner to all others."""
    return f"learner-{rank}" if rank else "learner"


class Group:
    """A learner of a single process: there is nobody to ask, and everything stays to the bit as it is."""

    rank, size = 0, 1

    def any(self, flag: bool) -> bool:
        """Whether any process says so. Returns when all have been asked, beating all the while."""
        return flag

    def average(self, parameters: Sequence[nn.Parameter], items: int) -> None:
        """Makes each gradient the mean over the items of all processes; here it is that of `items`."""

    def greatest(self, value: Tensor) -> Tensor:
        """The greatest of all processes' values, 0-d, on the device."""
        return value

    def mean(self, value: Tensor) -> Tensor:
        """The mean of all processes' values, 0-d, on the device."""
        return value

    def least(self, number: int) -> int:
        """The least of all processes' numbers."""
        return number

    def total(self, number: int) -> int:
        """The sum of all processes' numbers."""
        return number

    def var_mean(self, values: Tensor) -> Observed:
        """Of the values [N, …] of all processes: how many, variance […] around the mean, mean […]."""
        if not len(values):
            return 0, values.sum(0), values.sum(0)
        return (len(values), *torch.var_mean(values, 0, correction=0))

    def std_mean(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Of the values [N] of all processes: their deviation and mean, 0-d."""
        return torch.std_mean(values, correction=0)

    def equalise(self, tensors: Iterable[Tensor]) -> None:
        """Gives all processes what rank 0 has in these tensors."""

    def say(self, line: str) -> None:
        """Says what all processes would say: once."""
        say(line)

    def warn(self, line: str) -> None:
        """Says what concerns this process alone, with its name where there are several."""
        say(line)

    def close(self) -> None:
        """Leaves the others."""


ALONE = Group()


class Ranks(Group):
    """One of several processes, started by learner/parallel/ranks.py. All must make the same calls in the same order.

    Only `any` may be waited in for long, since before it some may not have a batch yet; after it all are at work. Every method
    raises GroupBroken when another process is gone.
    """

    def __init__(self, rank: int, size: int, store: str, device: torch.device, life: Life) -> None:
        """Waits, beating, until all are here; `store` is the path of a file that all can reach. Raises GroupBroken when
        it is to stop before."""
        import torch.distributed as distributed  # here: a process on its own shall not pay for it

        self.rank, self.size, self._life, self._distributed = rank, size, life, distributed
        _stay_on_this_host()
        found = distributed.FileStore(store, size)
        found.set(f"here/{rank}", "yes")
        while not found.check([f"here/{other}" for other in range(size)]):  # connecting would wait without beating
            life.beat()
            if life.stopping:
                raise GroupBroken("asked to stop before all were here")
            time.sleep(LONGEST_POLL_SECONDS)
        backend = capabilities(device).collectives
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with self._others():
            both = "gloo" if backend == "gloo" else f"cpu:gloo,{device.type}:{backend}"
            distributed.init_process_group(both, store=found, rank=rank, world_size=size, timeout=TIMEOUT)
            self._patient = distributed.new_group(backend="gloo", timeout=PATIENCE)

    @contextmanager
    def _others(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise GroupBroken(str(error).strip().partition("\n")[0]) from error

    def _reduce(self, value: Tensor, how: distributed.ReduceOp.RedOpType) -> Tensor:
        """In place."""
        with self._others():
            self._distributed.all_reduce(value, how)
        return value

    def any(self, flag: bool) -> bool:
        """See Group."""
        answer, pause = torch.tensor(int(flag)), SHORTEST_POLL_SECONDS
        with self._others():
            work = self._distributed.all_reduce(answer, self._distributed.ReduceOp.MAX, group=self._patient, async_op=True)
            assert work is not None
            while not work.is_completed():
                self._life.beat()
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_POLL_SECONDS)
            work.wait()
        return bool(answer)

    def average(self, parameters: Sequence[nn.Parameter], items: int) -> None:
        """See Group: one message for all parameters; its last entry counts items, since rollouts may differ in them."""
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), gradients[0].new_ones(1)])
        self._reduce(flat.mul_(items), self._distributed.ReduceOp.SUM)
        means = flat.div_(flat[-1:].clone()).split([gradient.numel() for gradient in gradients] + [1])
        for parameter, gradient, mean in zip(parameters, gradients, means, strict=False):
            parameter.grad = gradient.copy_(mean.view(gradient.shape))

    def greatest(self, value: Tensor) -> Tensor:
        """See Group."""
        return self._reduce(value.detach().clone(), self._distributed.ReduceOp.MAX)

    def mean(self, value: Tensor) -> Tensor:
        """See Group."""
        return self._reduce(value.detach().clone(), self._distributed.ReduceOp.SUM) / self.size

    def least(self, number: int) -> int:
        """See Group."""
        return int(self._reduce(torch.tensor(number), self._distributed.ReduceOp.MIN))

    def total(self, number: int) -> int:
        """See Group."""
        return int(self._reduce(torch.tensor(number), self._distributed.ReduceOp.SUM))

    def var_mean(self, values: Tensor) -> Observed:
        """See Group: by sums of squares, which takes float64."""
        wide = values.double()
        sums = torch.stack([torch.ones_like(wide), wide, wide.square()]).sum(1)  # [3, …]
        count, mean, square = self._reduce(sums, self._distributed.ReduceOp.SUM)
        mean, square = mean / count, square / count
        variance = (square - mean.square()).clamp(min=0)
        return count.flatten()[0].float(), variance.to(values.dtype), mean.to(values.dtype)

    def std_mean(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """See Group."""
        _, variance, mean = self.var_mean(values)
        return variance.sqrt(), mean

    def equalise(self, tensors: Iterable[Tensor]) -> None:
        """See Group: one message for each type."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for same in kinds.values():
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
            with self._others():
                self._distributed.broadcast(flat, 0)
            for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.data.copy_(part.view(tensor.shape))

    def say(self, line: str) -> None:
        """See Group: rank 0 does."""
        if self.rank == 0:
            say(line)

    def warn(self, line: str) -> None:
        """See Group."""
        say(f"{process_name(self.rank)}: {line}" if self.rank else line)

    def close(self) -> None:
        """See Group. The others may be gone already."""
        with suppress(RuntimeError):
            self._distributed.destroy_process_group()


def place() -> tuple[int, int]:
    """(rank, size) of this process; (0, 1) where it is no member of a group."""
    if STORE_VARIABLE not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def join(device: torch.device, life: Life) -> Group:
    """The group that this process was started in; one of its own if it was started alone."""
    rank, size = place()
    return Ranks(rank, size, os.environ[STORE_VARIABLE], device, life) if size > 1 else Group()


def _stay_on_this_host() -> None:
    """Makes gloo and NCCL listen on the loopback interface alone, unless the user has named another."""
    for interface, addresses in psutil.net_if_addrs().items():
        if any(address.family == socket.AF_INET and address.address == "127.0.0.1" for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
            return
