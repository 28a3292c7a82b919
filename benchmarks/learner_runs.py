"""The processes of `headrace bench learner`: a filled replay server, and before it one learner or bare loop after another."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from benchmarks.processes import end, rate, records, start
from benchmarks.wire import Wire, make_recording
from benchmarks.workloads import Setting, Task, Workload
from transport.run_dir import RunDir

READY_SECONDS = 240.0  # until a learner has done its first updates: compiling included
WARM_UP_UPDATES = 5
SECONDS_AFTER = 60.0  # that a process has to end when its time is over
Found = dict[str, float]


class CaseFailed(Exception):
    """A case that cannot be measured: the message says why, in one line."""


class Learned(NamedTuple):
    """What a learner's process wrote about itself, and what the system says of it."""

    records: list[dict[str, float]]
    resident_bytes: int
    precision: str

    def figures(self) -> Found:
        """Updates and items per second; shares of the time in percent; memory in MB."""
        spans = [after["time"] - before["time"] for before, after in zip(self.records[:-1], self.records[1:], strict=True)]

        def share(phase: str) -> float:
            told = [row.get(f"{phase}_fraction", 0.0) for row in self.records[1:]]
            return 100 * sum(value * span for value, span in zip(told, spans, strict=True)) / sum(spans)

        return {
            "updates": rate(self.records, "updates"),
            "items": rate(self.records, "items"),
            "data wait": share("data_wait"),
            "update": share("update"),
            "processor": share("processor"),
            "memory": self.resident_bytes / 1e6,
        }


class Source:
    """A replay server with all that a workload learns from. `serving` makes one."""

    def __init__(self, folder: Path, run_dir: RunDir) -> None:
        self._folder, self._run_dir = folder, run_dir

    def learner(self, setting: Setting, seconds: float) -> Learned:
        """The learner as a run has it, `seconds` long once it is warm. Raises CaseFailed."""
        with self._run(setting) as run, started("learner", str(run.path), threads=setting.threads) as process:

            def warm() -> list[dict[str, float]]:
                told = records(run, "learner")
                return [row for row in told if row.get("updates", 0) >= WARM_UP_UPDATES]

            wait_for(process, lambda: bool(warm()), READY_SECONDS, "the learner's first updates")
            wait_for(process, lambda: warm()[-1]["time"] >= warm()[0]["time"] + seconds, READY_SECONDS + seconds, "the end")
            resident = psutil.Process(process.pid).memory_info().rss
            return Learned(warm(), resident, json.loads(run.device.read_text())["precision"])

    def watched(self, setting: Setting, seconds: float) -> Found:
        """The learner's loop with a profiler in it: what benchmarks.watched tells. Raises CaseFailed."""
        with self._run(setting) as run:
            return self._told(("benchmarks.watched", str(run.path), str(seconds)), seconds, setting.threads)

    def by_hand(self, module: str, setting: Setting, seconds: float) -> Found:
        """A loop written by hand, on batches of this server's. Raises CaseFailed."""
        task = Task(str(self._run_dir.path), setting, seconds)
        return self._told((module, msgspec.json.encode(task).decode()), seconds, setting.threads)

    def _told(self, command: tuple[str, ...], seconds: float, threads: int) -> Found:
        """The JSON that a process prints at its end."""
        with started(*command, threads=threads) as process:
            try:
                text, _ = process.communicate(timeout=READY_SECONDS + seconds + SECONDS_AFTER)
            except subprocess.TimeoutExpired:
                raise CaseFailed(f"{command[0]} has not ended in its time") from None
        lines = text.strip().splitlines()
        if process.returncode:
            raise CaseFailed(lines[-1] if lines else f"{command[0]} ended with {process.returncode}")
        return dict(json.loads(lines[-1]))

    @contextmanager
    def _run(self, setting: Setting) -> Iterator[RunDir]:
        """A new learner's run, before the same server."""
        run = RunDir(Path(tempfile.mkdtemp(dir=self._folder)) / "run")
        run.create()
        setting.write(run)
        run.write_endpoint("replay", str(self._run_dir.endpoint("replay")))
        try:
            yield run
        finally:
            run.remove_sockets()


@contextmanager
def serving(workload: Workload) -> Iterator[Source]:
    """Within, the server is there, filled; rollouts keep coming."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
        selector = "fifo" if workload.rollouts else "prioritised"
        wire = Wire(Path(folder) / "served", workload.spec(), make_recording(workload.kind), durable=False, selector=selector)  # type: ignore[arg-type]
        with wire:
            source = Source(Path(folder), wire.run_dir)
            if workload.rollouts:
                with started("benchmarks.rollout_writer", str(wire.run_dir.path)):
                    yield source
            else:
                wire.fill()
                yield source


@contextmanager
def started(*command: str, threads: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A process that has ended when the block is left."""
    process = start(*command, threads=threads)
    try:
        yield process
    finally:
        if process.poll() is None:
            end([process])
        elif process.stdout is not None:
            process.stdout.close()


def wait_for(process: subprocess.Popen[str], true: Callable[[], bool], seconds: float, what: str) -> None:
    """Waits for a predicate. Raises CaseFailed when it takes too long or the process ends, with its last word."""
    deadline = time.monotonic() + seconds
    while not true():
        if process.poll() is not None:
            said = process.communicate()[0].strip().splitlines()
            raise CaseFailed(said[-1] if said else f"the learner ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise CaseFailed(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.1)


def say(text: str) -> None:
    """To standard error: what is going on."""
    print(f"  {text}", file=sys.stderr, flush=True)


def utilisation() -> float | None:
    """What nvidia-smi calls the device's utilisation now, in percent; None where it tells nothing."""
    asked: Any = None
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=10)
    try:
        return float(asked.stdout.split()[0]) if asked is not None and not asked.returncode else None
    except (ValueError, IndexError):
        return None
