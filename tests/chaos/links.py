"""Writers of the counting environment's chunks, a server, faults between them, histories and a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from replay.config import ReplayProcess as ReplaySettings
from replay.server.server import ReplayServer
from tests.chaos.checker import Verdict, check
from tests.chaos.history import recording
from tests.chaos.streams import CountingStream, Feeder, counting_replay
from tests.harness.message_proxy import Chances, MessageProxy
from tests.harness.proxy import TcpProxy
from tests.harness.waiting import PATIENCE_SECONDS
from transport.experience import ExperienceSpec
from transport.lifetime import new_incarnation
from transport.metrics import Metrics


class Feeders(ExitStack):
    """Writers in this process that feed a replay server, wherever that runs, and what becomes of it all."""

    def __init__(self, folder: Path, spec: ExperienceSpec) -> None:
        """Records every writer's history."""
        super().__init__()
        self.folder, self.spec = folder, spec
        self.histories, self.log = folder / "histories", folder / "log"
        self.histories.mkdir()
        self.feeders: list[Feeder] = []
        self.enter_context(recording(self.histories))

    def add(self, address: str, count: int = 1) -> None:
        """So many more actors."""
        for _ in range(count):
            identity = len(self.feeders)
            stream = CountingStream(self.spec, identity)
            feeder = Feeder(address, f"actor-{identity}", new_incarnation(), stream, self.spec)
            self.feeders.append(feeder)
            self.callback(feeder.writer.close)

    def turn(self, feeding: bool = True) -> None:
        """Everyone sends what they may; with `feeding` False nothing new."""
        for feeder in self.feeders:
            feeder.turn(feeding)

    def until(self, true: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS, feeding: bool = True) -> None:
        """Goes on, without a pause, until something is so."""
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            self.turn(feeding)

    def go_on(self, seconds: float) -> None:
        """For so long."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, "the time is over", seconds + 30)

    def all_go_on(self, seconds: float = PATIENCE_SECONDS) -> float:
        """Until more of everyone has been acknowledged; returns how long that took."""
        began, before = time.monotonic(), self.acknowledged
        self.until(lambda: all(now > then for now, then in zip(self.acknowledged, before, strict=True)), "all go on", seconds)
        return time.monotonic() - began

    def drain(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Until everything that was sent has been acknowledged."""
        self.until(lambda: not self.outstanding, "all acknowledged", seconds, feeding=False)

    @property
    def outstanding(self) -> int:
        """Chunks not acknowledged, of all."""
        return sum(feeder.writer.outstanding for feeder in self.feeders)

    @property
    def acknowledged(self) -> list[int]:
        """Steps of each."""
        return [feeder.writer.acknowledged_steps for feeder in self.feeders]

    def verdict(self) -> Verdict:
        """Of what is on disk; replay must have ended."""
        return check(self.log, self.spec, self.histories)


class Served(Feeders):
    """With the server in this process, turned whenever somebody waits."""

    def __init__(self, folder: Path, spec: ExperienceSpec, **replay: Any) -> None:
        """Binds to loopback TCP."""
        super().__init__(folder, spec)
        self.metrics = Metrics()
        config = counting_replay(**replay)
        settings, log = ReplaySettings(0, config), self.log if config.durable else None
        self.server = ReplayServer(spec, settings, "tcp://127.0.0.1:*", new_incarnation(), self.metrics, log)
        self.callback(self.server.close)

    def proxy(self) -> TcpProxy:
        """Between the server and whoever is given its address."""
        return self.enter_context(TcpProxy(self.server.address))

    def message_proxy(self, up: Chances, down: Chances) -> MessageProxy:
        """The same for whole messages."""
        return self.enter_context(MessageProxy("tcp://127.0.0.1:*", self.server.address, up, down))

    def turn(self, feeding: bool = True) -> None:
        """Of everyone, the server first."""
        self.server.turn(0.001)
        super().turn(feeding)

    def verdict(self) -> Verdict:
        """Ends everything first."""
        self.close()
        return super().verdict()
