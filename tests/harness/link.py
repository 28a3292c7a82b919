"""A replay server and its clients over a real socket, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import pytest

from replay.client.base import SampledBatch
from replay.client.sampler import Sampler
from replay.client.writer import ExperienceWriter
from replay.config import ReplayConfig, ReplayProcess
from replay.server.server import ReplayServer
from tests.harness.address import local_address
from tests.harness.waiting import PATIENCE_SECONDS, TURN_SECONDS, Clock, wait_until
from transport.experience import Chunk, ExperienceSpec
from transport.lifetime import new_incarnation
from transport.metrics import Metrics


class Link:
    """A server that turns whenever somebody waits; everything is closed at the end."""

    def __init__(self, folder: Path, spec: ExperienceSpec, config: ReplayConfig) -> None:
        self.spec, self.config = spec, config
        self.address = local_address(folder, "replay")
        self.opened: list[ExperienceWriter | Sampler] = []
        self.server: ReplayServer | None = None
        self.clock: Clock | None = None

    def tell_time(self, patch: pytest.MonkeyPatch) -> Clock:
        """From now on server and clients go by a clock that each turn moves by TURN_SECONDS."""
        self.clock = Clock()
        for module in ("client.writer", "client.sampler", "server.server", "server.writers", "table.inbox", "table.limiter"):
            patch.setattr(f"replay.{module}.time", self.clock)
        return self.clock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        for end in self.opened:
            end.close()
        if self.server:
            self.server.close()

    def serve(self, config: ReplayConfig | None = None, folder: Path | None = None, leased: int = 0) -> ReplayServer:
        if self.server:
            self.server.close()
        self.metrics = Metrics()
        settings = ReplayProcess(0, config or self.config, leased)
        self.server = ReplayServer(self.spec, settings, self.address, new_incarnation(), self.metrics, folder)
        return self.server

    def writer(self, name: str = "actor-0", spec: ExperienceSpec | None = None, streams: int = 1) -> ExperienceWriter:
        writer = ExperienceWriter(self.address, name, new_incarnation(), spec or self.spec, streams)
        self.opened.append(writer)
        return writer

    def sampler(
        self, shared: bool = True, slots: int = 2, batch_size: int = 8, name: str = "learner", spec: ExperienceSpec | None = None
    ) -> Sampler:
        sampler = Sampler(self.address, name, new_incarnation(), spec or self.spec, batch_size, slots, shared)
        self.opened.append(sampler)
        return sampler

    def begin(
        self, config: ReplayConfig | None = None, folder: Path | None = None, streams: int = 1
    ) -> tuple[ReplayServer, ExperienceWriter]:
        """A server, and a writer that has credit."""
        server, writer = self.serve(config, folder), self.writer(streams=streams)
        self.until(lambda: writer.has_credit, writer)
        return server, writer

    def send(self, writer: ExperienceWriter, chunks: Iterable[Chunk]) -> None:
        """Inserts chunks, and returns when they are acknowledged."""
        for chunk in chunks:
            writer.insert(chunk)
        self.until(lambda: not writer.outstanding, writer)

    def batch(self, sampler: Sampler, *writers: ExperienceWriter) -> SampledBatch:
        """The next batch."""
        found: list[SampledBatch] = []
        self.until(lambda: found.extend(filter(None, [sampler.next(0)])) or found, *writers)
        return found[0]

    def leave(self, end: ExperienceWriter | Sampler) -> None:
        """Closes a client before the end."""
        end.close()
        self.opened.remove(end)

    def until(self, true: Callable[[], object], *writers: ExperienceWriter, seconds: float = PATIENCE_SECONDS) -> None:
        def turned() -> bool:
            if self.clock:
                self.clock.now += TURN_SECONDS
            if self.server:
                self.server.turn(0.001)
            for writer in writers:
                writer.poll()
            return bool(true())

        # A clock of the test runs five times as fast as time, at most: messages need their time between the processes' threads.
        turn_seconds = 0.001 if not self.server else TURN_SECONDS / 5 if self.clock else 0.0
        wait_until(turned, seconds, "the link", turn_seconds=turn_seconds)
