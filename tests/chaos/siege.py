"""A replay process under attack: a real server, an honest actor's writer beside the attacker, and proof of what it has stored."""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from replay import __main__ as replay
from replay.client.writer import ExperienceWriter
from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.table.ring import Ring
from tests.harness.replay import ReplayProcess
from tests.harness.waiting import wait_until
from tests.replay.examples import every_item, make_spec
from transport.experience import Chunk
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir

SPEC = make_spec(length=16, stack=1, n_step=1)
CONFIG = ReplayConfig(min_size=1, capacity=400_000, samples_per_insert_low=0, samples_per_insert_high=1e9)
CHUNKS_PER_SECOND = 100


def numbered_chunk(number: int) -> Chunk:
    """The chunk of a stream without an end whose rows count up."""
    rows = number * SPEC.chunk_length + np.arange(SPEC.rows(SPEC.chunk_length))
    columns = {column.name: np.zeros((len(rows), *column.shape), column.dtype) for column in SPEC.columns}
    columns["position"][:], columns["valid"][:], columns["episode_step"][:] = rows, 1, rows
    return Chunk(0, SPEC.chunk_length, columns)


class Honest(threading.Thread):
    """An actor that takes 1,600 steps a second, numbered by their rows, and hands them over."""

    def __init__(self, address: str, seconds: float) -> None:
        """`seconds`: of steps, at most."""
        super().__init__(name="honest", daemon=True)
        self._address = address
        self._most_chunks = int(seconds * CHUNKS_PER_SECOND)
        self._leaving = threading.Event()
        self.acknowledged = 0  # steps
        self.inserted = 0  # chunks
        self.error: Exception | None = None

    def run(self) -> None:
        """Until it is told to leave; then waits for the last acknowledgement."""
        writer = ExperienceWriter(self._address, "actor-0", new_incarnation(), SPEC, 1)
        began = time.monotonic()
        try:
            while not self._leaving.is_set() and self.inserted < self._most_chunks:
                writer.poll(0.005)
                while self.inserted < (time.monotonic() - began) * CHUNKS_PER_SECOND and writer.has_credit:
                    writer.insert(numbered_chunk(self.inserted))
                    self.inserted += 1
                self.acknowledged = writer.acknowledged_steps
            deadline = time.monotonic() + 20
            while writer.outstanding and time.monotonic() < deadline:
                writer.poll(0.01)
            self.acknowledged = writer.acknowledged_steps
        except Exception as error:
            self.error = error
        writer.close()

    def rate(self, seconds: float) -> float:
        """Steps acknowledged per second, over so long from now."""
        before, began = self.acknowledged, time.monotonic()
        time.sleep(seconds)
        return (self.acknowledged - before) / (time.monotonic() - began)

    def leave(self) -> None:
        """Hands over the rest. Raises what went wrong."""
        self._leaving.set()
        self.join(30)
        if self.error:
            raise self.error


class Siege(ReplayProcess):
    """`with Siege(path, "tcp") as siege: …`: a server of its own process, and an honest writer where one is asked for."""

    def __init__(self, path: Path, scheme: str = "ipc", config: ReplayConfig = CONFIG, descriptors: int = 0) -> None:
        """`descriptors`: how many the server may have; 0 for as many as here."""
        super().__init__(path, SPEC, config)
        self._arguments = scheme, str(descriptors)
        self._honest: list[Honest] = []
        self.outcome: dict[str, int] = {}  # once it has ended: steps of the honest writer that are `lost` and `doubled`

    def serve(self) -> None:
        """Starts the server, again after it has died."""
        self.start("tests.chaos.siege", *self._arguments)
        wait_until(lambda: self.bound, what="replay is bound")

    def __enter__(self) -> Siege:
        self.serve()
        return self

    def honest(self, seconds: float) -> Honest:
        """One that is at work; waits for its first acknowledgement."""
        made = Honest(self.address, seconds)
        self._honest.append(made)
        made.start()
        wait_until(lambda: made.acknowledged > 0, what="the honest writer is served")
        return made

    @property
    def resident(self) -> int:
        """Bytes of memory that the server holds."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def end(self) -> dict[str, float]:
        """The honest writer hands over the rest, then the server ends in order. Returns the server's last record."""
        self._honest[0].leave()
        record = self.stop()
        table = Ring(SPEC, CONFIG, seed=0)
        journal = Journal(self.run_dir.segments, table, CONFIG, lambda: False)
        positions = every_item(table)["observation/position"][:, 0].astype(np.int64)
        journal.close(lambda: journal.counters)
        acknowledged = self._honest[0].acknowledged
        times = np.bincount(positions, minlength=acknowledged)
        self.outcome = {"lost": int((times[:acknowledged] == 0).sum()), "doubled": int((times > 1).sum())}
        return record

    @property
    def sound(self) -> bool:
        """True if no acknowledged step of the honest writer was lost and none is stored twice."""
        return self.outcome == {"lost": 0, "doubled": 0}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share lies."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> int:
    """`python -m tests.chaos.siege RUN_DIR SCHEME DESCRIPTORS`: replay, at a loopback port if so wanted, with few descriptors."""
    scheme, descriptors = sys.argv[2], int(sys.argv[3])
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, descriptors), descriptors))
    if scheme == "tcp":
        RunDir.bind_address = lambda run, role: "tcp://127.0.0.1:*"  # type: ignore[method-assign,assignment]
    del sys.argv[2:]  # the rest is for this module
    return replay.main()


if __name__ == "__main__":
    sys.exit(main())
