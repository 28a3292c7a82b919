"""`headrace up` as a user types it: four real processes from the first line to the last, and what becomes of them when killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from deploy.process import child_environment, python_command
from tests.flow.fleet import wait_until
from transport.run_dir import RunDir

pytestmark = [pytest.mark.flow, pytest.mark.skipif(os.name != "posix", reason="signals"), pytest.mark.timeout(240)]

NAMES = ("replay", "learner", "actor-0", "actor-1")
SETTINGS = """
--algorithm.hidden 16 --actors.envs-per-actor 2 --actors.chunk-seconds 0.5 --replay.capacity 20_000 --replay.min-size 200
--learner.batch-size 32 --learner.updates-per-epoch 10 --learner.checkpoint-epochs 2 --device cpu --seed 3
""".split()
SHARED_MEMORY = Path("/dev/shm")
PATIENCE_SECONDS = 60


def shared_memory() -> set[str]:
    return set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class World:
    """A working directory with one run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = RunDir(folder / "runs" / "mine")
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.shared_memory = shared_memory()
        self.environment = child_environment()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`headrace …`, until it ends."""
        command = python_command("deploy.cli", *arguments)
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=90)

    def start(self) -> None:
        """`headrace up`, unless it is up."""
        if self.supervisor is not None:
            return
        command = python_command("deploy.cli", "up", "--env", "CartPole-v1", "--actors", "2", "--run", "mine", *SETTINGS)
        with (self.folder / "terminal").open("ab") as terminal:
            self.supervisor = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=terminal, stderr=terminal)

    def up(self) -> None:
        """The run with every process at work."""
        self.start()
        self.until(lambda: self.status.get("state") == "running", "every process ready")

    def until(self, true: Any, what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits for a predicate, and gives up at once when the run has ended."""

        def found() -> bool:
            ended = self.supervisor is not None and self.supervisor.poll() is not None
            assert not ended, f"the run has ended:\n{(self.folder / 'terminal').read_text()[-4000:]}"
            return bool(true())

        wait_until(found, seconds, what)

    @property
    def status(self) -> dict[str, Any]:
        """What this life of the supervisor last wrote."""
        try:
            found: dict[str, Any] = json.loads(self.run_dir.status.read_text())
        except (OSError, ValueError):
            return {}
        return found if self.supervisor is not None and found["pid"] == self.supervisor.pid else {}

    def process(self, name: str) -> dict[str, Any]:
        """A process's line in the status."""
        return next((process for process in self.status.get("processes", []) if process["name"] == name), {})

    def pids(self) -> dict[str, int]:
        """The processes of the run by name."""
        return {process["name"]: process["pid"] for process in self.status["processes"]}

    def records(self, name: str) -> list[dict[str, float]]:
        """All that a process has measured, in all its lives."""
        try:
            return [msgspec.json.decode(line) for line in self.run_dir.metrics(name).read_bytes().splitlines()]
        except OSError:
            return []

    def versions(self, name: str) -> list[float]:
        """The policy versions of an actor's records."""
        return [record["policy_version"] for record in self.records(name) if "policy_version" in record]

    def stop(self) -> int:
        """Ctrl-C."""
        assert self.supervisor is not None
        self.supervisor.send_signal(signal.SIGINT)
        try:
            return self.supervisor.wait(30)
        finally:
            self.close()

    def close(self) -> None:
        """Ends what is left, without order."""
        if self.supervisor is not None:
            self.supervisor.kill()
            self.supervisor.wait()
            self.supervisor = None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One run for all tests of this file, to be quick; each asks for it with `up` and so can run alone, too."""
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()
    made.run_dir.remove_sockets()


def test_every_process_prints_its_throughput_within_a_minute(world: World) -> None:
    begun = time.monotonic()
    world.start()
    patterns = {
        "replay": r"replay   \| in [\d,]+ steps/s · out [\d,]+ items/s · size [1-9]",
        "learner": r"learner  \| epoch [\d,]+ · [\d,.]+ updates/s",
        "actor-0": r"actor-0  \| [1-9][\d,]* steps/s \(10 s\)",
        "actor-1": r"actor-1  \| [1-9][\d,]* steps/s \(10 s\)",
    }
    terminal = world.folder / "terminal"
    for name, pattern in patterns.items():
        left = begun + 60 - time.monotonic()
        world.until(lambda pattern=pattern: re.search(pattern, terminal.read_text()), f"{name}'s throughput line", left)
    lines = terminal.read_text().splitlines()
    assert all(re.match(r"\S+ +\| |bottleneck: |run mine |checking |learner on ", line) for line in lines), lines


def test_new_weights_reach_every_actor(world: World) -> None:
    world.up()
    for name in ("actor-0", "actor-1"):
        world.until(lambda name=name: max(world.versions(name), default=0) > 0, f"weights at {name}")


def test_status_has_the_keys_that_others_rely_on(world: World) -> None:
    world.up()
    world.until(lambda: (world.status["learner"]["updates"] or 0) > 0, "a learner's record")
    asked = world.command("status", "--json")
    assert asked.returncode == 0 and asked.stderr == ""
    found = json.loads(asked.stdout)
    top = {"run", "state", "uptime_seconds", "env", "algorithm", "processes", "replay", "learner", "evaluation"}
    assert top <= found.keys()
    own = {"name", "role", "pid", "state", "restarts", "last_exit", "steps_per_second", "rss_bytes", "cpu_percent"}
    assert all(own <= process.keys() for process in found["processes"])
    figures = {"items", "capacity", "bytes", "inserted_steps", "sampled_items", "duplicates", "rejected", "samples_per_insert"}
    assert found["replay"].keys() == figures
    figures = {"epoch", "updates", "updates_per_second", "policy_version", "device", "precision", "data_wait_fraction"}
    assert found["learner"].keys() == figures
    assert {"policy_version", "episodes", "success_rate", "return_mean"} <= found["evaluation"].keys()
    assert (found["run"], found["state"], found["env"], found["algorithm"]) == ("mine", "running", "CartPole-v1", "dqn")
    assert [process["name"] for process in found["processes"]] == [*NAMES, "evaluator"]
    assert all(process["state"] == "ready" and process["rss_bytes"] > 0 for process in found["processes"][:-1])
    assert found["replay"]["items"] > 0 and found["replay"]["duplicates"] == 0 == found["replay"]["rejected"]
    assert found["learner"]["updates"] > 0 and found["learner"]["device"] == "cpu"


def test_a_second_up_of_the_run_is_refused_in_one_line(world: World) -> None:
    world.up()
    before = world.pids()
    second = world.command("up", "--env", "CartPole-v1", "--run", "mine")
    assert second.returncode == 3 and second.stdout == ""
    assert second.stderr.startswith("headrace: run mine is already up") and second.stderr.count("\n") == 1
    assert world.pids() == before


def test_a_killed_actor_is_replaced_while_the_run_goes_on(world: World) -> None:
    world.up()
    world.until(lambda: world.status["replay"]["inserted_steps"], "a record of replay")
    before, steps = world.pids(), world.status["replay"]["inserted_steps"]
    begun = time.monotonic()
    os.kill(before["actor-1"], signal.SIGKILL)
    world.until(
        lambda: world.process("actor-1")["pid"] not in (None, before["actor-1"]) and world.process("actor-1")["state"] == "ready",
        "a new actor-1 at work",
        10,
    )
    assert time.monotonic() - begun < 10
    assert world.process("actor-1")["restarts"] >= 1 and world.process("actor-1")["last_exit"] == "killed by SIGKILL"
    after = world.pids()
    assert {name: after[name] for name in NAMES[:3]} == {name: before[name] for name in NAMES[:3]}
    world.until(lambda: (world.status["replay"]["inserted_steps"] or 0) > steps, "replay takes in more")
    assert world.status["replay"]["rejected"] == 0


def test_a_killed_learner_is_replaced_and_versions_go_on_rising_at_the_actors(world: World) -> None:
    world.up()
    world.until(lambda: world.run_dir.latest.exists() and world.versions("actor-0"), "weights on disk")
    before, actors = world.pids(), {name: len(world.versions(name)) for name in ("actor-0", "actor-1")}
    os.kill(before["learner"], signal.SIGKILL)
    world.until(lambda: world.process("learner")["pid"] not in (None, before["learner"]), "a new learner", 10)
    world.until(lambda: world.process("learner")["state"] == "ready", "the new learner at work")
    highest = {name: max(world.versions(name)) for name in actors}
    for name in actors:
        world.until(lambda name=name: world.versions(name)[-1] > highest[name], f"{name} follows the new learner")
        since = world.versions(name)[actors[name] - 1 :]
        assert since == sorted(since), "an actor went back to older weights"
    assert {name: pid for name, pid in world.pids().items() if name != "learner"} == {
        name: pid for name, pid in before.items() if name != "learner"
    }


def test_no_process_survives_its_supervisor_and_the_next_up_resumes(world: World) -> None:
    world.up()
    world.until(lambda: world.run_dir.latest.exists(), "weights on disk")
    assert world.supervisor is not None
    pids = [child.pid for child in psutil.Process(world.supervisor.pid).children(recursive=True)]
    assert len(pids) >= len(NAMES)
    world.close()
    wait_until(lambda: all(map(gone, pids)), 3, "the end of every process")
    assert json.loads(world.command("status", "--json").stdout)["state"] == "dead"
    world.up()
    assert "resuming run mine after" in (world.folder / "terminal").read_text()
    world.until(lambda: (world.status["learner"]["updates"] or 0) > 0, "the learner goes on")


def test_ctrl_c_ends_the_run_in_time_and_leaves_nothing(world: World) -> None:
    world.up()
    world.until(lambda: world.run_dir.latest.exists(), "weights on disk")
    assert world.supervisor is not None
    pids = [child.pid for child in psutil.Process(world.supervisor.pid).children(recursive=True)]
    begun = time.monotonic()
    assert world.stop() == 0
    assert time.monotonic() - begun < 10
    assert all(map(gone, pids))
    assert not world.run_dir.sockets.exists()
    assert list((world.run_dir.path / "endpoints").iterdir()) == []
    assert not shared_memory() - world.shared_memory
    ending = (world.folder / "terminal").read_text()
    assert "did not stop in time" not in ending and "Traceback" not in ending
    assert json.loads(world.command("status", "--json").stdout)["state"] == "stopped"
    played = world.command("eval", "mine", "--episodes", "5", "--json")
    assert played.returncode == 0, played.stderr
    figures = json.loads(played.stdout)
    assert figures["episodes"] == 5 and figures["policy_version"] > 0 and figures["return_mean"] >= 5
