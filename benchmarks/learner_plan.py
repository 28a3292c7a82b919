"""Which cases `headrace bench learner` has on a device, and in which order: the most telling first, should time run out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.workloads import WORKLOADS, Setting, has_graphs

BATCHES = {
    "cpu": "nature:64,512 mlp:256 ppo-nature:64 ppo-mlp:256",
    "other": "nature:512,4x512 mlp:256 ppo-nature:2048 ppo-mlp:4096",
}
SWEPT = {"cpu": (64,), "other": (512, 256, 1024, 2048, 4096)}  # batches of the Nature network; all variants at the first


class About(NamedTuple):
    """What a device can do, as far as cases depend on it. `name`: None of the CPU."""

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
    """What the learner and the bare loop do in turn. `threads` 0: all cores for images, one for vectors; no more on a GPU."""
    found = []
    for name, sizes in chosen.items():
        many = cores if WORKLOADS[name].images and about.kind == "cpu" else 1
        found += [Setting(name, size, parts, device=about.device, threads=threads or many) for size, parts in sizes]
    return found


def variants(about: About, precisions: list[str], first: Setting) -> Iterator[Setting]:
    """Precisions, compiled or not, with graphs and without, at the first batch; then other batches as the learner is by itself.

    first: the Nature network's setting that the rest differs from.
    """
    batch, *others = SWEPT[about.kind]
    plain = replace(first, batch=batch, accumulation=1, graphs=False if about.graphs and has_graphs() else None)
    for precision in precisions:
        yield replace(plain, precision=precision)
    best = replace(plain, precision=precisions[0])
    if plain.graphs is False:
        yield replace(best, graphs=True)
    if about.compiles:
        yield replace(best, compile=True)
    for size in others:
        yield replace(first, batch=size, accumulation=1)
    for precision in precisions[1:]:
        if plain.graphs is False:
            yield replace(plain, precision=precision, graphs=True)
        if about.compiles and about.kind != "cpu":
            yield replace(plain, precision=precision, compile=True)
