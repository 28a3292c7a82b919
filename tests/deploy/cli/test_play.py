"""headrace play: what it starts, and mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.person.options import PersonOptions
from deploy.cli import main as cli
from deploy.cli.experience import play


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[PersonOptions]:
    """What the process would be told."""
    found: list[PersonOptions] = []

    def child(module: str, text: str, **more: Any) -> int:
        found.append(msgspec.json.decode(text, type=PersonOptions))
        return 0

    monkeypatch.setattr(play, "child", child)
    monkeypatch.chdir(tmp_path)
    return found


def test_the_environment_is_that_of_a_run_with_these_flags(started: list[PersonOptions]) -> None:
    assert cli.main(["play", "mario:1-2", "--env.actions", "right", "--env.max-episode-steps", "50", "--fps", "20"]) == 0
    assert cli.main(["play", "--env", "CartPole-v1", "--out", "c.npz", "--seed", "7"]) == 0
    mario, cart = started
    assert (mario.env["id"], mario.env["actions"], mario.env["max_episode_steps"], mario.fps) == ("mario:1-2", "right", 50, 20.0)
    assert mario.flags == "--env mario:1-2 --env.max-episode-steps 50 --env.actions right"
    assert re.fullmatch(r"play/mario-1-2-\d{8}-\d{6}\.npz", Path(mario.out).as_posix())
    assert (cart.env["id"], cart.out, cart.seed, cart.episodes) == ("CartPole-v1", "c.npz", 7, 0)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ([], "name the environment"),
        (["CartPole-v1", "--out", "c.txt"], ".npz"),
        (["CartPole-v1", "--out", "nowhere/c.npz"], "no folder nowhere"),
        (["CartPole-v1", "--fps", "-1"], "--fps"),
        (["mario", "--env.wings", "9"], "did you mean --env.actions"),
    ],
)
def test_a_mistake_is_one_line(
    typed: list[str], why: str, started: list[PersonOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["play", *typed]) == 2 and not started
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1
