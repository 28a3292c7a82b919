"""The kinds of run that a browser is shown: live, finished, three compared, in trouble, empty."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from msgspec import structs

from deploy import runs as known_runs
from deploy.config.files import Layer, write_config
from deploy.config.layers import resolve
from deploy.recorded.run import RecordedRun
from deploy.views.web.report import report
from deploy.views.web.server import Steering, WebServer
from tests.deploy.views.web.made_up import made_up, with_videos
from transport.experience import Categorical, ExperienceSpec, observed, write_spec
from transport.messages.control import Seen, What
from transport.run_dir import RunDir

KINDS = ("live", "finished", "compared", "in-trouble", "empty")
SPEC = ExperienceSpec(
    (observed("frame", (84, 84), "|u1", 1 / 255), observed("joints", (6,), "<f4")), Categorical(4), 128, stack=4
)
SEEN = Seen("actor-0", 1, 7, 42, 31.5, "action value", (1.5, 0.25, float("nan"), -2.0), ("left", "right", "up", "down"), None)


class Shown:
    """Runs that a server shows, and `done`: its buttons that were pressed."""

    def __init__(self, *runs: RunDir) -> None:
        self.runs = {run.name: run for run in runs}
        self.others: dict[str, RunDir] = {}
        self.done: list[tuple[str, str, int]] = []
        self.steered: list[Steering] = []

    def all(self) -> Mapping[str, RunDir]:
        return dict(self.runs)

    def beside(self) -> Mapping[str, RunDir]:
        return self.runs | self.others

    def first(self) -> str | None:
        return next(iter(self.runs), None)

    def scale(self, run: RunDir, actors: int) -> str:
        self.done.append(("scale", run.name, actors))
        return f"{actors} actors"

    def order(self, run: RunDir, what: What) -> str:
        self.done.append((what, run.name, 0))
        return f"{what} is done"

    def stop(self, run: RunDir) -> str:
        self.done.append(("stop", run.name, 0))
        return "stopping"

    def steer(self, run: RunDir, steering: Steering) -> tuple[Seen, Sequence[bytes]] | str:
        self.steered.append(steering)
        found = self.look(run, steering.actor)
        return (
            found if isinstance(found, str) else (structs.replace(found[0], steered=True, keys=("left  to the left",)), found[1])
        )

    def look(self, run: RunDir, actor: str) -> tuple[Seen, Sequence[bytes]] | str:
        self.done.append((actor, run.name, 0))
        if actor == "actor-3":
            return "actor-3 rests"
        frames = np.add.outer(np.arange(4) * 30, np.add.outer(np.arange(84), np.arange(84))).astype(np.uint8)
        return SEEN, [frames.tobytes(), np.linspace(-1, 1, 24, dtype=np.float32).tobytes()]


@contextmanager
def address_of(kind: str, folder: Path) -> Iterator[str]:
    """The address of a page of this kind of run: of a server, which ends with the block, or of a file."""
    with ExitStack() as ending:
        if kind == "finished":
            run = with_videos(made_up(folder / "finished", seconds=1800), {1: 5.0, 2: 9.0})
            yield _written(folder, run)
        elif kind == "compared":
            slow = [made_up(folder / f"slow-{seed}", seed=seed) for seed in (1, 2)]
            yield _written(folder, *slow, made_up(folder / "fast-1", speed=1.8, learner__learning_rate=0.01))
        else:
            yield ending.enter_context(served(MAKERS[kind](folder / kind)))


@contextmanager
def served(run: RunDir, *others: RunDir) -> Iterator[str]:
    """The link to a server that shows runs, of which the first counts as up."""
    with known_runs.locked(run):
        shown = Shown(run, *others)
        server = WebServer(shown, shown)
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server.access.link(server.address, control=True)
        finally:
            server.stop()
            thread.join()


def _written(folder: Path, *runs: RunDir) -> str:
    found = [RecordedRun(run) for run in runs]
    for one in found:
        one.read()
    path = folder / "report.html"
    path.write_text(report(found), encoding="utf-8")
    return path.as_uri()


def _live(folder: Path, troubled: bool = False) -> RunDir:
    run = made_up(folder, state="running", actors=4, troubled=troubled)
    if troubled:
        hosts = [("host-0", "joined", 3), ("host-1", "silent", 1), *((f"host-{number}", "waiting", 0) for number in range(2, 14))]
        status = json.loads(run.status.read_bytes())
        status["hosts"] = [{"name": name, "state": state, "places": 4, "actors": actors} for name, state, actors in hosts]
        run.status.write_text(json.dumps(status))
    run.spec.write_bytes(write_spec(SPEC))
    return run


def _empty(folder: Path) -> RunDir:
    """A run whose processes have not begun."""
    run = RunDir(folder)
    run.create()
    layer = Layer("command line", {"env": {"id": "CartPole-v1"}, "algorithm": {"name": "dqn"}})
    run.config.write_bytes(write_config(resolve([layer])))
    return run


MAKERS: Mapping[str, Callable[[Path], RunDir]] = {
    "live": _live,
    "in-trouble": lambda folder: _live(folder, troubled=True),
    "empty": _empty,
}
