"""An environment of someone else's package that forbids actions: in training, evaluation and by hand none of them arrives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.extension.test_environments import headrace
from transport.experience import ACTION_MASK, Categorical, read_spec

pytestmark = [pytest.mark.flow, pytest.mark.timeout(900)]

ENV = ("--env", "stranger.guarded:Guarded")
FROM_INFO = (*ENV, "--env.where", "info", "--env.wrappers", "actors.envs.foreign.masks:MaskFromInfo")
SMALL = "--actors 1 --actors.chunk-seconds 0.5 --algorithm.hidden 16 --device cpu --evaluator.enabled false --run mine".split()
DQN = "--replay.capacity 20_000 --replay.min-size 200 --learner.batch-size 32".split()
BEST = 36.0  # nine steps, each by the highest action


OTHER = pytest.param(FROM_INFO, ("ppo", "--learner.batch-size", "512"), marks=pytest.mark.slow)


@pytest.mark.parametrize(("env", "algorithm"), [(ENV, ("dqn", *DQN)), OTHER])
def test_no_forbidden_action_arrives(
    env: tuple[str, ...], algorithm: tuple[str, ...], tmp_path: Path, said: Callable[..., str]
) -> None:
    told = headrace(tmp_path, "up", *env, "--algo", *algorithm, *SMALL, "--total-steps", "3000")
    assert "Box(10) -> 5 masked actions" in told or "place(10) -> 5 masked actions" in told
    run = tmp_path / "runs" / "mine"
    spec = read_spec((run / "spec.json").read_bytes())
    assert spec.action == Categorical(5, masked=True) and spec.field(ACTION_MASK).shape == (5,)
    for flags in ((), ("--stochastic",), ("--random",)):
        lines = said("eval", "mine", "--episodes", "40", "--json", *flags).splitlines()
        figures = json.loads(next(line for line in lines if line.startswith("{")))
        assert figures["episodes"] == 40 and 0 < figures["return_mean"] < BEST
    for log in (run / "logs").rglob("*.log"):
        assert "forbidden action" not in log.read_text(), log


def test_a_picture_of_it_is_drawn_by_allowed_actions(tmp_path: Path, said: Callable[..., str]) -> None:
    said("envs", "--check", ENV[1], "--picture", "seen.png")
    assert (tmp_path / "seen.png").stat().st_size > 1000


def test_an_algorithm_without_masks_is_refused_in_one_line_before_the_launch(tmp_path: Path, said: Callable[..., str]) -> None:
    refused = said("up", *ENV, "--algo", "stranger.qr:QrDqn", *SMALL, status=2)
    why = "stranger.guarded:Guarded has 5 masked actions, and --algo stranger.qr:QrDqn has no masked actions: --algo dqn or ppo"
    assert why in refused and "Traceback" not in refused and not (tmp_path / "runs").exists()
    refused = said("up", "--env", "CartPole-v1", "--env.wrappers", FROM_INFO[-1], *SMALL, status=2)
    assert "the environment's info has no action_mask" in refused and "Traceback" not in refused
