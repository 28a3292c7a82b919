"""The processes that `headrace bench replay` starts around a replay server: writer, sampler, checker.

Each reads its task from the command line, gets ready, says so, waits for the moment that its parent names on its standard
input (so that all begin at once), and prints what it measured as JSON.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from actors.chunker import Chunker
from benchmarks.common.recording import Recording
from benchmarks.replay.without import NOT_A_WHILE_SECONDS, leave_out
from replay.client.sampler import SampledBatch, Sampler
from replay.client.writer import ExperienceWriter
from replay.table.layout import PRIORITY
from transport.experience import Chunk, Columns, ExperienceSpec, read_spec
from transport.lifetime import keep_memory, new_incarnation
from transport.run_dir import RunDir

SLOTS = 3
READY_SECONDS = 60.0
PATIENCE_SECONDS = 0.05
NO_SECONDS = 3600.0  # a chunk leaves the chunker only when it is full


class Task(msgspec.Struct, frozen=True):
    """What one process is to do. `pace`: steps/s, 0 for flat out. `fill`: write so many steps at once instead.

    `without`: parts of the safety that are left out (benchmarks/replay/without.py).
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
    without: tuple[str, ...] = ()


def save_circle(folder: Path, recording: Recording, tail: int) -> None:
    """Writes the recording's columns with their first `tail` rows once more at the end: any chunk is then one slice."""
    folder.mkdir()
    for name, values in recording.columns().items():
        np.save(folder / f"{name}.npy", np.concatenate([values, values[:tail]]))


def load_circle(folder: Path) -> tuple[Recording, Columns]:
    """The recording, and the longer columns. All processes share the memory."""
    columns = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(folder.glob("*.npy"))}
    rows = int(columns["reward"].argmax()) + 1
    recording = Recording(**{name: values[:rows] for name, values in columns.items() if name != "reward"})
    priority = np.random.default_rng(0).random(len(columns["reward"]), np.float32)
    return recording, columns | {PRIORITY: priority, "policy_version": np.zeros(len(priority), np.int32)}


def first_rows(recording: Recording, number: int, streams: int) -> np.ndarray:
    """Where the streams [K] of a writer begin: at the start of an episode each."""
    return recording.starts[np.arange(number * streams, (number + 1) * streams) % len(recording.starts)]


def chunks_by_slices(spec: ExperienceSpec, recording: Recording, columns: Columns, begin: np.ndarray) -> Iterator[Chunk]:
    """Chunks for ever, as slices of the recording: what packing and sending cost, and nothing before it."""
    rows = spec.rows(spec.chunk_length)
    while True:
        for stream, row in enumerate(begin):
            first = (int(row) - spec.history) % len(recording)
            yield Chunk(stream, spec.chunk_length, {name: values[first : first + rows] for name, values in columns.items()})
        begin = begin + spec.chunk_length


def chunks_by_steps(spec: ExperienceSpec, recording: Recording, columns: Columns, begin: np.ndarray) -> Iterator[Chunk]:
    """The same chunks put together from single steps by the actors' chunker, K streams in lockstep."""
    chunker = Chunker(spec, len(begin), NO_SECONDS)
    following = np.arange(1, len(recording) + 1) % len(recording)
    following = np.where(recording.valid[following] != 0, following, (following + 1) % len(recording))
    observations, row = columns["observation"], begin
    terminated, truncated = (columns[name].astype(bool) for name in ("terminated", "truncated"))
    while True:
        observation = {"observation": observations[row]}
        final = {"observation": observations[row + 1]} if truncated[row].any() else observation
        outcome = (columns["action"][row], columns["reward"][row], terminated[row], truncated[row])
        yield from chunker.step(observation, *outcome, final, 0, {PRIORITY: columns[PRIORITY][row]})
        row = following[row]


def wait_for_start() -> float:
    """Says that this process is ready; returns the moment at which to begin, and waits for it."""
    print("ready", flush=True)
    moment = float(sys.stdin.readline())
    time.sleep(max(moment - time.monotonic(), 0.0))
    return moment


def connect(run_dir: RunDir) -> str:
    """The server's address. Ends the process when there is none."""
    deadline = time.monotonic() + READY_SECONDS
    address = run_dir.wait_for_endpoint("replay", lambda: time.monotonic() > deadline)
    if address is None:
        raise SystemExit(f"no replay server in {run_dir.path} within {READY_SECONDS:.0f} s")
    return address


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
        keys = run_dir.keys(name)
        self.patience = NOT_A_WHILE_SECONDS if "acks" in task.without else PATIENCE_SECONDS
        self.writer = ExperienceWriter(connect(run_dir), name, new_incarnation(), self.spec, task.streams, keys)
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
            self.poll(0 if self.writer.has_credit else self.patience)
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
    sampler = Sampler(connect(run_dir), "learner", new_incarnation(), spec, task.batch_size, SLOTS, keys=run_dir.keys("learner"))
    batch: SampledBatch | None = first_batch(sampler)
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
    sampler = Sampler(connect(run_dir), "learner", new_incarnation(), spec, task.batch_size, SLOTS, keys=run_dir.keys("learner"))
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
    leave_out(given.without)
    print(msgspec.json.encode(ROLES[given.role](given)).decode(), flush=True)
