"""Which cases `headrace bench learner` has on a device, and in which order: the most telling first, should time run out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import structs

from benchmarks.learner.workloads import WORKLOADS, Setting

BATCHES = {
    "cpu": "nature:64,512 mlp:256 ppo-nature:64 ppo-mlp:256",
    "other": "nature:512,4x512 mlp:256 ppo-nature:2048 ppo-mlp:4096",
}
# Batches of the workloads whose variants are measured, all of them at the first.
SWEPT: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {"nature": (64,)},
    "other": {"nature": (512, 256, 1024, 2048, 4096), "mlp": (256, 4096)},
}


class About(NamedTuple):
    """The abilities of a device, as far as cases depend on it. `name`: None of the CPU."""

    device: str
    name: str | None
    precisions: list[str]
    compiles: bool
    graphs: bool

    @property
    def kind(self) -> str:
        """The device's or, for all but the CPU, "other"."""
        return "cpu" if self.device == "cpu" else "other"


def batches(text: str) -> dict[str, list[tuple[int, int]]]:
    """An option's value, as nature:64,4x512: sizes and numbers of micro-batches by workload. Raises ValueError."""
    found: dict[str, list[tuple[int, int]]] = {}
    for word in text.split():
        name, _, sizes = word.partition(":")
        if name not in WORKLOADS:
            raise ValueError(f"no workload {name!r}: choose from {', '.join(WORKLOADS)}")
        for size in sizes.split(","):
            read = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)", size)
            if read is None:
                raise ValueError(f"{word}: a batch is written 512, or 4x512 for four of 512 accumulated")
            parts = int(read[1] or 1)
            if parts > 1 and WORKLOADS[name].rollouts:
                raise ValueError(f"{word}: rollouts are learned from in minibatches, not accumulated")
            found.setdefault(name, []).append((parts * int(read[2]), parts))
    return found


def compared(about: About, chosen: dict[str, list[tuple[int, int]]], threads: int, cores: int) -> list[Setting]:
    """Settings of the learner and the bare loop, in turn. `threads` 0: all cores for images, one for vectors and on a GPU."""
    found = []
    for name, sizes in chosen.items():
        many = cores if WORKLOADS[name].images and about.kind == "cpu" else 1
        found += [Setting(name, size, parts, device=about.device, threads=threads or many) for size, parts in sizes]
    return found


def variants(about: About, precisions: list[str], first: Setting) -> Iterator[Setting]:
    """Variants of `first`: each precision, compiled, with graphs and both, at the first batch; then other batches."""
    batch, *others = SWEPT[about.kind].get(first.workload, (first.batch,))
    plain = structs.replace(first, batch=batch, accumulation=1)
    for precision in precisions:
        yield structs.replace(plain, precision=precision)
    ways: list[dict[str, bool]] = [{"graphs": True}] if about.graphs else []
    ways += [{"compile": True}] if about.compiles else []
    ways += [{"compile": True, "graphs": True}] if about.graphs and about.compiles else []
    for way in ways:
        yield structs.replace(plain, precision=precisions[0], **way)
    for size in others:
        yield structs.replace(plain, batch=size)
    for precision in precisions[1:] if about.kind == "other" else []:
        for way in ways:
            if not (precision == "float16" and way.get("graphs")):  # the host keeps float16's loss scale: never recorded
                yield structs.replace(plain, precision=precision, **way)
