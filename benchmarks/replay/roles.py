"""The processes that `headrace bench replay` starts around a replay server: a writer, the sampler, the checker.

Each reads its task from the command line, gets ready, says so, waits for the moment that its parent names on its standard
input (so that all begin at once), and prints what it measured as JSON.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.common.recording import Recording
from benchmarks.replay.sources import chunks_by_slices, chunks_by_steps, first_rows, load_circle
from replay.client.base import SampledBatch
from replay.client.sampler import Sampler
from replay.client.writer import ExperienceWriter
from transport.experience import Columns, ExperienceSpec, read_spec
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir
from transport.system import keep_memory

SLOTS = 3
READY_SECONDS = 60.0
PATIENCE_SECONDS = 0.05
SETTLED_SECONDS = 3.0  # without a batch: then the limiter waits for inserts


class Task(msgspec.Struct, frozen=True):
    """The task of one process. `pace`: steps/s of a writer, 0 for flat out. `fill`: steps to write at once instead.

    `settles`: before it begins, the sampler draws all items that the limiter allows for the filled table.
    """

    role: str
    run_dir: str
    seconds: float = 0.0
    number: int = 0
    streams: int = 8
    stepwise: bool = False
    pace: float = 0.0
    fill: int = 0
    batch_size: int = 512
    batches: int = 0
    settles: bool = False


def wait_for_start() -> float:
    """Says that this process is ready; returns the moment at which to begin, and waits for it."""
    print("ready", flush=True)
    moment = float(sys.stdin.readline())
    time.sleep(max(moment - time.monotonic(), 0.0))
    return moment


def connect(run_dir: RunDir, endpoint: str = "replay") -> str:
    """A server's address. Ends the process when there is none."""
    deadline = time.monotonic() + READY_SECONDS
    address = run_dir.wait_for_endpoint(endpoint, lambda: time.monotonic() > deadline)
    if address is None:
        raise SystemExit(f"no replay server in {run_dir.path} within {READY_SECONDS:.0f} s")
    return address


def make_sampler(task: Task, run_dir: RunDir, spec: ExperienceSpec) -> Sampler:
    """The learner's client of replay."""
    return Sampler(connect(run_dir), "learner", new_incarnation(), spec, task.batch_size, SLOTS)


def percentiles(seconds: list[float]) -> list[float]:
    """p50 and p99."""
    return [float(value) for value in np.percentile(seconds, (50, 99))] if seconds else []


class Writing:
    """One writer, with the time between an insert and its acknowledgement."""

    def __init__(self, task: Task) -> None:
        keep_memory()
        run_dir = RunDir(Path(task.run_dir))
        self.task, self.spec = task, read_spec(run_dir.spec.read_bytes())
        recording, columns = load_circle(run_dir.path / "recording")
        source = chunks_by_steps if task.stepwise else chunks_by_slices
        self.source = source(self.spec, recording, columns, first_rows(recording, task.number, task.streams))
        name = f"actor-{task.number}"
        address = connect(run_dir)
        self.writer = ExperienceWriter(address, name, new_incarnation(), self.spec, task.streams)
        deadline = time.monotonic() + READY_SECONDS
        while not self.writer.has_credit and time.monotonic() < deadline:
            self.writer.poll(PATIENCE_SECONDS)
        self.sent_at: deque[float] = deque()
        self.latencies: list[float] = []

    def insert(self) -> None:
        chunk = next(self.source)
        self.sent_at.append(time.monotonic())
        self.writer.insert(chunk)

    def poll(self, seconds: float) -> None:
        self.writer.poll(seconds)
        if len(self.sent_at) > self.writer.outstanding:
            now = time.monotonic()
            while len(self.sent_at) > self.writer.outstanding:
                self.latencies.append(now - self.sent_at.popleft())

    def drain(self) -> None:
        """Waits until everything is acknowledged. Ends the process where that never comes."""
        deadline = time.monotonic() + READY_SECONDS
        while self.writer.outstanding:
            self.poll(PATIENCE_SECONDS)
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.writer.outstanding} chunks were not acknowledged within {READY_SECONDS:.0f} s")

    def fill(self) -> dict[str, Any]:
        """Writes as many steps as the task says, and waits for the last acknowledgement."""
        begun = time.monotonic()
        while self.writer.acknowledged_steps < self.task.fill:
            if self.writer.has_credit:
                self.insert()
            self.poll(0 if self.writer.has_credit else PATIENCE_SECONDS)
        self.drain()
        return {"steps": self.writer.acknowledged_steps, "seconds": time.monotonic() - begun}

    def flat_out(self, begun: float) -> float:
        """Writes until the time is over; returns when that was."""
        while (now := time.monotonic()) < begun + self.task.seconds:
            if self.writer.has_credit:
                self.insert()
            self.poll(0 if self.writer.has_credit else PATIENCE_SECONDS)
        return now

    def paced(self, begun: float) -> tuple[float, float]:
        """Writes the chunks that are due within the time, each when it is.

        Returns when the last was acknowledged, and the share of its pace that this writer kept.
        """
        interval = self.spec.chunk_length / self.task.pace
        begun += interval * (self.task.number % 16) / 16  # not all at the same moment
        due = max(round(self.task.seconds / interval), 1)
        sent, patience = 0, begun + 3 * self.task.seconds
        while len(self.latencies) < due and (now := time.monotonic()) < patience:
            next_at = begun + interval * (sent + 1) if sent < due else patience
            if now >= next_at and self.writer.has_credit:
                self.insert()
                sent += 1
            else:
                self.poll(min(max(next_at - now, 0.001), PATIENCE_SECONDS))
        ended = time.monotonic()
        return ended, len(self.latencies) * interval / (ended - begun)

    def measure(self) -> dict[str, Any]:
        """Rates over the time, which begins with the parent's word."""
        begun = wait_for_start()
        cpu = time.process_time()
        ended, kept = self.paced(begun) if self.task.pace else (self.flat_out(begun), None)
        steps, latencies, cpu = self.writer.acknowledged_steps, list(self.latencies), time.process_time() - cpu
        # The end of a process takes a core for a moment, and slows processes that have a chunk left to send.
        while self.task.pace and time.monotonic() < begun + self.task.seconds + 2 * self.spec.chunk_length / self.task.pace:
            self.poll(PATIENCE_SECONDS)
        self.drain()
        return {
            "steps": steps,
            "seconds": ended - begun,
            "cpu_seconds": cpu,
            "latency_seconds": percentiles(latencies),
            "sent_bytes": self.writer.sent_bytes,
            "sent_steps": self.writer.acknowledged_steps,
            "pace_kept": kept,
        }


def write(task: Task) -> dict[str, Any]:
    """The writer process."""
    writing = Writing(task)
    result = writing.fill() if task.fill else writing.measure()
    writing.writer.close()
    return result


def sample(task: Task) -> dict[str, Any]:
    """The sampler process: batches in this process's memory, a priority sent back for every item."""
    keep_memory()
    run_dir = RunDir(Path(task.run_dir))
    spec = read_spec(run_dir.spec.read_bytes())
    sampler = make_sampler(task, run_dir, spec)
    batch: SampledBatch | None = first_batch(sampler)
    while task.settles and batch is not None:
        sampler.release(batch)
        batch = sampler.next(SETTLED_SECONDS)
    generator = np.random.default_rng(0)
    begun = wait_for_start()
    asked = [begun] * SLOTS
    cpu, items, latencies = time.process_time(), 0, []
    while (now := time.monotonic()) < begun + task.seconds:
        if batch is not None:
            items += task.batch_size
            sampler.update_priorities(batch.arrays["key"], generator.random(task.batch_size, np.float32))
            sampler.release(batch)
            asked[batch.slot] = time.monotonic()
        batch = sampler.next(PATIENCE_SECONDS)
        if batch is not None:
            latencies.append(time.monotonic() - asked[batch.slot])
    result = {
        "items": items,
        "seconds": now - begun,
        "cpu_seconds": time.process_time() - cpu,
        "latency_seconds": percentiles(latencies[SLOTS:]),
    }
    sampler.close()
    return result


def first_batch(sampler: Sampler) -> SampledBatch:
    """Waits for it. Ends the process when none comes."""
    batch = sampler.next(READY_SECONDS)
    if batch is None:
        raise SystemExit(f"no batch within {READY_SECONDS:.0f} s")
    return batch


def check(task: Task) -> dict[str, Any]:
    """The checker process: draws batches and compares every item with the recording."""
    run_dir = RunDir(Path(task.run_dir))
    spec = read_spec(run_dir.spec.read_bytes())
    recording, _ = load_circle(run_dir.path / "recording")
    sampler = make_sampler(task, run_dir, spec)
    for _ in range(task.batches):
        batch = first_batch(sampler)
        compare(spec, recording, batch.arrays)
        sampler.release(batch)
    sampler.close()
    return {"checked": task.batches * task.batch_size}


def compare(spec: ExperienceSpec, recording: Recording, batch: Columns) -> None:
    """Raises AssertionError where a batch has anything but what was written."""
    row = batch["reward"][:, 0].astype(np.int64)  # [B]: the first reward is the row's number
    items = np.arange(len(row))[:, None]
    window = batch["observation/observation"]
    stacks = window[items, batch["observation_index"]]
    assert (stacks == recording.observation[recording.stack(row, spec.stack)]).all(), "an observation is not what was written"
    assert (batch["action"] == recording.action[row]).all(), "an action is not what was written"
    steps, terminated = reach(recording, row, spec.n_step)
    assert (batch["steps"] == steps).all() and (batch["terminated"] == terminated).all(), "an item ends where it should not"
    for k in range(spec.n_step):
        assert (batch["reward"][:, k] == (row + k) % len(recording))[steps > k].all(), "a reward is not what was written"
    going = ~terminated
    following = window[items, batch["next_index"]][going]
    stack = recording.stack(((row + steps) % len(recording))[going], spec.stack)
    assert (following == recording.observation[stack]).all(), "a next observation is not what was written"


def reach(recording: Recording, row: np.ndarray, n_step: int) -> tuple[np.ndarray, np.ndarray]:
    """For rows [B], item by item: the steps to the boundary, n_step at most, and whether a termination ended them."""
    steps, terminated = np.zeros(len(row), np.int64), np.zeros(len(row), bool)
    for item, at in enumerate(row):
        for k in range(n_step):
            here = (at + k) % len(recording)
            steps[item] = k + 1
            if recording.terminated[here] or recording.truncated[here]:
                terminated[item] = bool(recording.terminated[here])
                break
    return steps, terminated


ROLES = {"writer": write, "sampler": sample, "checker": check}

if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=Task)
    print(msgspec.json.encode(ROLES[given.role](given)).decode(), flush=True)
