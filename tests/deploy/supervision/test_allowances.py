"""Runs of actors that report twice a second and take as many steps as they may, without processes."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.config.run import RunConfig
from deploy.reporting.remote import RemoteActors
from deploy.supervision.service import Service
from deploy.supervision.steps import Allowances, StepCount
from transport.messages.control import Allowance, Progress

TOTAL, ENOUGH_REPORTS = 12_000, 200


@dataclass
class Acting:
    """An actor. It reads a limit with the report after the one that it answers, as a process does."""

    name: str
    speed: int  # steps between two reports
    taken: int = 0
    limit: int = 0
    unread: int = 0
    incarnation: int = 1

    def report(self, allowances: Allowances, collected: int, present: set[str]) -> None:
        self.taken += max(min(self.limit - self.taken, self.speed), 0)
        self.limit = self.unread
        report = Progress(self.name, self.incarnation, "ready", 1, {}, self.taken)
        self.unread = allowances.renewed(report, collected, present)


@pytest.mark.parametrize("before", [0, 9_000])
@pytest.mark.parametrize(
    ("speeds", "dies"),
    [
        ((5_000,), ""),
        ((5_000, 5_000), ""),
        ((20, 5_000), ""),
        ((0, 3_000), ""),
        ((0, 3_000), "dies"),
        ((900, 900, 9_000), "restarts"),
    ],
    ids=["alone", "alike", "slow", "hung", "dies", "restarts"],
)
def test_actors_take_what_is_left_of_a_run_and_hardly_more(before: int, speeds: tuple[int, ...], dies: str) -> None:
    allowances, lost = Allowances(TOTAL, before), 0
    actors = [Acting(f"actor-{index}", speed) for index, speed in enumerate(speeds)]
    collected = seen = before
    for turn in range(ENOUGH_REPORTS):
        if turn == 3 and dies == "dies":
            lost += actors.pop(0).taken
        if turn == 3 and dies == "restarts":
            lost += actors[0].taken
            actors[0] = Acting("actor-0", speeds[0], incarnation=2)
        present = {actor.name for actor in actors}
        for actor in actors:
            actor.report(allowances, seen, present)  # replay's last report is older than the actors'
        seen, collected = collected, before + lost + sum(actor.taken for actor in actors)
        if seen >= TOTAL:
            break
    assert TOTAL <= collected <= 1.02 * TOTAL
    assert turn < ENOUGH_REPORTS - 1


def test_a_run_whose_replay_has_lost_steps_goes_on_to_its_end() -> None:
    allowances, actor = Allowances(TOTAL, 0), Acting("actor-0", 5_000)
    lost = 3_000  # acknowledged, but gone with an incarnation of replay
    for _ in range(ENOUGH_REPORTS):
        actor.report(allowances, max(actor.taken - lost, 0), {"actor-0"})
    assert actor.taken - lost >= TOTAL


def test_actors_that_were_started_by_hand_share_what_is_left() -> None:
    silent: Any = SimpleNamespace(pending_order=lambda asked: None, pending_look=lambda asked: None)
    service = Service.__new__(Service)
    service._config, service._steps, service._allowances = RunConfig(total_steps=TOTAL), StepCount(0), Allowances(TOTAL, 0)
    service._remote, service._orders, service._looks = RemoteActors(lambda: 0.0, lambda *line: None), silent, silent
    actor: Any = SimpleNamespace(name="actor-0", spec=SimpleNamespace(role="actor"), process=object())
    service.supervisor = SimpleNamespace(slots=[actor], stopping=False, slot=lambda name: actor if name == "actor-0" else None)  # type: ignore[assignment]
    assert service.on_remote_progress(Progress("actor-100", 7, "ready", 1, {}, 0)) == Allowance(TOTAL // 2)
    service._config = RunConfig()
    assert service.on_remote_progress(Progress("actor-100", 7, "ready", 2, {}, 0)) is None
