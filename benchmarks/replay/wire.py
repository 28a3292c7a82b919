"""A replay server with writers and samplers around it, each a process, and what they cost together."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil
import tomli_w

from benchmarks.common.recording import Recording, load_frames, vectors
from benchmarks.common.settings import write_settings
from benchmarks.replay.roles import READY_SECONDS, SLOTS, Task
from benchmarks.replay.sources import save_circle
from deploy.children import child_environment
from learner.algorithms.base import join
from learner.algorithms.dqn.algorithm import Dqn
from learner.algorithms.dqn.config import DqnConfig
from replay.config import ReplayConfig
from replay.table.layout import layout, overhead_bytes, slot_bytes
from transport.experience import Categorical, ExperienceSpec, observed, write_spec
from transport.run_dir import RunDir

CAPACITY = 65_536
BATCH = 512
RECEIVE_BYTES = 256_000_000
CHECKED_BATCHES = 3  # as many as the limiter lets through without a writer
LEAD_SECONDS = 0.3  # between the word to begin and the beginning
RESTORE_SECONDS = 300.0

ACTIONS = 7
Kind = Literal["frames", "vectors"]


def make_spec(kind: Kind, n_step: int, codec: str) -> ExperienceSpec:
    """84x84 grey frames in stacks of four and chunks of 128, or vectors of 22 floats in chunks of 64, as in a run of DQN."""
    if kind == "frames":
        field = observed("observation", (84, 84), "|u1", scale=1 / 255, codec=codec)  # type: ignore[arg-type]
    else:
        field = observed("observation", (22,), "<f4")
    stack, length = (4, 128) if kind == "frames" else (1, 64)
    env = ExperienceSpec((field,), Categorical(ACTIONS), length, stack)
    return join(env, Dqn(DqnConfig(n_step=n_step)).needs(env))


def make_recording(kind: Kind) -> Recording:
    """The rows that the writers send."""
    frames = load_frames()
    return frames if kind == "frames" else vectors(frames)


def item_bytes(spec: ExperienceSpec) -> float:
    """Bytes of one item of a batch, unpacked."""
    return layout(spec, BATCH).slot_bytes / BATCH


def budget_bytes(spec: ExperienceSpec, capacity: int) -> int:
    """Memory that the server may take: the ring with tree and vacant slot, the receive queue, the learner's slab, the process."""
    ring = (capacity // spec.chunk_length + 1) * slot_bytes(spec)
    return ring + overhead_bytes(spec, ReplayConfig(receive_bytes=RECEIVE_BYTES), SLOTS * BATCH)


@dataclass
class Outcome:
    """The measurements of the processes of one case. `server_cpu_seconds` passed within `seconds`."""

    writers: list[dict[str, Any]]
    samplers: list[dict[str, Any]]
    seconds: float
    server_cpu_seconds: float
    resident_bytes: int


class Wire:
    """A run's folder with a replay server. A context: leaving it stops the server."""

    def __init__(
        self,
        folder: Path,
        spec: ExperienceSpec,
        recording: Recording,
        durable: bool,
        mix: float | None = None,
        capacity: int = CAPACITY,
    ) -> None:
        """`mix`: samples per insert, None for any."""
        self.spec = spec
        self.run_dir = RunDir(folder)
        self.run_dir.create()
        save_circle(folder / "recording", recording, spec.rows(spec.chunk_length))
        config = ReplayConfig(
            capacity=capacity,
            budget_bytes=budget_bytes(spec, capacity),
            min_size=BATCH,
            samples_per_insert_low=mix or 0.0,
            samples_per_insert_high=mix or math.inf,
            receive_bytes=RECEIVE_BYTES,
            durable=durable,
        )
        self.config = config
        learner = {"batch_size": BATCH, "prefetch": SLOTS - 1}  # what replay reads of it: how much memory will be leased to it
        document = {"seed": 0, "replay": msgspec.to_builtins(config), "learner": learner}
        self.run_dir.config.write_text(tomli_w.dumps(document))
        self.run_dir.spec.write_bytes(write_spec(spec))
        write_settings(self.run_dir, document)

    def __enter__(self) -> Wire:
        self.serve()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def serve(self) -> None:
        """Starts the server, and waits until it has restored what there is and has bound."""
        self.run_dir.remove_sockets()
        with self.run_dir.log("replay").open("a") as log:
            command = [sys.executable, "-m", "replay", str(self.run_dir.path)]
            self.server = subprocess.Popen(command, stdout=log, env=child_environment())
        deadline = time.monotonic() + RESTORE_SECONDS
        while self.run_dir.endpoint("replay") is None:
            if self.server.poll() is not None or time.monotonic() > deadline:
                self.server.kill()
                raise SystemExit(f"replay did not start: {self.run_dir.log('replay').read_text()}")
            time.sleep(0.05)

    def stop(self) -> float:
        """An orderly stop; returns the seconds it took."""
        begun = time.monotonic()
        self.server.terminate()
        self.server.wait(READY_SECONDS)
        self.run_dir.remove_sockets()
        return time.monotonic() - begun

    def fill(self, steps: int = CAPACITY) -> float:
        """One writer writes `steps` steps, as fast as it can; returns steps per second."""
        written = finish(self.start(self.task("writer", number=0, fill=steps)))
        return float(written["steps"] / written["seconds"])

    def sample(self, seconds: float) -> float:
        """One sampler alone; returns items per second."""
        drawn = self.measure([self.task("sampler", seconds=seconds, batch_size=BATCH)], seconds).samplers[0]
        return float(drawn["items"] / drawn["seconds"])

    def check(self) -> int:
        """Compares batches with what was written; returns how many items were equal. Ends the benchmark if one was not."""
        task = self.task("checker", batches=CHECKED_BATCHES, batch_size=BATCH)
        return int(finish(self.start(task))["checked"])

    def task(self, role: str, **more: Any) -> Task:
        """A process's task on this run."""
        return Task(role, str(self.run_dir.path), **more)

    def start(self, task: Task) -> subprocess.Popen[str]:
        """A process of this benchmark's."""
        command = [sys.executable, "-m", "benchmarks.replay.roles", msgspec.json.encode(task).decode()]
        quiet = child_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet)

    def measure(self, tasks: list[Task], seconds: float) -> Outcome:
        """Starts all, lets them begin at one moment, and reads the server's clock at the beginning and the end."""
        processes = [self.start(task) for task in tasks]
        try:
            for process in processes:
                # A client prints other lines first if replay does not answer for a while.
                if "ready\n" not in iter(process.stdout.readline, ""):  # type: ignore[union-attr]
                    raise SystemExit("a writer or sampler did not start: see above")
            moment = time.monotonic() + LEAD_SECONDS
            for process in processes:
                process.stdin.write(f"{moment}\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
            time.sleep(max(moment - time.monotonic(), 0))
            cpu, begun = self.cpu_seconds(), time.monotonic()
            time.sleep(max(moment + seconds - time.monotonic(), 0))
            cpu, elapsed, resident = self.cpu_seconds() - cpu, time.monotonic() - begun, self.resident_bytes()
            results = [finish(process) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        samplers = [result for task, result in zip(tasks, results, strict=True) if task.role == "sampler"]
        writers = [result for task, result in zip(tasks, results, strict=True) if task.role != "sampler"]
        return Outcome(writers, samplers, elapsed, cpu, resident)

    def resident_bytes(self) -> int:
        """Memory of the server, the learner's slab included where it has touched it."""
        return int(psutil.Process(self.server.pid).memory_info().rss)

    def cpu_seconds(self) -> float:
        """Spent by the server so far."""
        return clock(psutil.Process(self.server.pid))

    def log_bytes(self) -> int:
        """Size of the segment log."""
        return sum(path.stat().st_size for path in self.run_dir.segments.glob("*.segment"))


def clock(process: psutil.Process) -> float:
    """Spent by a process so far, all its threads, the kernel's work for them included."""
    times = process.cpu_times()
    return float(times.user + times.system)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON that a role prints at its end."""
    text, _ = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"a process of the benchmark ended with {process.returncode}: see above")
    return dict(json.loads(text.splitlines()[-1]))
