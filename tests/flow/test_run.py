"""`headrace up` as a user types it: four real processes from the first line to the last, and what becomes of them when killed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest

from deploy.children import THREAD_VARIABLES
from deploy.cli.browser.web import Buttons
from deploy.views.web.look import shown
from tests.harness.run import World
from tests.harness.waiting import gone, shared_memory, wait_until

pytestmark = [
    pytest.mark.flow,
    pytest.mark.xdist_group("a run"),  # all tests here share one
    pytest.mark.skipif(os.name != "posix", reason="signals"),
]

NAMES = ("replay", "learner", "actor-0", "actor-1")
SETTINGS = """
--algorithm.hidden 16 --actors.envs-per-actor 2 --actors.chunk-seconds 0.5 --replay.capacity 20_000 --replay.min-size 200
--learner.batch-size 32 --learner.updates-per-epoch 10 --learner.checkpoint-epochs 2 --device cpu --seed 3
--env.wrappers tests.flow.slow_steps:SlowSteps --deploy.stop-seconds 60
""".split()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One run for all tests of this file, to be quick; each asks for it with `up` and so can run alone, too."""
    made = World(tmp_path_factory.mktemp("world"), "CartPole-v1", SETTINGS)
    yield made
    made.close()
    made.run_dir.remove_sockets()


def test_every_process_prints_its_throughput(world: World) -> None:
    world.start()
    patterns = {
        "replay": r"replay   \| in [\d,]+ steps/s · out [\d,]+ items/s · size [1-9]",
        "learner": r"learner  \| epoch [\d,]+ · [\d,.]+ updates/s",
        "actor-0": r"actor-0  \| [1-9][\d,]* steps/s \(10 s\)",
        "actor-1": r"actor-1  \| [1-9][\d,]* steps/s \(10 s\)",
    }
    terminal = world.terminal
    for name, pattern in patterns.items():
        world.until(lambda pattern=pattern: re.search(pattern, terminal.read_text()), f"{name}'s throughput line")
    lines = terminal.read_text().splitlines()
    assert all(
        re.match(r"\S+ +\| |bottleneck: |run mine |checking |learner on |algorithm: |warning: this run belongs to root", line)
        for line in lines
    ), lines


def test_new_weights_reach_every_actor(world: World) -> None:
    world.up()
    for name in ("actor-0", "actor-1"):
        world.until(lambda name=name: max(world.versions(name), default=0) > 0, f"weights at {name}")


def test_status_has_the_keys_that_others_rely_on(world: World) -> None:
    world.up()
    world.until(lambda: (world.status["learner"]["updates"] or 0) > 0, "a learner's record")
    world.until(lambda: (world.status["replay"]["items"] or 0) > 0, "replay's record of the items that it has")
    asked = world.command("status", "--json")
    assert asked.returncode == 0 and asked.stderr == ""
    found = json.loads(asked.stdout)
    top = {"run", "state", "uptime_seconds", "env", "algorithm", "processes", "replay", "learner", "evaluation"}
    assert top <= found.keys()
    own = {"name", "role", "pid", "state", "restarts", "last_exit", "steps_per_second", "rss_bytes", "cpu_percent"}
    assert all(own <= process.keys() for process in found["processes"])
    figures = {"items", "capacity", "bytes", "inserted_steps", "sampled_items", "duplicates", "rejected", "samples_per_insert"}
    assert found["replay"].keys() == figures | {"quarantined", "human_steps"}
    figures = {"epoch", "updates", "updates_per_second", "policy_version", "device", "precision", "data_wait_fraction"}
    assert found["learner"].keys() == figures
    assert {"policy_version", "episodes", "success_rate", "return_mean"} <= found["evaluation"].keys()
    assert (found["run"], found["state"], found["env"], found["algorithm"]) == ("mine", "running", "CartPole-v1", "dqn")
    assert [process["name"] for process in found["processes"]] == [*NAMES, "evaluator"]
    assert all(process["state"] == "ready" and process["rss_bytes"] > 0 for process in found["processes"][:-1])
    assert found["replay"]["items"] > 0 and found["replay"]["duplicates"] == 0 == found["replay"]["rejected"]
    assert found["learner"]["updates"] > 0 and found["learner"]["device"] == "cpu"


def test_an_actor_shows_the_page_what_it_sees(world: World) -> None:
    world.up()
    found: list[object] = []

    def seen() -> bool:
        answer = Buttons().look(world.run_dir, "actor-1")
        if not isinstance(answer, str):
            found.append(shown(world.run_dir, *answer))
        return bool(found)

    world.until(seen, "actor-1 shows what it sees")
    document = found[0]
    assert isinstance(document, dict) and [len(field["entries"]) for field in document["fields"]] == [4]
    assert len(document["actions"]) == 2 and document["kind"] == "action value" and document["policy_version"] >= 0
    assert Buttons().look(world.run_dir, "actor-2") == "run mine has no actor-2 that is at work"


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="reads Linux's list of what a process has loaded")
def test_a_learner_by_numpy_has_not_loaded_torch_and_computes_in_one_thread(world: World) -> None:
    world.up()
    world.until(lambda: (world.status["learner"]["updates"] or 0) > 0, "updates")
    assert re.search(r"learner  \| 32 items per update on cpu in float32 by numpy, [\d,]+ parameters", world.text)
    learner = psutil.Process(world.pid("learner"))
    loaded = {part.path for part in learner.memory_maps()}
    assert any("numpy" in path for path in loaded) and not any("torch" in path for path in loaded)
    assert {learner.environ()[name] for name in THREAD_VARIABLES} == {"1"}


def test_the_process_that_answered_the_pre_flight_is_the_first_learner(world: World) -> None:
    world.up()
    learner = psutil.Process(world.pid("learner"))
    assert "--wait" in learner.cmdline() and learner.ppid() == world.status["pid"]


def test_a_second_up_of_the_run_is_refused_in_one_line(world: World) -> None:
    world.up()
    before = world.pids()
    second = world.command_apart("up", "--env", "CartPole-v1", "--run", "mine")
    assert second.returncode == 3 and second.stdout == ""
    assert second.stderr.startswith("headrace: run mine is already up") and second.stderr.count("\n") == 1
    assert world.pids() == before


def test_a_killed_actor_is_replaced_while_the_run_goes_on(world: World) -> None:
    world.up()
    world.until(lambda: world.status["replay"]["inserted_steps"], "a record of replay")
    before, steps = world.pids(), world.status["replay"]["inserted_steps"]
    os.kill(before["actor-1"], signal.SIGKILL)
    world.until(
        lambda: world.process("actor-1")["pid"] not in (None, before["actor-1"]) and world.process("actor-1")["state"] == "ready",
        "a new actor-1 at work",
    )
    assert world.process("actor-1")["restarts"] >= 1 and world.process("actor-1")["last_exit"] == "killed by SIGKILL"
    after = world.pids()
    assert {name: after[name] for name in NAMES[:3]} == {name: before[name] for name in NAMES[:3]}
    world.until(lambda: (world.status["replay"]["inserted_steps"] or 0) > steps, "replay takes in more")
    assert world.status["replay"]["rejected"] == 0


@pytest.mark.slow
def test_a_killed_learner_is_replaced_and_versions_go_on_rising_at_the_actors(world: World) -> None:
    world.up()
    world.until(lambda: world.run_dir.latest.exists() and world.versions("actor-0"), "weights on disk")
    before, actors = world.pids(), {name: len(world.versions(name)) for name in ("actor-0", "actor-1")}
    os.kill(before["learner"], signal.SIGKILL)
    world.until(lambda: world.process("learner")["pid"] not in (None, before["learner"]), "a new learner")
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
    assert "is paused" in world.command("pause").stdout
    world.close()
    wait_until(lambda: all(map(gone, pids)), what="the end of every process")
    assert json.loads(world.command("status", "--json").stdout)["state"] == "dead"
    world.up()
    assert "resuming run mine after" in world.text
    assert world.status["paused_since"] is None, "a pause does not outlive the supervisor"
    world.until(lambda: (world.status["learner"]["updates"] or 0) > 0, "the learner goes on")


def test_ctrl_c_ends_the_run_and_leaves_nothing(world: World) -> None:
    world.up()
    world.until(lambda: world.run_dir.latest.exists(), "weights on disk")
    assert world.supervisor is not None
    pids = [child.pid for child in psutil.Process(world.supervisor.pid).children(recursive=True)]
    assert world.stop() == 0
    assert all(map(gone, pids))
    assert not [folder for folder in world.run_dir.socket_folders if folder.exists()]
    assert list((world.run_dir.path / "endpoints").iterdir()) == []
    assert not shared_memory() - world.shared_memory
    ending = world.text
    assert "did not stop in time" not in ending and "Traceback" not in ending
    assert json.loads(world.command("status", "--json").stdout)["state"] == "stopped"
    played = world.command_apart("eval", "mine", "--episodes", "5", "--json")
    assert played.returncode == 0, played.stderr
    figures = json.loads(played.stdout)
    assert figures["episodes"] == 5 and figures["policy_version"] > 0 and figures["return_mean"] >= 5
