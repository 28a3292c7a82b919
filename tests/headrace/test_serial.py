"""Runs in this process, with objects that no other process could import."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from bdb import BdbQuit
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import zmq
from gymnasium import spaces

import headrace
from actors.evaluation.evaluator import Evaluator
from actors.evaluation.video import best
from deploy.cli.main import main
from deploy.serial import reports
from headrace.serial import UNSAVED, names_here
from learner.weights.checkpoint import read
from transport.run_dir import RunDir

SMALL: dict[str, Any] = {
    "serial": True,
    "total_steps": 400,
    "device": "cpu",
    "replay": {"min_size": 128, "capacity": 5_000, "samples_per_insert_low": 1.0, "samples_per_insert_high": 2.0},
    "learner": {"batch_size": 16, "updates_per_epoch": 5},
    "evaluator": {"enabled": False},
}
ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("CartPole-v1", {}),
    "r2d2": ("CartPole-v1", {"learner": {"batch_size": 32, "updates_per_epoch": 5}, "env": {"chunk_length": 16}}),
    "ppo": ("CartPole-v1", {"env": {"chunk_length": 16}}),
    "pqn": ("CartPole-v1", {"env": {"chunk_length": 16}}),
    "reppo": ("Pendulum-v1", {"env": {"chunk_length": 16}}),
    "sac": ("Pendulum-v1", {}),
}


class Sign(gymnasium.Env):
    """The reward is 1 for the action that is the sign of the first number."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, self.taken = float((self.shown[0] > 0) == (action == 1)), self.taken + 1
        return self._observe(), reward, self.taken == 10, False, {}

    def _observe(self) -> np.ndarray:
        self.shown = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.shown


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def weights(run: headrace.Run) -> dict[str, np.ndarray]:
    newest = max(RunDir(run.path).checkpoints.glob("epoch-*"))
    return read(newest)[0]


def train(algorithm: str, **options: Any) -> headrace.Run:
    env, own = ALGORITHMS[algorithm]
    settings = SMALL | own | {"env": {"id": env, **own.get("env", {})}} | options
    return headrace.train(algo={"name": algorithm, "hidden": 16}, **settings)


@pytest.mark.parametrize(("algorithm", "engine"), [*((name, "auto") for name in ALGORITHMS), ("dqn", "torch"), ("ppo", "torch")])
def test_every_algorithm_updates_in_one_process_and_leaves_a_run_that_is_used_like_others(algorithm: str, engine: str) -> None:
    learner = {**SMALL["learner"], **ALGORITHMS[algorithm][1].get("learner", {}), "engine": engine}
    run = train(algorithm, learner=learner)
    status = run.wait()
    assert not run.is_up and status["state"] == "stopped" and status["steps"] >= 400 and status["algorithm"] == algorithm
    assert status["learner"]["updates"] > 0 and status["replay"]["inserted_steps"] > 0 and status["troubles"] == {}
    assert all(np.isfinite(values).all() for values in weights(run).values())
    assert headrace.evaluate(run, episodes=1)["policy_version"] == status["learner"]["policy_version"] > 0
    assert any(RunDir(run.path).tensorboard.iterdir())


def test_no_process_thread_or_socket_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **options: Any) -> None:
        raise AssertionError("a run in one process needs no other")

    for owner, name in (
        (subprocess, "Popen"),
        (multiprocessing.Process, "start"),
        (threading.Thread, "start"),
        (socket.socket, "bind"),
        (zmq.Context, "socket"),
    ):
        monkeypatch.setattr(owner, name, refuse)
    assert train("dqn").status()["state"] == "stopped"


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_the_same_seed_gives_the_same_weights(algorithm: str) -> None:
    first, again, other = (weights(train(algorithm, seed=seed, run=f"run-{k}")) for k, seed in enumerate((5, 5, 6)))
    assert first.keys() == again.keys() and all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_classes_and_functions_may_be_defined_right_here() -> None:
    seen = list[tuple[str, Any]]()

    class Told(headrace.Callbacks):
        def on_metrics(self, point: Any) -> None:
            seen.append(("metrics", point.steps))

        def on_checkpoint(self, path: Path) -> None:
            seen.append(("checkpoint", path.name))

    class Doubled(gymnasium.RewardWrapper):
        def reward(self, reward: Any) -> float:
            return 2 * float(reward)

    run = headrace.train({"id": lambda: Sign(), "wrappers": [Doubled]}, "dqn", callbacks=[Told], **SMALL)
    assert ("metrics", 400) in seen and ("checkpoint", "latest.safetensors") in seen
    policy = run.policy()
    assert policy.predict(np.array([0.1, 0.3], np.float32)) in (0, 1)


def test_an_environment_that_exists_is_stepped_itself_and_left_open() -> None:
    env = Sign()
    env.close = lambda: pytest.fail("it is the user's to close")  # type: ignore[method-assign]
    run = headrace.train(env, "dqn", **SMALL)
    assert hasattr(env, "taken") and run.status()["steps"] == 400, "one environment"


def test_callbacks_that_return_false_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "POINT_SECONDS", 0.0)

    class Enough(headrace.Callbacks):
        def on_metrics(self, point: Any) -> bool:
            return False

    settings = SMALL | {"total_steps": 1_000_000, "deploy": {"record_seconds": 0.5}}
    status = headrace.train(Sign, "dqn", callbacks=Enough, **settings).status()
    assert status["state"] == "stopped" and "Enough.on_metrics returned False" in status["reason"]


@pytest.mark.parametrize("kind", [RuntimeError, FileNotFoundError, ValueError, ZeroDivisionError])
@pytest.mark.parametrize("after", [3, 200])
def test_what_an_environment_raises_is_raised_with_its_own_traceback(kind: type[Exception], after: int) -> None:
    """In the check before the run, and in the run."""
    steps = 0

    class Failing(Sign):
        def step(self, action: int) -> Any:
            nonlocal steps
            steps += 1
            if steps == after:
                raise kind("in the user's step")
            return super().step(action)

    with pytest.raises(kind, match="in the user's step") as caught:
        headrace.train(Failing, "dqn", run="failing", **SMALL)
    assert caught.traceback[-1].name == "step" and {"train", "step"} <= {entry.name for entry in caught.traceback}
    if after > 100:
        status = headrace.Run("failing").status()
        assert status["state"] == "failed" and "in the user's step" in status["reason"]


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_the_run_after_the_update_and_saves_it() -> None:
    sent = list[int]()

    class Interrupting(Sign):
        def step(self, action: int) -> Any:
            if not sent and RunDir(Path("runs/interrupted")).latest.exists():
                sent.append(signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    settings = SMALL | {"total_steps": 1_000_000, "learner": SMALL["learner"] | {"checkpoint_epochs": 1}}
    before = signal.getsignal(signal.SIGINT)
    run = headrace.train(Interrupting, "dqn", run="interrupted", **settings)
    assert run.status()["reason"] == "stopped by you" and run.status()["state"] == "stopped"
    assert run.status()["learner"]["epoch"] == max(int(path.stem[6:]) for path in RunDir(run.path).checkpoints.glob("epoch-*"))
    assert signal.getsignal(signal.SIGINT) == before


def open_files() -> list[str]:
    """Files of runs and memory without a name that this process has open."""
    gc.collect()  # memory lives until the last array
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if "/runs/" in path or "memfd:" in path]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("place", ["on_metrics", "on_checkpoint", "__init__", "environment"])
def test_what_raises_before_the_first_step_or_after_the_last_leaves_a_failed_run_and_nothing_open(place: str) -> None:
    """Callbacks at the last point, in a run that is short; callbacks that are made; and a function that makes environments."""
    made = list[str]()

    def fail(*given: Any) -> None:
        raise RuntimeError("in the user's code")

    def make() -> gymnasium.Env:
        made.extend(["one"] * Path("runs/failing/config.toml").exists())
        if place == "environment" and len(made) == 4:
            fail()
        env = Sign()
        env.close = lambda: closed.append(env)  # type: ignore[method-assign]
        return env

    closed = list[gymnasium.Env]()
    told = type("Told", (headrace.Callbacks,), {"on_metrics": lambda *given: None} | {place: fail})
    before = open_files()
    with pytest.raises(RuntimeError, match="in the user's code"):
        headrace.train(make, "dqn", run="failing", callbacks=told, **SMALL | {"actors": {"envs_per_actor": 5}})
    status = headrace.Run("failing").status()
    assert status["state"] == "failed" and status["reason"] == "RuntimeError: in the user's code"
    assert "run failing failed: RuntimeError" in RunDir(Path("runs/failing")).log("run").read_text().splitlines()[-1]
    assert open_files() == before and len(closed) > 3 * (place == "environment")


@pytest.mark.parametrize("orders", [1, 2])
def test_a_first_ctrl_c_lets_the_last_evaluation_go_on_and_a_second_ends_it(orders: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[bool]()

    def evaluate_last(self: Evaluator, seconds: float) -> None:
        for _ in range(orders):
            signal.raise_signal(signal.SIGINT)
        ended.append(True)

    monkeypatch.setattr(Evaluator, "evaluate_last", evaluate_last)
    with pytest.raises(KeyboardInterrupt) if orders == 2 else nullcontext():
        train("dqn", run="evaluated", evaluator={"episodes": 1})
    assert headrace.Run("evaluated").status()["state"] == "stopped" and len(ended) == 2 - orders


@pytest.mark.parametrize("low", [1.0, 32.0])
def test_environments_are_stepped_where_the_band_has_no_upper_end(low: float) -> None:
    """Once for each batch, or less often where inserts wait for more samples."""
    band = {"samples_per_insert_low": low, "samples_per_insert_high": float("inf")}
    status = train("dqn", replay=SMALL["replay"] | band, actors={"envs_per_actor": 1}).status()
    assert status["steps"] == 400 and 0.8 < 16 * status["learner"]["updates"] / (400 - 128) / max(low, 16) < 1.25


def test_a_terminal_that_is_gone_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*given: Any, **options: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(reports, "print", gone, raising=False)
    run = train("dqn")
    assert run.status()["state"] == "stopped" and "stopped: 400 of 400" in RunDir(run.path).log("run").read_text()


@pytest.mark.parametrize("flag", ["--actors=2", "--web", "--detach", "--resume", "--learner.processes=2", "--replay.shards=2"])
def test_what_needs_other_processes_is_refused_in_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--env", "CartPole-v1", "--serial", flag]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "--serial is one process" in said[0] and not Path("runs").exists()


def test_a_run_of_a_given_name_is_not_overwritten_and_one_without_takes_the_place_of_the_one_before() -> None:
    train("dqn", run="kept")
    with pytest.raises(headrace.ConfigurationError, match="--fresh"):
        train("dqn", run="kept")
    assert train("dqn").name == train("dqn").name == "cartpole-v1-dqn-serial"
    assert Path("runs/cartpole-v1-dqn-serial.1").is_dir()


QUICK = ["--algo=dqn", "--device=cpu", "--serial", "--total-steps=300", "--replay.min-size=128", "--evaluator.enabled=false"]


@pytest.mark.parametrize("place", ["check", "endless", "network", "run"])
def test_q_in_the_debugger_ends_the_command_quietly(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    steps = 0

    class Stopped(Sign):
        def step(self, action: int) -> Any:
            nonlocal steps
            steps += 1
            if steps == {"check": 3, "endless": 30, "run": 150}.get(place):
                raise BdbQuit
            observation, reward, ended, _, info = super().step(action)
            return observation, reward, ended and place != "endless", False, info

    def network(shapes: Any) -> Any:
        raise BdbQuit

    name = names_here()
    more = [f"--algorithm.network={name(network, 'network')}"] if place == "network" else []
    assert main(["up", "--env", name(Stopped, "env"), "--run", "left", *QUICK, *more]) == 0
    said = capsys.readouterr().err
    assert said == ("" if place == "run" else "headrace: ended in the debugger\n")
    assert place != "run" or headrace.Run("left").status()["reason"] == "ended in the debugger"


def test_weights_of_another_algorithm_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = train("ppo", run="other").path / "checkpoints/latest.safetensors"
    assert main(["up", "--env=CartPole-v1", "--run=refused", f"--learner.weights={path}", *QUICK]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "--learner.weights" in said[0]
    assert headrace.Run("refused").status()["state"] == "failed"


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs").touch()
    assert main(["up", "--env=CartPole-v1", *QUICK]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(headrace.RefusedError):
        train("dqn")


@pytest.mark.parametrize("options", [{"actors": {"envs_per_actor": 8}}, {"evaluator": {"enabled": True}}])
def test_an_environment_that_exists_is_not_taken_for_several(options: dict[str, Any]) -> None:
    with pytest.raises(headrace.ConfigurationError, match="pass a function that makes one"):
        headrace.train(Sign(), "dqn", **SMALL | options)


def test_names_differ_in_one_call_of_train_and_come_again_in_the_next() -> None:
    def make() -> gymnasium.Env:
        return Sign()

    first = make

    def make() -> gymnasium.Env:  # type: ignore[no-redef]
        return Sign()

    def names(*things: object) -> list[str]:
        name = names_here()
        return [name(thing, "env").partition(":")[2] for thing in things]

    assert names(first, make, first) == ["make", "make_2", "make"] and names(make) == ["make"]
    assert names(Sign()) == names(Sign()) == ["Sign"]
    assert sys.modules[UNSAVED].make is make


def test_an_environment_may_change_the_working_directory(tmp_path: Path) -> None:
    class Moving(Sign):
        def reset(self, **given: Any) -> Any:
            (tmp_path / "elsewhere").mkdir(exist_ok=True)
            if RunDir(tmp_path / "runs/moved").config.exists():
                os.chdir(tmp_path / "elsewhere")
            return super().reset(**given)

    run = headrace.train(Moving, "dqn", run="moved", **SMALL)
    assert run.path == (tmp_path / "runs/moved").resolve() and run.status()["state"] == "stopped"


def test_the_best_policy_is_filmed(monkeypatch: pytest.MonkeyPatch) -> None:
    filmed = list[bool]()

    class Camera:
        def due(self, version: int) -> bool:
            return version > 0

        def film(self, go_on: Callable[[], bool]) -> None:
            filmed.append(go_on())

        def close(self) -> None: ...

    monkeypatch.setattr(best, "open_videos", lambda *given: Camera())
    train("dqn", evaluator={"episodes": 1, "videos": 1, "last_seconds": 0})
    assert filmed and filmed[0]


def test_orders_are_refused_with_what_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    statuses = list[int]()

    class Ordered(Sign):
        def step(self, action: int) -> Any:
            if not statuses and RunDir(Path("runs/ordered")).status.exists():
                statuses.extend(main(words) for words in (["pause", "ordered"], ["scale", "2", "ordered"]))
            return super().step(action)

    headrace.train(Ordered, "dqn", run="ordered", **SMALL)
    said = capsys.readouterr().err.splitlines()
    assert (
        statuses == [3, 3] and all("takes no orders; `headrace down ordered` ends it" in line for line in said) and len(said) == 2
    )


def learned(env: Any, threshold: float, **options: Any) -> bool:
    run = headrace.train(env, serial=True, stop_at_return=threshold, device="cpu", **options)
    return "--stop-at-return" in run.status()["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_cartpole_is_learned_in_one_process(algorithm: str) -> None:
    assert learned("CartPole-v1", 450, algo=algorithm, total_steps=100_000, seed=1)


def test_a_run_goes_on_where_its_status_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(reports, "write_atomically", full)
    run = train("dqn")
    assert "stopped: 400 of 400" in RunDir(run.path).log("run").read_text() and any(RunDir(run.path).checkpoints.iterdir())
