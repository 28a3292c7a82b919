"""Data sets through whole runs: a run's own experience comes out, and goes into another run."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import headrace
from actors.datasets.base import open_source
from tests.flow.test_run import SETTINGS
from tests.harness.run import World
from transport.run_dir import RunDir

pytestmark = [
    pytest.mark.flow,
    pytest.mark.skipif(os.name != "posix", reason="signals"),
]


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), "CartPole-v1", [*SETTINGS, "--replay.demonstrations", "shown.npz"])
    yield made
    made.close()
    made.run_dir.remove_sockets()


def shown(world: World) -> float:
    """The share of demonstrations in the newest record of replay."""
    return world.records("replay")[-1].get("demonstration_share", 0.0)


def returns(name: str) -> list[float]:
    """The return of each episode of a data set, in its order."""
    return [episode.total for episode in open_source(name).episodes()]


def episodes(world: World, count: int, player: Callable[[np.ndarray], int] | None = None) -> None:
    """shown.npz: episodes of CartPole, with random actions where there is no player, in D4RL's arrays."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    rows: dict[str, list[object]] = {key: [] for key in ("observations", "actions", "rewards", "terminals")}
    for number in range(count):
        observation, _ = env.reset(seed=number)
        ended = False
        while not ended:
            action = player(observation) if player else env.action_space.sample()
            rows["observations"].append(observation)
            rows["actions"].append(action)
            observation, reward, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            rows["rewards"].append(reward)
            rows["terminals"].append(ended)
    np.savez(world.folder / "shown.npz", **{key: np.array(values) for key, values in rows.items()})  # type: ignore[arg-type]


def upright(observation: np.ndarray) -> int:
    """Keeps the pole upright for 500 steps in most episodes."""
    return int(3 * observation[2] + observation[3] > 0)


def test_a_run_learns_with_demonstrations_also_after_its_replay_is_killed_and_when_it_is_resumed(world: World) -> None:
    episodes(world, 30)
    world.up()
    world.until(lambda: world.status["learner"]["updates"], "it learns")
    assert "demonstrations: shown.npz: 30 episodes" in world.text and "beside" in world.text
    world.until(lambda: shown(world) == 0.25, "a quarter of each batch")
    os.kill(before := world.pid("replay"), signal.SIGKILL)
    world.until(lambda: world.process("replay").get("pid") not in (None, before), "replay is back")
    updates = world.status["learner"]["updates"]
    world.until(lambda: world.status["learner"]["updates"] > updates + 20, "it learns on")
    assert world.interrupt() == 0
    (world.folder / "shown.npz").unlink()  # the run has what it needs
    world.supervisor = None
    world.up()
    world.until(lambda: shown(world) == 0.25, "a quarter of each batch, again")
    assert world.interrupt() == 0
    for status in (0, 2):  # the second time the file is there
        out = world.command("dataset", "export", "mine", "--best", "20%", "--out", "best.npz")
        assert out.returncode == status, out.stderr
    whole, best = (returns(str(name)) for name in (world.run_dir.path, world.folder / "best.npz"))
    least = sorted(whole, reverse=True)[math.ceil(0.2 * len(whole)) - 1]
    assert len(whole) > 5 and best == [one for one in whole if one >= least]
    found = json.loads(world.command("dataset", "show", "mine", "--json").stdout)
    assert found["episodes"] == len(whole) and found["return_max"] == max(best)
    assert found["observation"]["shape"] == [4] and found["action"]["n"] == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--replay.demonstrations", "nothing"], "there is no run nothing"),
        (["--replay.demonstrations", "cut.npz"], "no .npz file"),
        (["--replay.demonstrations", "other.npz"], "environment's is [4]"),
        (["--replay.demonstrations", "shown.npz", "--algo", "ppo"], "learns from its own rollouts"),
        (["--replay.demonstration-share", "0.9"], "0.9"),
        (["--replay.demonstrations", "shown.npz", "--learner.clone-steps", "9"], "dqn cannot imitate"),
        (["--replay.demonstrations", "", "--algo", "ppo", "--learner.clone-steps", "9"], "there are none"),
        (["--offline"], "with --replay.demonstrations"),
        (
            ["--offline", "--replay.demonstrations", "shown.npz", "--algo", "ppo"],
            "take --algo dqn or sac",
        ),
        (["--offline", "--replay.demonstrations", "shown.npz", "--actors", "2"], "an offline run has no actors"),
    ],
)
def test_a_data_set_that_does_not_fit_is_one_line_before_anything_starts(words: list[str], reason: str, world: World) -> None:
    episodes(world, 2)
    (world.folder / "cut.npz").write_bytes((world.folder / "shown.npz").read_bytes()[:300])
    found = dict(np.load(world.folder / "shown.npz", allow_pickle=False))
    np.savez(world.folder / "other.npz", **found | {"observations": found["observations"][:, :3]})  # type: ignore[arg-type]
    done = world.command("up", "--env", "CartPole-v1", "--algo", "dqn", "--run", "mine", *words)
    assert done.returncode == 2 and reason in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not world.run_dir.config.exists() and not list((world.folder / "runs").glob(".demonstrations*"))


def test_a_run_in_one_process_learns_with_demonstrations_too(world: World) -> None:
    episodes(world, 20)
    words = ["up", "--env", "CartPole-v1", "--algo", "dqn", "--serial", "--total-steps", "1500", "--run", "one"]
    done = world.command_apart(*words, "--replay.demonstrations", "shown.npz", "--replay.min-size", "200")
    assert done.returncode == 0, done.stderr
    assert "demonstrations: shown.npz: 20 episodes" in done.stdout
    *_, newest = map(json.loads, RunDir(world.folder / "runs" / "one").metrics("replay").read_text().splitlines())
    assert newest["demonstration_share"] == 0.25 and newest["demonstrations"] > 100
    assert headrace.load(world.folder / "runs" / "one").predict(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.slow  # tests/learner/test_cloning.py has the short version
def test_a_run_of_ppo_begins_with_imitation(world: World) -> None:
    episodes(world, 15, upright)
    words = ["up", "--env", "CartPole-v1", "--algo", "ppo", "--serial", "--total-steps", "1", "--run", "one"]
    done = world.command_apart(*words, "--replay.demonstrations", "shown.npz", "--learner.clone-steps", "400")
    assert done.returncode == 0 and "imitates" in done.stdout, done.stderr
    policy = headrace.load(world.folder / "runs" / "one")
    assert headrace.evaluate(policy, episodes=10)["return_mean"] > 150


def test_an_offline_run_has_no_actors_and_learns_what_the_data_set_shows(world: World) -> None:
    episodes(world, 30, upright)
    own = ["--replay.demonstrations", "shown.npz", "--offline", "--evaluator.core-share", "0.9", "--device", "cpu"]
    world.actors, world.settings = 0, own
    world.up()
    world.until(lambda: world.status["learner"]["updates"], "it learns")
    assert not [each for each in world.status["processes"] if each["name"].startswith("actor")]
    os.kill(before := world.pid("replay"), signal.SIGKILL)
    world.until(lambda: world.process("replay").get("pid") not in (None, before), "replay is back")
    world.until(lambda: (world.status["evaluation"].get("return_mean") or 0) > 150, "it keeps the pole upright")
    refused = world.command("scale", "2", "mine")
    assert refused.returncode == 2 and "is offline" in refused.stderr
    assert world.interrupt() == 0
    updates = world.status["learner"]["updates"]
    # A step is an update; those between the last report of a killed replay and its end are not counted.
    assert 100 < world.status["steps"] <= updates + 10
    assert world.command("fsck", "mine").returncode == 0
    world.supervisor = None
    total = int(world.status["steps"]) + 500 if world.status else int(updates) + 500
    world.settings = [*world.settings, "--total-steps", str(total), "--learner.learning-rate", "lin_1e-3"]
    world.start()
    assert world.ended() == 0
    assert f"of {total:,} updates done" in world.text and "replay reads the demonstrations again" in world.text


def test_an_offline_run_in_one_process_is_the_same_each_time(world: World) -> None:
    episodes(world, 20, upright)
    found = []
    for name in ("one", "two"):
        words = ["up", "--env", "CartPole-v1", "--offline", "--serial", "--stop-at-return", "100", "--run", name]
        done = world.command_apart(*words, "--replay.demonstrations", "shown.npz", "--evaluator.core-share", "1")
        assert done.returncode == 0, done.stderr
        assert "algorithm: dqn" in done.stdout and "has reached a return" in done.stdout
        lines = RunDir(world.folder / "runs" / name).metrics("evaluator").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        found.append({(each["policy_version"], each["return_mean"]) for each in records if each.get("return_mean") is not None})
    assert found[0] == found[1] and found[0]
