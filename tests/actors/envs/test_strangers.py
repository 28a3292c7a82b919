"""Environments of other people: each works, from the pre-flight to an update of the learner, or is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.agent import Stack
from actors.chunker import Chunker
from actors.config import EnvConfig, EvaluatorConfig
from actors.envs.vector import VectorEnv
from actors.errors import EnvError
from learner.algorithms.base import Needs
from learner.algorithms.dqn.config import DqnConfig
from learner.config import LearnerConfig
from learner.feed.batches import to_device
from replay.client.base import SampledBatch
from replay.config import ReplayConfig
from replay.table.inbox import check_chunk
from replay.table.layout import layout
from replay.table.ring import Ring
from tests.actors.playing import TOYS, spec_of, tried, vector
from tests.actors.toy_envs import NOTHING, BreaksLater, Falls, Flagged
from tests.learner.examples import figures, make_update
from transport.compression import pack_chunk, unpack_chunk
from transport.experience import Categorical, Chunk, ExperienceSpec

WORK = """ManyChoices Switches Mixture Doubles Halves Integers Flags Bytes Scalar FloatPicture TinyPicture ListedPicture OnePixel
StackedPictures OneStep LargeRewards LongEpisodes WholeReward BreaksDown NoOptions""".split()
REFUSED = {
    "MixedActions": "Dict actions that mix choices and floats are not supported",
    "MaskedKeyboard": "'action_mask': a mask is of at most 1,024 combinations",
    "HugePicture": "ResizeObservation",
    "Empty": "is empty",
    "Text": "Text spaces are not supported",
    "ArrayReward": "it must be one finite number: return float(reward)",
    "NoReward": "the reward None; it must be one finite number",
    "OverflowingReward": "1e+39; it must be one finite number",
    "NoSeed": "reset must take a seed",
    "NoInfo": "reset must return (observation, info)",
    "OldStep": "that is the old Gym API",
    "WrongDtype": "gave observation of float64; its observation_space says uint8",
    "NoSuchChoice": "choice -1 of 4",
}
CPU = torch.device("cpu")
STREAMS, ITEMS = 2, 8


def learn(spec: ExperienceSpec, env: VectorEnv, steps: int, updates: int) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    """Actor, wire, table and learner in one process."""
    torch.manual_seed(0)
    dqn = make_update(spec, DqnConfig(hidden=16), LearnerConfig(batch_size=ITEMS))
    table = Ring(spec, ReplayConfig(capacity=5_000, min_size=1, budget_bytes=10**9), seed=0)
    chunker, stack = Chunker(spec, STREAMS, 60.0), Stack(spec, STREAMS)
    observation = env.reset()
    stack.reset(observation)
    chunks: list[Chunk] = []
    random = np.random.default_rng(0)
    assert isinstance(spec.action, Categorical)
    for _ in range(steps):
        seen = {name: torch.from_numpy(rows) for name, rows in stack.stacked.items()}
        best = dqn.policy(seen).argmax(1).numpy()
        action = np.where(random.random(STREAMS) < 0.5, random.integers(spec.action.n, size=STREAMS), best)
        step = env.step(action)
        last = step.final_observation
        chunks += chunker.step(observation, action, step.reward, step.terminated, step.truncated, last, 1, {})
        stack.push(step.observation, step.terminated | step.truncated)
        observation = step.observation
    for chunk in [*chunks, *chunker.drain(observation, 1)]:
        arrived = Chunk(chunk.stream, chunk.length, unpack_chunk(spec, chunk.length, pack_chunk(spec, chunk)))
        check_chunk(spec, arrived)
        table.insert(arrived)
    arrangement = layout(spec, ITEMS)
    slot = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
    measured = []
    for _ in range(updates):
        table.sample(slot)
        metrics, priorities = dqn.update(to_device(SampledBatch(0, 0, slot), spec, CPU))
        assert table.update_priorities(slot["key"], priorities.numpy()) == ITEMS
        measured.append(metrics)
    return dqn, measured


@pytest.mark.parametrize("name", WORK)
def test_it_is_played_sent_and_learned_from(name: str) -> None:
    config = EnvConfig(id=f"{TOYS}:{name}")
    spec = spec_of(config, Needs(n_step=3))
    env = VectorEnv(config, spec, STREAMS, [1, 2])
    dqn, measured = learn(spec, env, steps=40, updates=3)
    env.close()
    for metrics in measured:
        assert all(bool(value.isfinite()) for value in metrics.values())
        assert float(metrics["ignored"]) == 0
    assert figures(dqn)["skipped_updates"] == 0
    assert all(bool(parameter.isfinite().all()) for parameter in dqn.policy.parameters())


def test_rewards_of_a_million_are_learned_from_in_steps_of_the_usual_size() -> None:
    config = EnvConfig(id=f"{TOYS}:LargeRewards")
    spec = spec_of(config, Needs(n_step=3))
    dqn, measured = learn(spec, VectorEnv(config, spec, STREAMS, [1, 2]), steps=200, updates=200)
    assert float(measured[-1]["loss"]) > 1_000
    torch.manual_seed(0)
    before = make_update(spec, DqnConfig(hidden=16)).policy.parameters()
    moved = [float((one - other).detach().abs().max()) for one, other in zip(dqn.policy.parameters(), before, strict=True)]
    assert max(moved) < 200 * 1e-4 * 3  # Adam moves a weight by about the learning rate, however large the error
    q = dqn.policy({"observation": torch.zeros(1, 1, 3)})[0]
    assert int(q.argmax()) == 1  # and the right action is found


def test_bounds_are_held_against_an_environment_only_where_they_decide_what_is_stored(tmp_path: Path) -> None:
    assert tried(tmp_path, "OutOfBounds").error == ""
    message = tried(tmp_path, {"id": f"{TOYS}:OutOfBounds", "quantise": True}).error
    assert "step gave observation[1] = 7.5; its observation_space says -1 to 1" in message and "env.quantise off" in message


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_before_launch_in_one_line_that_says_why(name: str, tmp_path: Path) -> None:
    message = tried(tmp_path, name).error
    assert REFUSED[name] in message and f"{TOYS}:{name}" in message and "\n" not in message


@pytest.mark.parametrize("name", [*WORK, "Keyboard", "Cockpit", "Limbs", "Chatty", "Talker"])
def test_what_works_passes_the_pre_flight(name: str, tmp_path: Path) -> None:
    assert tried(tmp_path, name).facts is not None


def test_the_largest_values_are_told(tmp_path: Path) -> None:
    facts = tried(tmp_path, "Nanoseconds").facts
    assert facts is not None and facts.largest_reward == 2.5
    assert facts.largest_observation == pytest.approx(1.7e18)


def test_a_slow_one_makes_fewer_steps_in_the_pre_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_ENV_SECONDS", "0.3")
    assert tried(tmp_path, {"id": f"{TOYS}:Slow", "preflight_seconds": 1.0}).facts is not None  # twenty: six seconds


@pytest.mark.parametrize("notices", [False, True])
def test_an_episode_is_cut_before_what_is_not_finite_and_said_to_be(notices: bool) -> None:
    env = vector({"id": f"{TOYS}:BreaksDown", "notices": notices}, 1)
    env.reset()
    steps = [env.step(np.zeros(1, np.int64)) for _ in range(61)]
    ends = [number for number, step in enumerate(steps) if step.episodes]
    assert ends == [29, 59] and env.broken == 2
    last = steps[29]
    assert last.truncated[0] and not last.terminated[0] and last.reward[0] == 0
    assert np.allclose(last.final_observation["observation"], 0.29) and last.episodes[0].total_reward == 29
    assert np.isfinite(steps[30].observation["observation"]).all()


def falling(monkeypatch: pytest.MonkeyPatch, at: str, raised: Any) -> VectorEnv:
    """Three environments."""
    for name, value in {"made": 0, "closed": 0, "at": at}.items():
        monkeypatch.setattr(Falls, name, value)
    env = vector(f"{TOYS}:Falls", 3, raised=raised)
    env.reset()
    return env


@pytest.mark.parametrize(
    ("at", "ends", "broken"), [("step", [(30, 1), (50, 0), (50, 2), (80, 1)], 1), ("reset", [(50, 0), (50, 1), (50, 2)], 0)]
)
def test_an_environment_that_raises_costs_its_own_episode_alone(
    at: str, ends: list[tuple[int, int]], broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    env = falling(monkeypatch, at, said.append)
    steps = [env.step(np.zeros(3, np.int64)) for _ in range(90)]
    episodes = [(number + 1, episode) for number, step in enumerate(steps) for episode in step.episodes]
    assert [(number, episode.env) for number, episode in episodes] == ends
    assert env.broken == broken == sum(episode.broken for _, episode in episodes)
    assert len(said) == (1 if broken else 3)
    assert Falls.made == 1 + 3 + len(said) and Falls.closed == 1 + len(said), "of the probe, and of those that failed"
    assert all("the simulator has gone" in line and f"failed in {at}" in line and "toy_envs.py:" in line for line in said)
    if broken:
        last, (_, cut) = steps[29], episodes[0]
        assert last.truncated.tolist() == [False, True, False] and last.reward.tolist() == [1, 0, 1]
        assert (last.final_observation["observation"][1] == 29).all() and cut.total_reward == 29
    env.close()


def test_environments_that_raise_without_end_fill_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    env = falling(monkeypatch, "reset", said.append)
    for _ in range(1_000):
        env.step(np.zeros(3, np.int64))
    assert Falls.made > 1 + 3 + 50 and len(said) == 4
    assert "failed in reset for the 10th time here, and is made anew: " in said[3]


@pytest.mark.parametrize(("at", "renews"), [("every step", True), ("step", False)])
def test_an_environment_that_raises_again_at_once_or_may_not_be_renewed_raises(
    at: str, renews: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = falling(monkeypatch, at, print if renews else None)
    with pytest.raises(ConnectionError, match="has gone"):
        for _ in range(30):
            env.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("flag", ["False", "", None, [], np.array([True]), 2, np.nan, torch.tensor(True)])
def test_an_end_that_is_neither_true_nor_false_is_refused_at_once_and_later(
    flag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Flagged, "flag", flag)
    assert "step gave terminated = " in tried(tmp_path, "Flagged").error
    env = vector(f"{TOYS}:Flagged", 1, raised=print)
    env.reset()
    with pytest.raises(EnvError, match="it must be True or False"):
        for _ in range(2):  # after the first it is made anew
            env.step(np.zeros(1, np.int64))


@pytest.mark.parametrize("flag", [True, np.True_, 1, 1.0, np.float32(1), np.array(True), np.int64(1)])
def test_an_end_may_be_any_true_number_and_success_has_two_names(flag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flagged, "flag", flag)
    env = vector(f"{TOYS}:Flagged", 1)
    env.reset()
    step = env.step(np.zeros(1, np.int64))
    assert step.terminated[0] and step.episodes[0].success is True


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (
            (np.zeros(1, np.float32), 0.0, False, False, {}),
            "step gave observation of shape (1,); its observation_space says (3,)",
        ),
        ((NOTHING, np.array([1.0]), False, False, {}), "it must be one finite number: return float"),
        ((NOTHING, 0.0, False, False, None), "step must return a dict as info, not None"),
    ],
)
def test_a_step_that_leaves_the_api_later_is_one_line_and_costs_its_own_episode(
    later: tuple[object, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BreaksLater, "later", later)
    said: list[str] = []
    env = vector(f"{TOYS}:BreaksLater", 1, raised=said.append)
    env.reset()
    ends = [number for number in range(1, 121) if env.step(np.zeros(1, np.int64)).truncated[0]]
    assert ends == [50, 100] and env.broken == len(said) == 2
    assert all(words in line and "failed in step, and is made anew" in line for line in said)
    env = vector(f"{TOYS}:BreaksLater", 1)
    env.reset()
    with pytest.raises(EnvError) as refusal:
        for _ in range(60):
            env.step(np.zeros(1, np.int64))
    assert words in str(refusal.value)


def test_an_evaluation_of_what_never_ends_comes_to_an_end() -> None:
    env = vector(f"{TOYS}:Endless", 2, evaluation=EvaluatorConfig(max_episode_steps=7))
    env.reset()
    episodes = [episode for _ in range(14) for episode in env.step(np.zeros(2, np.int64)).episodes]
    assert [episode.length for episode in episodes] == [7, 7, 7, 7]
