"""`headrace bench gpu --quick`: whether this machine's GPU does what the learner expects of it, in two minutes.

A line for each check, with what was found and what is expected: copies from page-locked memory, every algorithm's update beside
the CPU's and how often it makes the host wait, smaller precisions, recorded graphs, the Triton kernel, a checkpoint, a short run.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.common.report import Report
from benchmarks.device.operations import waiter
from benchmarks.device.updates import CASES, Learning, learning
from deploy.children import child_environment, python_command
from learner.algorithms.base import find_algorithm
from learner.devices import capabilities as devices
from learner.devices import detection
from learner.devices.capabilities import DeviceError, capabilities
from learner.devices.detection import resolve
from learner.networks.stacks import choose
from transport.slab import Layout, Slab

CPU = torch.device("cpu")
COPY_BYTES, COPIES = 64 << 20, 10
LEAST_RATE = 2.0  # GB/s from page-locked memory: PCIe 3.0 with four lanes, as behind a laptop's Thunderbolt
MOST_ASKING = 0.5  # of the time of the copies, in which the host may be busy with asking for them
MOST_WAITS = {"dqn": 0, "sac": 0, "r2d2": 0, "ppo": 1, "pqn": 1, "reppo": 1}  # of an update; docs/explanation/performance.md
EPOCHS = 3  # of algorithms that learn from rollouts, so that all is over in two minutes
STEPS, TIMED = 2, 10  # updates before what is compared; and those that are timed
NEAR = (0.05, 1e-2)  # relative and absolute: TF32 keeps ten bits
ROUNDED = (0.5, 5e-2)  # in bfloat16 and float16
GRAPH_STEPS = 60
RUN_SECONDS = 20
ONCE = ("ppo target_kl", "ppo annealed", "dqn averaged")  # cases that say nothing more of a device


@dataclass
class Check:
    """One line. `figures`: name -> value and unit."""

    name: str
    ok: bool
    found: str
    expected: str
    figures: dict[str, tuple[float, str]]

    def line(self) -> str:
        return f"{'ok ' if self.ok else 'ODD'}  {self.name:<22} {self.found}; expected: {self.expected}"


Checks = Iterator[Check]


def copies(device: torch.device) -> Checks:
    """As batches reach the device."""
    slab = Slab.create(Layout((("bytes", (COPY_BYTES,), "|u1"),)), 2)
    locked = devices.page_lock(slab.memory, device)
    host = torch.from_numpy(slab.memory).reshape(2, -1)
    there = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    wait = waiter(device)
    there.copy_(host[0])
    wait()
    begun = time.perf_counter()
    for _ in range(COPIES):
        there.copy_(host[1], non_blocking=True)
    asked = time.perf_counter() - begun
    wait()
    took = time.perf_counter() - begun
    rate, share = COPIES * COPY_BYTES / took / 1e9, asked / took
    streams = capabilities(device).streams
    ok = rate >= LEAST_RATE and (not streams or (locked and share <= MOST_ASKING))
    found = f"{rate:.1f} GB/s, page-locked: {'yes' if locked else 'no'}, the host is busy for {share:.0%} of the time"
    expected = f"at least {LEAST_RATE:g} GB/s" + (f", yes, at most {MOST_ASKING:.0%}" if streams else "")
    yield Check("copies", ok, found, expected, {"copies": (rate, "GB/s"), "busy": (share, "")})


@contextmanager
def counted_waits(device: torch.device) -> Iterator[list[str]]:
    """Collects torch's reports of operations that wait for the device."""
    waits: list[str] = []
    module: Any = getattr(torch, device.type, None)
    if not hasattr(module, "set_sync_debug_mode"):
        yield waits
        return

    def shown(message: Warning | str, *given: Any, **options: Any) -> None:
        if "synchroniz" in str(message):
            waits.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = shown
        module.set_sync_debug_mode(1)
        try:
            yield waits
        finally:
            module.set_sync_debug_mode(0)


def made(name: str, device: torch.device, **settings: Any) -> Learning:
    """An update with a batch, of few epochs."""
    case = CASES[name]
    config = find_algorithm(case.algorithm).Config
    few = {"n_epochs": EPOCHS} if "n_epochs" in config.__struct_fields__ else {}
    chunk = 32
    return learning(case._replace(options=few | case.options), device, items=256, chunk=chunk, graphs="off", **settings)


def after_steps(update: Learning) -> dict[str, float]:
    """The figures after a few updates, from the same random numbers."""
    torch.manual_seed(2)
    for _ in range(STEPS):
        figures = update.figures()
    return figures


def updates(device: torch.device) -> Checks:
    """Every algorithm in float32, those with images in the device's other precisions, too."""
    for name, case in CASES.items():
        if name in ONCE:
            continue
        expected = after_steps(made(name, CPU, precision="float32"))
        for precision in capabilities(device).precisions if case.images else ("float32",):
            yield beside_the_cpu(name, precision, device, expected)


def beside_the_cpu(name: str, precision: str, device: torch.device, expected: dict[str, float]) -> Check:
    """One algorithm in one precision."""
    there = made(name, device, precision=precision)
    found = after_steps(there)
    with counted_waits(device) as waits:
        there.update.update(there.batch)
    seconds, wait = [], waiter(device)
    for _ in range(TIMED):
        begun = time.perf_counter()
        there.update.update(there.batch)
        wait()
        seconds.append(time.perf_counter() - begun)
    relative, absolute = NEAR if precision == "float32" else ROUNDED
    # Noise is drawn on the device, by another generator than the CPU's.
    random = CASES[name].algorithm in ("reppo", "sac")
    apart = {
        figure: (found[figure], value)
        for figure, value in expected.items()
        if not np.isfinite(found[figure]) or (not random and abs(found[figure] - value) > relative * abs(value) + absolute)
    }
    most, ms = MOST_WAITS[CASES[name].algorithm], 1e3 * statistics.median(seconds)
    told = ", ".join(f"{figure} {one:.4g} beside {other:.4g}" for figure, (one, other) in apart.items())
    text = f"{ms:.2f} ms, the host waits {len(waits)} times, " + (told or "the CPU's figures")
    label = name if precision == "float32" else f"{name} {precision}"
    return Check(label, not apart and len(waits) <= most, text, f"{most}, the CPU's figures", {"update": (ms, "ms")})


def graphs(device: torch.device) -> Checks:
    """Checks that an update can be recorded, and what that gains."""
    if not capabilities(device).graphs:
        return
    said = io.StringIO()
    with redirect_stdout(said):
        one = learning(CASES["dqn vector"], device, items=256, precision="float32")
        for _ in range(GRAPH_STEPS):  # some of them eagerly, then a graph is recorded, then both are timed
            one.update.update(one.batch)
    lines = [line for line in said.getvalue().splitlines() if "graph" in line or "record" in line]
    text = " ".join(lines) or "nothing was said"
    yield Check("graphs", "ms as a graph" in text, text, "milliseconds as a graph, and without", {})


def kernel(device: torch.device) -> Checks:
    """The Triton kernel, where Triton is installed."""
    if not capabilities(device).triton:
        return
    one = learning(CASES["dqn image"], device, items=256)
    text = choose(one.update.modules.values(), one.update.spec, 256, device, one.runtime.first.autocast)  # type: ignore[attr-defined]
    yield Check("stack kernel", "µs by one kernel" in text, text, "microseconds by torch, and by one kernel", {})


def checkpoint(device: torch.device) -> Checks:
    """All that a checkpoint has of the optimisers goes there and back."""
    one, other = (learning(CASES["dqn image"], device, items=256) for _ in range(2))
    one.update.update(one.batch)
    before = {name: value.cpu() for name, value in one.runtime.state().items()}
    other.runtime.load_state(before)
    same = all(torch.equal(value.cpu(), before[name]) for name, value in other.runtime.state().items())
    yield Check("checkpoint", same, "the same" if same else "another", "the same", {})


def run(device: torch.device) -> Checks:
    """`headrace up` from the first line to the last."""
    name = "directml" if device.type == "privateuseone" else str(device)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        options = ("--env", "CartPole-v1", "--algo", "dqn", "--device", name, "--actors", "1", "--stop-after", f"{RUN_SECONDS}s")
        done = subprocess.run(
            python_command("deploy.cli.main", "up", *options),
            cwd=folder,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    rates = [line for line in done.stdout.splitlines() if "updates/s" in line]
    text = rates[-1].partition("|")[2].strip()[:100] if rates else " ".join(done.stdout.split())[-300:]
    yield Check("a run", done.returncode == 0 and bool(rates), f"exit status {done.returncode}: {text}", "0, and updates", {})


CHECKS: tuple[Callable[[torch.device], Checks], ...] = (copies, updates, graphs, kernel, checkpoint, run)


def gpu(name: str) -> torch.device:
    """Raises DeviceError where there is none that torch can use."""
    device = resolve(name)
    if device.type == "cpu":
        reason = detection.missing("cuda") if name == "auto" else "--device names the CPU"
        raise DeviceError(f"there is no GPU to check: {reason}")
    return device


def check(name: str, as_json: bool) -> int:
    """Prints a line for each check, or JSON in the end; the exit status."""
    try:
        device = gpu(name)
    except DeviceError as error:
        print(f"headrace bench gpu: {error}", file=sys.stderr)
        return 2
    devices.set_up(device, 4)
    report = Report("gpu quick", gpu=capabilities(device).name)
    report.notes.append(f"device {device} ({capabilities(device).name}), torch {torch.__version__}")
    found: list[Check] = []
    if not as_json:
        print(report.notes[0], flush=True)
    for each in CHECKS:
        for one in _checked(each, device):
            found.append(one)
            for figure, (value, unit) in one.figures.items():
                report.add(one.name, figure, unit, [value])
            if not as_json:
                print(one.line(), flush=True)
    odd = [one for one in found if not one.ok]
    report.more["checks"] = [asdict(one) for one in found]
    if as_json:
        report.print(as_json=True)
    else:
        print(f"{len(found) - len(odd)} of {len(found)} as expected" + (": please tell us of the others" if odd else ""))
    return 1 if odd else 0


def _checked(each: Callable[[torch.device], Checks], device: torch.device) -> Checks:
    """A check that raises is odd, and the others go on."""
    try:
        yield from each(device)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        yield Check(each.__name__, False, text, "no error", {})
