"""Real runs, started and used from Python."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from tests.headrace import own_env

# One worker has the whole file, as its tests share a run.
pytestmark = [pytest.mark.flow, pytest.mark.timeout(300), pytest.mark.xdist_group("a run from Python")]
STEPS = 3_000
DEADLINE_SECONDS = 120.0
SMALL: dict[str, Any] = {
    "replay": {"min_size": 256},
    "learner": {"batch_size": 64, "updates_per_epoch": 5},
    "evaluator": {"enabled": False},
    "deploy": {"record_seconds": 0.5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory for the whole module, in which `run` has trained."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path := tmp_path_factory.mktemp("work"))
        yield path


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[headrace.Run]:
    started = headrace.train(own_env.make_corridor, "dqn", actors=1, run="corridor", total_steps=STEPS, seed=3, **SMALL)
    yield started
    started.stop()


def test_a_run_is_waited_for_and_tells_what_it_has_done(run: headrace.Run, folder: Path) -> None:
    status = run.wait(DEADLINE_SECONDS)
    assert status["state"] == "stopped" and status["steps"] >= STEPS and not run.is_up
    assert status["env"] == "tests.headrace.own_env:make_corridor" and status["algorithm"] == "dqn"
    assert run.path == folder / "runs" / "corridor" and run.status() == status
    run.stop()  # of a run that is over: nothing happens


def test_a_policy_acts_on_plain_observations_one_or_many(run: headrace.Run) -> None:
    run.wait(DEADLINE_SECONDS)
    policy = run.policy()
    env = own_env.make_corridor()
    observation, _ = env.reset(seed=1)
    one = policy.predict(observation)
    assert policy.action_space == env.action_space and policy.action_space.contains(one)
    assert policy.observation_space == env.observation_space
    many = policy.predict({"place": np.array([1, 1, 4]), "speed": np.stack([observation["speed"]] * 3)})
    assert many.shape == (3, 2) and (many[0] == one).all() and (many[1] == one).all()
    policy.seed(1)
    drawn = {tuple(policy.predict(observation, deterministic=False)) for _ in range(300)}
    assert len(drawn) > 1
    with pytest.raises(headrace.ConfigurationError, match="shape"):
        policy.predict({"place": np.ones((2, 2, 2)), "speed": observation["speed"]})


def test_a_policy_is_evaluated_in_its_own_or_another_environment(run: headrace.Run) -> None:
    run.wait(DEADLINE_SECONDS)
    figures = headrace.evaluate(run, episodes=5)
    assert {
        "run",
        "env",
        "algorithm",
        "policy_version",
        "episodes",
        "stochastic",
        "return_mean",
        "success_rate",
    } <= figures.keys()
    assert figures["run"] == "corridor" and figures["episodes"] == 5 and figures["policy_version"] >= 0
    env = own_env.make_corridor()
    assert headrace.evaluate(run.policy(), env, episodes=5)["return_mean"] == figures["return_mean"]
    assert headrace.evaluate(run.path, own_env.make_corridor, episodes=5)["return_mean"] == figures["return_mean"]
    section = {"id": own_env.make_corridor, "max_episode_steps": 2}
    assert headrace.evaluate(run, section, episodes=2)["length_mean"] == 2
    with pytest.raises(headrace.ConfigurationError, match="the policy was trained with observations"):
        headrace.evaluate(run, "CartPole-v1", episodes=1)


def test_an_exported_policy_acts_without_the_run_and_the_environment(run: headrace.Run, folder: Path) -> None:
    run.wait(DEADLINE_SECONDS)
    command = [sys.executable, "-m", "headrace", "export", "corridor", "out.safetensors"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    policy = headrace.load("out.safetensors")
    observation, _ = own_env.make_corridor().reset()
    assert (policy.predict(observation) == run.policy().predict(observation)).all()
    assert policy.about["run"] == "corridor" and policy.action_space == own_env.Corridor.action_space
    code = """
import sys
sys.modules["tests.headrace.own_env"] = None  # importing it fails, as on a machine that does not have it
import headrace
print(headrace.load("out.safetensors").predict({"place": 1, "speed": [[0.1, 0.1], [0.1, 0.1]]}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(policy.predict(observation)), done.stderr


def test_a_runs_policy_acts_where_the_environment_is_not_installed(run: headrace.Run, folder: Path) -> None:
    run.wait(DEADLINE_SECONDS)
    code = """
import sys
sys.modules["tests.headrace.own_env"] = None
import headrace
policy = headrace.load("corridor")
print(policy.predict({"place": 1, "speed": [[0.1, 0.1], [0.1, 0.1]]}), policy.env.id)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)
    observation, _ = own_env.make_corridor().reset()
    assert done.stdout.strip() == f"{run.policy().predict(observation)} tests.headrace.own_env:make_corridor", done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_while_a_run_starts_stops_it(folder: Path) -> None:
    waits = "tests.headrace.own_env:Waits"  # so that the run is not up before the signal arrives
    settings = SMALL | {"deploy": {"stop_seconds": 2.0}}
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # shells start background jobs without it
    code = f"{heard}; import headrace; headrace.train({waits!r}, actors=1, run='interrupted', **{settings})"
    pipe = subprocess.PIPE
    starting = subprocess.Popen([sys.executable, "-u", "-c", code], cwd=folder, stdout=pipe, stderr=pipe, text=True)
    assert starting.stdout is not None
    shown = next(line for line in starting.stdout if line.startswith("starting run interrupted in the background"))
    starting.send_signal(signal.SIGINT)
    more, errors = starting.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors and "run interrupted is down" in more, shown + more + errors
    assert not headrace.Run(folder / "runs" / "interrupted").is_up


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_is_stopped_again(run: headrace.Run, folder: Path) -> None:
    run.wait(DEADLINE_SECONDS)
    with headrace.train(own_env.make_corridor, run="corridor", total_steps=10**9) as again:
        assert again.path == run.path and again.is_up
        with pytest.raises(headrace.RefusedError, match="already up"):
            headrace.train(own_env.make_corridor, run="corridor")
        with pytest.raises(TimeoutError, match="still up"):
            again.wait(0.5)
    assert not again.is_up and again.status()["steps"] >= STEPS


def test_a_run_that_fails_says_which_process_and_why(folder: Path) -> None:
    with pytest.raises(headrace.RunFailedError) as caught:
        headrace.train(own_env.Breaks, actors=1, run="breaks", **SMALL | {"deploy": {"restarts": 0, "record_seconds": 1.0}}).wait(
            DEADLINE_SECONDS
        )
    assert "actor" in str(caught.value) and "this corridor has collapsed" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not headrace.Run("breaks").is_up


@pytest.mark.slow
def test_code_that_is_in_no_file_trains_too(folder: Path) -> None:
    code = f"""
import headrace
run = headrace.train("CartPole-v1", actors=1, run="typed", total_steps=500, **{SMALL})
print("steps", run.wait({DEADLINE_SECONDS})["steps"] >= 500, run.policy().predict([0, 0, 0, 0]) in (0, 1))
class Torso: pass
try:
    headrace.train(Torso)
except headrace.ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-"], cwd=folder, input=code, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("steps True True") == 1
    assert "other processes cannot import Torso from a notebook or a running script; put Torso into a file" in done.stdout


def test_a_mistake_is_one_line(folder: Path) -> None:
    for settings, words in [
        ({"env": "CartPole-v2"}, "CartPole-v2"),
        ({"env": "CartPole-v1", "algo": "dqm"}, "did you mean dqn?"),
        ({"env": "CartPole-v1", "total_stesp": 5}, "did you mean --total-steps?"),
        ({"env": "CartPole-v1", "learner": {"batch_sise": 5}}, "did you mean --learner.batch-size?"),
    ]:
        with pytest.raises(headrace.ConfigurationError) as caught:
            headrace.train(**settings)  # type: ignore[arg-type]
        assert words in str(caught.value) and "\n" not in str(caught.value)
    for wrong in ("nothing", "nothing.safetensors"):
        with pytest.raises(headrace.ConfigurationError, match="there is no run"):
            headrace.load(wrong)
