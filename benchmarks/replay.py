"""`headrace bench replay`: one writer, one replay server, one sampler, real processes over the real wire, 84x84 frames.

Items are stacks of four with n-step 3 (seven frames travel to the sampler), drawn by priority, priorities sent back.
Beside them the bare gather of the same windows out of the same amount of memory, in one process without any wire: the
limit for sampling.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import tomli_w

from benchmarks.report import Report
from replay.client import ExperienceWriter, Sampler
from replay.config import ReplayConfig
from transport.compression import pack_chunk
from transport.experience import Categorical, Chunk, ExperienceSpec, Field, read_spec
from transport.lifetime import keep_memory, new_incarnation
from transport.run_dir import RunDir

CAPACITY = 65_536
PREFILL = 40_000
BATCH = 512
READY_SECONDS = 20.0


def make_spec(codec: str) -> ExperienceSpec:
    """84x84 grey frames, stack 4, n-step 3."""
    frame = Field("observation", (84, 84), "|u1", scale=1 / 255, codec=codec)  # type: ignore[arg-type]
    return ExperienceSpec((frame,), Categorical(7), chunk_length=128, stack=4, n_step=3)


def make_chunks(spec: ExperienceSpec, count: int) -> list[Chunk]:
    """Chunks of a scrolling picture of flat tiles with a few moving dots, about as compressible as a platform game."""
    generator = np.random.default_rng(0)
    tiles = generator.integers(0, 256, (10, 400)).astype(np.uint8)
    world = np.kron(tiles * (generator.random(tiles.shape) < 0.3), np.ones((8, 8), np.uint8))
    noise = (generator.random(world.shape) < 0.004).astype(np.uint8) * 40
    world = np.pad(world + noise, ((4, 0), (0, 0)))  # [84, 3200]
    rows = spec.rows(spec.chunk_length)
    chunks = []
    for index in range(count):
        starts = (index * 200 + np.arange(rows) * 2) % (world.shape[1] - 84)
        columns = {column.name: np.zeros((rows, *column.shape), column.dtype) for column in spec.columns}
        columns["observation"] = np.stack([world[:, start : start + 84] for start in starts])
        for row in range(rows):
            y, x = generator.integers(0, 76, 2)
            columns["observation"][row, y : y + 8, x : x + 8] = 255
        columns["valid"][:] = 1
        columns["episode_step"][:] = np.arange(rows) + 1000
        columns["reward"][:] = generator.random(rows)
        chunks.append(Chunk(0, spec.chunk_length, columns))
    return chunks


def write(run_dir: RunDir, seconds: float, items: int) -> None:
    """The writer process: prints acknowledged items per second over `seconds`, or writes `items` and ends."""
    keep_memory()
    spec = read_spec(run_dir.spec.read_bytes())
    chunks = make_chunks(spec, 32)
    address = run_dir.wait_for_endpoint("replay", lambda: False)
    writer = ExperienceWriter(str(address), f"writer-{os.getpid()}", new_incarnation(), spec, streams=8)
    while not writer.has_credit:
        writer.poll(0.1)
    begun, sent = time.monotonic(), 0
    while time.monotonic() - begun < seconds and (not items or sent < items):
        if writer.has_credit:
            chunk = chunks[(sent // spec.chunk_length) % len(chunks)]
            writer.insert(chunk)
            sent += chunk.length
        writer.poll(0 if writer.has_credit else 0.05)
    elapsed, acknowledged = time.monotonic() - begun, writer.acknowledged_steps
    while writer.outstanding:
        writer.poll(0.1)
    print(acknowledged / elapsed)
    writer.close()


def sample(run_dir: RunDir, seconds: float) -> None:
    """The sampler process: prints items per second, priorities going back included."""
    spec = read_spec(run_dir.spec.read_bytes())
    address = run_dir.wait_for_endpoint("replay", lambda: False)
    sampler = Sampler(str(address), "learner", new_incarnation(), spec, BATCH, 3)
    while (batch := sampler.next(1.0)) is None:
        pass
    generator = np.random.default_rng(0)
    begun, items = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        if batch is not None:
            items += len(batch.arrays["key"])
            sampler.update_priorities(batch.arrays["key"], generator.random(BATCH, np.float32))
            sampler.release(batch)
        batch = sampler.next(1.0)
    print(items / (time.monotonic() - begun))
    sampler.close()


def bare_gather(spec: ExperienceSpec, seconds: float) -> float:
    """Items per second of random windows, one thread, nothing else."""
    window = spec.stack + spec.n_step
    frames = np.zeros((CAPACITY * spec.rows(spec.chunk_length) // spec.chunk_length, 84, 84), np.uint8)
    frames += 1  # touch every page
    out = np.zeros((BATCH * window, 84, 84), np.uint8)
    generator = np.random.default_rng(0)
    begun, items = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        starts = generator.integers(0, len(frames) - window, BATCH)
        np.take(frames, (starts[:, None] + np.arange(window)).reshape(-1), axis=0, out=out, mode="clip")
        items += BATCH
    return items / (time.monotonic() - begun)


class Bench:
    """A replay server of its own for every case."""

    def __init__(self, folder: Path, seconds: float, codec: str) -> None:
        self.seconds, self.spec = seconds, make_spec(codec)
        self.run_dir = RunDir(folder / "bench")
        self.run_dir.create()
        config = ReplayConfig(
            capacity=CAPACITY,
            min_size=BATCH,
            samples_per_insert_low=0.0,
            samples_per_insert_high=math.inf,
            codec=codec,  # type: ignore[arg-type]
        )
        self.run_dir.config.write_text(tomli_w.dumps({"seed": 0, "replay": msgspec.to_builtins(config)}))
        self.run_dir.spec.write_bytes(msgspec.json.encode(self.spec))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A process of this benchmark's."""
        return subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)

    def role(self, role: str, items: int = 0, seconds: float | None = None) -> subprocess.Popen[str]:
        """A writer or sampler."""
        seconds = self.seconds if seconds is None else seconds
        return self.start(
            "benchmarks.replay", "--role", role, "--run-dir", str(self.run_dir.path), f"--seconds={seconds}", f"--items={items}"
        )

    def case(self, *roles: str) -> list[float]:
        """Rates of the roles, all at once, on a server filled with PREFILL items."""
        self.run_dir.remove_sockets()
        server = self.start("replay", str(self.run_dir.path))
        try:
            figure(self.role("writer", items=PREFILL, seconds=600.0))
            return [figure(process) for process in [self.role(role) for role in roles]]
        finally:
            server.terminate()
            server.communicate(timeout=READY_SECONDS)


def figure(process: subprocess.Popen[str]) -> float:
    """The number that a role prints at its end."""
    text, _ = process.communicate(timeout=660)
    if process.returncode:
        raise RuntimeError(f"{process.args} ended with {process.returncode}")
    return float(text.split()[-1])


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and runs a role, or everything."""
    parser = argparse.ArgumentParser(
        prog="headrace bench replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement (default 5)")
    parser.add_argument("--runs", type=int, default=3, help="measurements of each case; the median is reported (default 3)")
    parser.add_argument("--codec", choices=["none", "lz4", "zstd"], default="lz4", help="compression of frames on the wire")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--role", choices=["writer", "sampler"], help=argparse.SUPPRESS)
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--items", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.role == "writer":
        write(RunDir(options.run_dir), options.seconds, options.items)
        return 0
    if options.role == "sampler":
        sample(RunDir(options.run_dir), options.seconds)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.seconds, options.codec)
        report = measure(bench, options.runs)
        bench.run_dir.remove_sockets()
    report.print(options.json)
    return 0


def measure(bench: Bench, runs: int) -> Report:
    """Every case, `runs` times, in turn, so that a drift of the machine's speed meets all alike."""
    chunk = make_chunks(bench.spec, 1)[0]
    packed = sum(map(len, pack_chunk(bench.spec, chunk)))
    rows = bench.spec.rows(chunk.length)
    report = Report("replay")
    report.notes.append(
        f"frames 84x84, compressed {rows * bench.spec.row_bytes / packed:.1f}x; items of stack 4 + n-step 3; batch {BATCH}"
    )
    figures: dict[str, list[float]] = {name: [] for name in ("gather", "insert", "sample", "insert_both", "sample_both")}
    for run in range(runs):
        print(f"run {run + 1} of {runs} …", file=sys.stderr)
        figures["gather"].append(bare_gather(bench.spec, bench.seconds))
        figures["insert"] += bench.case("writer")
        figures["sample"] += bench.case("sampler")
        insert, draw = bench.case("writer", "sampler")
        figures["insert_both"].append(insert)
        figures["sample_both"].append(draw)
    gather = report.add("bare gather, no wire", "items", "items/s", figures["gather"])
    report.add("one writer alone", "inserts", "steps/s", figures["insert"])
    alone = report.add("one sampler alone", "samples", "items/s", figures["sample"])
    report.add("writer and sampler together", "inserts", "steps/s", figures["insert_both"])
    report.add("writer and sampler together", "samples", "items/s", figures["sample_both"])
    report.ratio("one sampler alone", "samples", "bare gather", alone / gather)
    return report


if __name__ == "__main__":
    sys.exit(main())
