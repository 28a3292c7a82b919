"""The processes of `headrace bench learner`: a filled replay server, and before it one learner or bare loop after another."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.common.processes import CaseFailed, end, rate, records, start, wait_until
from benchmarks.learner.workloads import Setting, Task, Workload, warm_up_updates
from benchmarks.replay.wire import Wire, make_recording
from transport.run_dir import RunDir

READY_SECONDS = 240.0  # until a learner has done its first updates: compiling included
SECONDS_AFTER = 60.0  # that a process has to end when its time is over
Found = dict[str, Any]  # figures by name; and perhaps the precision


def figures(rows: list[dict[str, float]]) -> Found:
    """The figures in a learner's records: updates and items per second; its phases' shares of the time, in percent; milliseconds
    of the processor that an update takes, with all that is between."""
    spans = [after["time"] - before["time"] for before, after in zip(rows[:-1], rows[1:], strict=True)]

    def share(phase: str) -> float:
        shares = [row.get(f"{phase}_fraction", 0.0) for row in rows[1:]]
        return 100 * sum(value * span for value, span in zip(shares, spans, strict=True)) / sum(spans)

    found = {"updates": rate(rows, "updates"), "items": rate(rows, "items"), "data wait": share("data_wait")}
    if "device_fraction" in rows[-1]:  # timed by the device's events
        found["device"] = share("device")
    return found | {"update": share("update"), "CPU": 10 * share("processor") / found["updates"]}


class Source:
    """A replay server with all that a workload learns from. `serving` makes one."""

    def __init__(self, folder: Path, run_dir: RunDir) -> None:
        self._folder, self._run_dir = folder, run_dir

    def learner(self, setting: Setting, seconds: float) -> Found:
        """The learner as a run has it, `seconds` long once it is warm: figures(), resident memory in MB. Raises CaseFailed."""
        with self._run(setting) as run, started("learner", str(run.path), threads=setting.threads) as process:

            def warm() -> list[dict[str, float]]:
                return [row for row in records(run, "learner") if row.get("updates", 0) >= warm_up_updates(setting.device)]

            def over() -> bool:
                return warm()[-1]["time"] >= warm()[0]["time"] + seconds

            wait_until(lambda: bool(warm()), "the learner's first updates", [process], READY_SECONDS)
            wait_until(over, "the end", [process], READY_SECONDS + seconds)
            precision = json.loads(run.device.read_text())["precision"]
            resident = psutil.Process(process.pid).memory_info().rss / 1e6
            return figures(warm()) | {"memory": resident, "precision": precision}

    def bare(self, setting: Setting, seconds: float) -> Found:
        """The bare loop, on a few batches of this server's. Raises CaseFailed."""
        task = Task(str(self._run_dir.path), setting, seconds)
        return json_of(("benchmarks.by_hand.bare", msgspec.json.encode(task).decode()), seconds, setting.threads)

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


def json_of(command: tuple[str, ...], seconds: float, threads: int) -> Found:
    """The JSON that a process prints at its end. Raises CaseFailed."""
    with started(*command, threads=threads) as process:
        try:
            text, _ = process.communicate(timeout=READY_SECONDS + seconds + SECONDS_AFTER)
        except subprocess.TimeoutExpired:
            raise CaseFailed(f"{command[0]} has not ended in its time") from None
    lines = text.strip().splitlines()
    if process.returncode:
        raise CaseFailed(lines[-1] if lines else f"{command[0]} ended with {process.returncode}")
    warnings = [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]
    return dict(json.loads(lines[-1])) | ({"warnings": warnings} if warnings else {})


@contextmanager
def serving(workload: Workload) -> Iterator[Source]:
    """Within, the server is there, filled; rollouts keep coming."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
        wire = Wire(Path(folder) / "served", workload.spec(), make_recording(workload.kind), durable=False)
        with wire:
            source = Source(Path(folder), wire.run_dir)
            if workload.rollouts:
                with started("benchmarks.learner.rollout_writer", str(wire.run_dir.path)):
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
