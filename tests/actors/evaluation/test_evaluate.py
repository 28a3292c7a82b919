"""Evaluation: fair counting, greedy play, honest intervals, and the figures' names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
import tomli_w
import torch
from gymnasium import spaces
from msgspec import structs

from actors.config import ActorProcess, ActorsConfig, ActorSettings, EnvConfig, EvaluatorConfig
from actors.envs.foreign.families import Factory
from actors.envs.foreign.in_turn import MOST_GROUP
from actors.envs.make import env_section, make_env
from actors.envs.mario.family import Mario
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from actors.episodes import Episode
from actors.evaluation.evaluate import ENVIRONMENTS, PolicyPlayer, environments, main, play
from actors.evaluation.lines import read_lines
from actors.evaluation.options import EvaluationOptions, to_arguments
from actors.evaluation.summary import describe, figures_of, interval, mean_interval, summarise
from benchmarks.common.settings import write_settings
from learner.algorithms.base import ActingPolicy, Mode
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.networks.base import PolicyModule
from learner.weights import checkpoint
from tests.learner.acting import Acting
from transport.experience import ExperienceSpec, write_spec
from transport.names import Named
from transport.run_dir import RunDir

ALGORITHM = DqnConfig(hidden=4, dueling=False, n_step=1)
HERE = "tests.actors.evaluation.test_evaluate"
LONGEST = 10
DEFAULTS = EvaluatorConfig()
DQN = {"run": "r", "env": "e", "algorithm": "dqn", "policy_version": 1, "stochastic": False}


class Balance(gymnasium.Env):
    """A pole that falls to one side or the other: +1 per step on which it was caught, over at the first that was not."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return self._lean(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        caught = (self.angle > 0) == (action == 0)
        self.now += 1
        over = self.now >= LONGEST
        info = {"is_success": caught and over, "score": 100.0 * self.now}
        return self._lean(), float(caught), not caught, caught and over, info

    def _lean(self) -> np.ndarray:
        self.angle = float(self.np_random.choice([-1.0, 1.0]))
        return np.array([self.angle], np.float32)


class Uneven(gymnasium.Env):
    """Every second environment's episodes last one step, the others' thirty. Says nothing of success."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self.length = 30 if seed % 2 else 1
        self.now = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.now += 1
        return np.zeros(1, np.float32), 1.0, self.now >= self.length, False, {}


class Spoilt(Uneven):
    """Episodes of three steps: one is won, one breaks at its end, one is won, one says nothing. All scores are infinite."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.played = getattr(self, "played", -1) + 1
        self.now = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.now += 1
        over = self.now == 3
        kind = self.played % 4
        info = {"score": np.inf} if kind == 3 else {"score": np.inf, "is_success": True}
        return np.full(1, np.nan if over and kind == 1 else 0, np.float32), 1.0, over, False, info


class Silent(Uneven):
    """Wins its first episode only, and says nothing of success in the others."""

    length = 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.first = not hasattr(self, "first")
        self.now = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"is_success": True} if self.first else {}


class Odd(Uneven):
    """Gives the same info each time."""

    info: dict[str, Any] = {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], self.info


class WaitsForAButton(Uneven):
    """Pays one step, and then nothing for ever."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.now += 1
        return np.zeros(1, np.float32), float(self.now == 1), False, False, {}


class Fails(Balance):
    """Raises in its 40th step, and prints all the time: by Python and past it."""

    steps = 0
    fails_at = 40

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        print("a step")
        os.write(1, b"a step, past Python\n")
        if self.steps == self.fails_at:
            raise ValueError("the pole\nis broken")
        return super().step(action)


class Unmade(Balance):
    def __init__(self) -> None:
        raise FileNotFoundError("no level\nlevel.bin")


class Talks(Fails):
    fails_at = 0


def make_settings(kind: str) -> ActorSettings:
    env = EnvConfig(id=f"{HERE}:{kind}")
    spec = experience_spec(make_env(env), env, "none")
    return ActorSettings(0, ActorProcess(1, {}, {}), env, Named("dqn", ALGORITHM), spec)


def make_network(settings: ActorSettings, right: float = 1.0) -> PolicyModule:
    """Q(x, 0) = relu(right * x), Q(x, 1) = relu(-right * x): the side to which the pole leans, or its opposite."""
    network = q_network(settings.spec, ALGORITHM).eval()
    torso, trunk, head = (parameter for parameter in network.parameters() if parameter.dim() == 2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        torso[:2, 0] = torch.tensor([right, -right])
        trunk[:2, :2] = torch.eye(2)
        head[:, :2] = torch.eye(2)
    return network


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of Balance that has no weights yet."""
    run = RunDir(tmp_path / "mine")
    run.create()
    settings = make_settings("Balance")
    sections = {"env": env_section(settings.env), "algorithm": ALGORITHM, "actors": settings.process.actors}
    run.config.write_text(tomli_w.dumps({"seed": 1} | msgspec.to_builtins(sections)))
    run.spec.write_bytes(write_spec(settings.spec))
    write_settings(run, {"seed": 1} | msgspec.to_builtins(sections))
    return run


def write_weights(run: RunDir, right: float = 1.0) -> None:
    metadata = {"policy_version": "42", "algorithm": "dqn"}
    checkpoint.write(run.latest, make_network(make_settings("Balance"), right).state_dict(), metadata)


def played_in(env: VectorEnv, policy: ActingPolicy, spec: ExperienceSpec, episodes: int, mode: Mode = "greedy") -> list[Episode]:
    policy.assign(3, 0, env.count, env.count)
    return [episode for ended in play(env, PolicyPlayer(spec, policy, env.count, mode), episodes) for episode in ended]


def play_all(settings: ActorSettings, network: PolicyModule, episodes: int, epsilon: float) -> list[Episode]:
    config = msgspec.structs.replace(ALGORITHM, epsilon_base=epsilon, epsilon_power=0.0)
    policy = Acting(settings.spec, config, network).policy
    env = environments(settings, min(ENVIRONMENTS, episodes), EvaluatorConfig())
    return played_in(env, policy, settings.spec, episodes, "explore")


def test_every_environment_plays_its_share_so_that_short_episodes_do_not_count_more() -> None:
    settings = make_settings("Uneven")
    played = play_all(settings, make_network(settings), 20, 0.0)
    # Twenty over eight: the first four play three each. Whoever ends first would else have played nearly all of them.
    assert Counter(episode.env for episode in played) == {k: 3 if k < 4 else 2 for k in range(8)}
    assert Counter(episode.length for episode in played) == {1: 10, 30: 10}
    assert summarise(played)["return_mean"] == 15.5
    silent = summarise(played)
    assert silent["success_rate"] is None and silent["success_ci95"] is None and silent["score_mean"] == silent["return_mean"]
    assert "success" not in describe(DQN | silent)
    few = play_all(settings, make_network(settings), 3, 0.0)
    assert sorted(episode.env for episode in few) == [0, 1, 2]


def test_greedy_play_does_what_the_network_prefers_and_exploration_errs_now_and_then() -> None:
    settings = make_settings("Balance")
    good = summarise(play_all(settings, make_network(settings), 40, 0.0))
    assert (good["return_mean"], good["return_std"], good["success_rate"], good["score_mean"]) == (LONGEST, 0, 1, 1000)
    bad = summarise(play_all(settings, make_network(settings, right=-1.0), 40, 0.0))
    assert (bad["return_mean"], bad["length_mean"], bad["success_rate"]) == (0, 1, 0)
    random, again = (play_all(settings, make_network(settings), 40, 1.0) for _ in range(2))
    assert 0 < summarise(random)["return_mean"] < LONGEST / 2 and random == again, "by its seed"


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [  # Newcombe 1998 (doi:10.1002/(SICI)1097-0258(19980430)17:8<857::AID-SIM777>3.0.CO;2-E), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_is_wilson_s(successes: int, episodes: int, low: float, high: float) -> None:
    assert interval(successes, episodes) == pytest.approx((low, high), abs=5e-5)
    mirrored = interval(episodes - successes, episodes)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_the_interval_of_a_mean_ends_where_the_episodes_end() -> None:
    returns = [500.0] * 9 + [310.0]
    episodes = [Episode(0, each, 1, each, None) for each in returns]
    figures = summarise(episodes)
    known = [figures[f"return_{part}"] for part in ("min", "max")]
    assert mean_interval(figures["return_mean"], figures["return_std"], 10, None, None)[1] > 515
    low, high = mean_interval(figures["return_mean"], figures["return_std"], 10, *known)
    assert 440 < low < 481 < high == 500
    assert mean_interval(5.0, 0.1, 10, 6.0, 4.0) == (5.0, 5.0), "a damaged file"


def test_figures_have_names_that_others_rely_on_and_a_form_for_people(
    run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    write_weights(run_dir)
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=12, json=True))) == 0
    figures = json.loads(capsys.readouterr().out)
    names = {"run", "env", "algorithm", "policy_version", "episodes", "stochastic", "return_mean", "return_std"}
    names |= {"length_mean", "success_rate", "success_ci95", "score_mean"}
    assert names <= figures.keys()
    assert (figures["run"], figures["env"]) == ("mine", f"{HERE}:Balance")
    assert (figures["algorithm"], figures["policy_version"], figures["episodes"]) == ("dqn", 42, 12)
    assert figures["stochastic"] is False
    assert (figures["return_mean"], figures["success_rate"]) == (LONGEST, 1.0)
    assert figures["success_ci95"] == pytest.approx([12 / (12 + 1.959964**2), 1.0])
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=9, stochastic=True))) == 0
    told = capsys.readouterr().out
    assert f"mine: {HERE}:Balance by dqn, policy v42, 9 episodes (stochastic)" in told and "95% interval" in told


def test_random_actions_need_no_weights_and_are_called_what_they_are(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=9, random=True, json=True))) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["algorithm"], figures["policy_version"], figures["stochastic"]) == ("random", None, True)
    assert 0 < figures["return_mean"] < LONGEST
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=9, random=True))) == 0
    assert "by actions at random, 9 episodes" in capsys.readouterr().out


def test_a_run_remembers_what_was_measured_of_its_own_weights_acting_greedily(run_dir: RunDir) -> None:
    write_weights(run_dir)
    other = run_dir.path / "other.safetensors"
    other.write_bytes(run_dir.latest.read_bytes())
    for chosen in (
        EvaluationOptions(episodes=9, stochastic=True),
        EvaluationOptions(episodes=9, random=True),
        EvaluationOptions(episodes=9, weights=str(other)),
        EvaluationOptions(episodes=9, env={"max_episode_steps": 3}),
    ):
        assert main(to_arguments(run_dir, chosen)) == 0 and not run_dir.evaluated.exists()
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=9))) == 0
    (line,) = read_lines(run_dir.evaluated)
    assert (line["policy_version"], line["episodes"], line["return_mean"], line["return_std"]) == (42, 9, LONGEST, 0.0)


def played_by(kind: str, episodes: int, config: EvaluatorConfig = DEFAULTS) -> dict[str, Any]:
    """The figures of an evaluation of one environment."""
    settings = make_settings(kind)
    policy, env = Acting(settings.spec, ALGORITHM, make_network(settings)).policy, environments(settings, 1, config)
    return figures_of(env, played_in(env, policy, settings.spec, episodes))


def test_an_episode_that_breaks_or_says_nothing_is_no_success_where_others_report_it() -> None:
    figures = played_by("Spoilt", 8)
    assert (figures["success_rate"], figures["broken_episodes"], figures["episodes"]) == (0.5, 2, 8)
    assert figures["success_ci95"] == pytest.approx(interval(4, 8))
    assert figures["return_mean"] == 2.75, "a broken episode keeps what it gave before"
    assert figures["score_mean"] == figures["return_mean"], "an infinite score is no score"
    assert "broken   2 episodes" in describe(DQN | figures)


def test_a_success_reported_once_makes_silence_a_failure_ever_after() -> None:
    assert played_by("Silent", 4)["success_rate"] == 0.25
    settings = make_settings("Silent")
    policy, env = Acting(settings.spec, ALGORITHM, make_network(settings)).policy, environments(settings, 1, DEFAULTS)
    first, later = (played_in(env, policy, settings.spec, 2) for _ in range(2))
    assert summarise(first, env.reports_success)["success_rate"] == 0.5
    assert summarise(later)["success_rate"] is None and summarise(later, env.reports_success)["success_rate"] == 0


def test_where_a_family_reports_success_silence_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Factory, "reports_success", True)
    assert played_by("Uneven", 4)["success_rate"] == 0
    monkeypatch.setattr(Factory, "success_name", "flag_rate")
    assert played_by("Uneven", 4)["flag_rate"] == 0
    assert (Mario.success_name, Mario.reports_success) == ("flag_rate", True)


def test_what_an_environment_misuses_is_none_of_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "info", {"is_success": np.nan, "score": 10**400})
    figures = played_by("Odd", 3)
    assert figures["success_rate"] == 0 and figures["score_mean"] == figures["return_mean"]
    monkeypatch.setattr(Odd, "info", {"group": "\x1b[31m" + "x" * 1_000})  # would colour a terminal, and fill it
    assert list(played_by("Odd", 2)["by_tier"]) == ["x" * MOST_GROUP]


def test_an_episode_that_gives_no_reward_for_long_is_cut_off_and_counted() -> None:
    figures = played_by("WaitsForAButton", 2, EvaluatorConfig(max_idle_steps=50))
    assert (figures["length_mean"], figures["idle_episodes"], figures["return_mean"]) == (51, 2, 1)
    figures = played_by("WaitsForAButton", 2, EvaluatorConfig(max_idle_steps=0, max_episode_steps=90))
    assert (figures["length_mean"], figures["idle_episodes"]) == (90, 0)
    assert played_by("WaitsForAButton", 1)["length_mean"] == EvaluatorConfig().max_idle_steps + 1, "by default, too"


def use(run: RunDir, kind: str) -> None:
    """Has the run evaluated in another environment of this file."""
    settings = json.loads(run.settings("evaluator").read_text())
    settings["env"]["id"] = f"{HERE}:{kind}"
    run.settings("evaluator").write_text(json.dumps(settings))


def test_what_was_played_before_an_environment_raised_is_reported_with_status_1(
    run_dir: RunDir, capfd: pytest.CaptureFixture[str]
) -> None:
    write_weights(run_dir)
    use(run_dir, "Fails")
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=100, json=True))) == 1
    told = capfd.readouterr()
    figures = json.loads(told.out.splitlines()[-1])
    assert figures["episodes"] == 24 and figures["success_rate"] == 1, "eight environments, three episodes each until step 40"
    error = told.err.splitlines()[-1]
    assert error.startswith(f"headrace: 24 of 100 episodes of {make_settings('Fails').env.id} could be played: ValueError: ")
    assert "the pole is broken" in error and f"{__file__}:" in error


@pytest.mark.parametrize(("asked", "made"), [(0, 8), (1, 1), (3, 3), (16, 8)])
def test_an_evaluation_makes_no_more_environments_than_an_actor_is_asked_to(asked: int, made: int) -> None:
    settings = make_settings("Balance")
    settings = replace(settings, process=structs.replace(settings.process, actors=ActorsConfig(envs_per_actor=asked)))
    env = environments(settings, ENVIRONMENTS, EvaluatorConfig())
    assert env.count == made
    env.close()


def test_json_is_strict_also_where_scores_are_beyond_floats(
    run_dir: RunDir, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_weights(run_dir)
    use(run_dir, "Odd")
    monkeypatch.setattr(Odd, "info", {"score": 1.7e308})  # finite, but not the sum of several
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=8, json=True))) == 0

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    figures = json.loads(capfd.readouterr().out.splitlines()[-1], parse_constant=refuse)
    assert figures["score_mean"] == figures["return_mean"]


@pytest.mark.parametrize(("kind", "words"), [("Fails", "no episode of"), ("Unmade", "FileNotFoundError: no level level.bin (")])
def test_an_environment_that_raises_at_once_is_one_line_and_status_2(
    kind: str, words: str, run_dir: RunDir, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fails, "fails_at", 1)
    write_weights(run_dir)
    use(run_dir, kind)
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=2, json=True))) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"headrace: {words}") and error.count("\n") == 1


@pytest.mark.flow
def test_stdout_has_the_figures_alone_whatever_a_simulator_prints(run_dir: RunDir) -> None:
    write_weights(run_dir)
    use(run_dir, "Talks")
    command = [sys.executable, "-m", "actors.evaluation.evaluate"]
    command += to_arguments(run_dir, EvaluationOptions(episodes=9, json=True))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and json.loads(done.stdout)["episodes"] == 9
    assert "a step\n" in done.stderr and "a step, past Python\n" in done.stderr


def test_what_cannot_be_evaluated_is_one_line_and_status_2(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(weights: str = "") -> str:
        assert main(to_arguments(run_dir, EvaluationOptions(episodes=2, weights=weights))) == 2
        told = capsys.readouterr()
        assert told.out == "" and told.err.startswith("headrace: ") and told.err.count("\n") == 1
        return told.err

    assert "run mine has written no weights yet" in refused()
    write_weights(run_dir)
    older = Path(__file__).parents[2] / "headrace" / "older" / "format1-dqn.safetensors"
    assert "made for CartPole-v1, with another experience spec" in refused(str(older))
    whole = run_dir.latest.read_bytes()
    run_dir.latest.write_bytes(whole[:-1])
    assert "truncated" in refused()
    other = q_network(make_settings("Balance").spec, DqnConfig(hidden=5))
    checkpoint.write(run_dir.latest, other.state_dict(), {"policy_version": "1"})
    assert "weights of another network" in refused()
    write_weights(run_dir)
    path = run_dir.settings("evaluator")
    path.write_text(path.read_text().replace(":Balance", ":Ballance"))
    assert "has no Ballance" in refused()
