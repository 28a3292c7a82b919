"""A run over hosts, each the real `headrace join` on loopback TCP with CURVE: one killed, one cut off, the supervisor killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.history import read_life
from tests.harness.spread import Spread
from tests.harness.waiting import PATIENCE_SECONDS, gone, wait_until

pytestmark = [
    pytest.mark.flow,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes by their environment"),
]

Make = Callable[..., Spread]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Spread] = []

    def make(env: str, *settings: str) -> Spread:
        made.append(Spread(tmp_path, env, *settings))
        return made[-1]

    yield make
    for run in made:
        run.close()


def version_of(run: Spread, name: str) -> float:
    """The newest version of the weights that the records of an actor name."""
    return max((record.get("policy_version", -1.0) for record in run.records(name)), default=-1.0)


def test_actors_of_a_killed_host_work_elsewhere_and_nothing_acknowledged_is_lost(make: Make) -> None:
    run = make("tests.chaos.simulator:slow_vector")
    run.start()
    for name in ("host-0", "host-1"):
        run.join(name, "--allow", "tests")
    run.until(lambda: len(run.at_work()) == 2 and len(run.status["hosts"]) == 2, "two actors and two hosts at work")
    run.until(lambda: run.collected("actor-0") and run.collected("actor-1"), "records of both")
    first = run.at_work()["actor-0"]
    other, moving = "host-1" if first == "host-0" else "host-0", sum(host == first for host in run.at_work().values())
    left = run.of_agent(run.agents[first].pid)
    assert left
    run.kill_agent(first)
    wait_until(lambda: all(map(gone, left)), what="nothing is left of the host")
    run.until(lambda: list(run.at_work().values()) == [other, other], "both on the other host")
    shown = run.status
    assert [(host["name"], host["actors"]) for host in shown["hosts"]] == [(other, 2)]
    moved = next(each for each in shown["processes"] if each["name"] == "actor-0")
    assert moved["restarts"] == 1 and "has not been heard" in moved["last_exit"]
    assert " died " not in run.text, "it is not booked as the actor's failure"
    before = run.status["steps"]
    run.until(lambda: run.status["steps"] > before + 100, "steps go on")
    assert run.interrupt() == 0
    agent = run.agents[other]
    assert agent.wait(PATIENCE_SECONDS) == 0 and "the run has ended" in (run.folder / other).read_text()
    assert not list(run.folder.glob("headrace-host-*")), "a host keeps no key"
    verdict = check(run.run_dir.segments, run.spec, run.histories)
    assert verdict.sound and verdict.lives == 2 + moving and len(verdict.acknowledged) > 100, verdict.text


def test_an_actor_that_was_given_up_is_acknowledged_nothing_more_although_it_still_runs(make: Make) -> None:
    run = make("tests.chaos.simulator:slow_vector")
    run.start()
    run.join("host-0", "--allow", "tests")
    run.until(lambda: list(run.at_work().values()) == ["host-0", "host-0"], "both actors on the first host")
    run.join("host-1", "--allow", "tests")
    run.until(lambda: run.collected("actor-0") and len(run.status["hosts"]) == 2, "records, and both hosts")
    pid = run.pid("actor-0")
    (history,) = run.histories.glob(f"actor-0-{pid}-*.history")
    os.kill(run.agents["host-0"].pid, signal.SIGSTOP)  # its actors go on, and their connections stay
    run.until(lambda: run.at_work() == {"actor-0": "host-1", "actor-1": "host-1"}, "both on the other host")
    acknowledged = read_life(history).acknowledged
    assert acknowledged > 0
    wait_until(lambda: gone(pid), what="it ends, as replay refuses it")
    assert read_life(history).acknowledged == acknowledged
    os.kill(run.agents["host-0"].pid, signal.SIGCONT)
    run.until(lambda: [host["actors"] for host in run.status["hosts"]] == [0, 2], "its places are free again")
    restarts = [process["restarts"] for process in run.status["processes"] if process["role"] == "actor"]
    assert " died " not in run.text and restarts == [1, 1]
    assert run.interrupt() == 0
    verdict = check(run.run_dir.segments, run.spec, run.histories)
    assert verdict.sound and verdict.lives == 4, verdict.text


def test_a_killed_relay_is_back_and_actors_go_on_meanwhile(make: Make) -> None:
    run = make("tests.chaos.simulator:slow_vector")
    run.start()
    run.join("host-0", "--allow", "tests")
    run.until(lambda: len(run.at_work()) == 2 and run.process("relay-0").get("pid"), "both actors and the relay at work")
    run.until(lambda: all(version_of(run, name) > 0 for name in ("actor-0", "actor-1")), "weights by the relay")
    before = {name: run.pid(name) for name in ("actor-0", "actor-1", "relay-0")}
    os.kill(before["relay-0"], signal.SIGKILL)
    run.until(lambda: run.process("relay-0").get("restarts") == 1 and run.process("relay-0")["pid"], "another relay")
    versions = {name: version_of(run, name) for name in ("actor-0", "actor-1")}
    run.until(lambda: all(version_of(run, name) > version + 1 for name, version in versions.items()), "newer weights by it")
    shown = run.process("relay-0")
    assert (shown["host"], shown["last_exit"]) == ("host-0", "killed by SIGKILL") and shown["pid"] != before["relay-0"]
    assert {name: run.pid(name) for name in ("actor-0", "actor-1")} | {"relay-0": before["relay-0"]} == before
    assert re.search(r"^relay-0  \| policy v", run.text, re.MULTILINE)
    assert run.interrupt() == 0
    verdict = check(run.run_dir.segments, run.spec, run.histories)
    assert verdict.sound and verdict.lives == 2, verdict.text


def test_actors_wait_for_a_killed_inference_process_of_their_host_and_lose_nothing(make: Make) -> None:
    run = make("tests.chaos.simulator:slow_vector", "--actors.inference", "batched")
    run.start()
    run.join("host-0", "--allow", "tests")
    run.until(lambda: len(run.at_work()) == 2 and run.process("inference-0").get("pid"), "both actors and the inference process")
    run.until(lambda: all(version_of(run, name) > 0 for name in ("actor-0", "actor-1")), "weights by way of it")
    before = {name: run.pid(name) for name in ("actor-0", "actor-1", "relay-0")}
    os.kill(run.pid("inference-0"), signal.SIGKILL)
    run.until(lambda: run.process("inference-0").get("restarts") == 1 and run.process("inference-0")["pid"], "another one")
    versions = {name: version_of(run, name) for name in ("actor-0", "actor-1")}
    run.until(lambda: all(version_of(run, name) > version + 1 for name, version in versions.items()), "newer weights by it")
    shown = run.process("inference-0")
    assert (shown["role"], shown["host"], shown["last_exit"]) == ("inference", "host-0", "killed by SIGKILL")
    assert {name: run.pid(name) for name in before} == before, "the actors have waited"
    assert re.search(r"^inference-0 \| .* rows/s", run.text, re.MULTILINE)
    assert run.interrupt() == 0
    verdict = check(run.run_dir.segments, run.spec, run.histories)
    assert verdict.sound and verdict.lives == 2, verdict.text


def test_a_killed_supervisor_that_is_back_adopts_what_the_hosts_run(make: Make) -> None:
    run = make("tests.chaos.simulator:slow_vector")
    run.start()
    run.join("host-0", "--allow", "tests")
    run.until(lambda: len(run.at_work()) == 2, "both actors at work")
    run.until(lambda: run.collected("actor-0") and run.collected("actor-1"), "records of both")
    before = {name: run.pid(name) for name in ("actor-0", "actor-1")}
    run.kill()
    run.start()
    run.until(lambda: len(run.at_work()) == 2, "both actors at work again")
    assert {name: run.pid(name) for name in before} == before and not any(map(gone, before.values()))
    assert all(process["restarts"] == 0 for process in run.status["processes"])
    assert all(f"{name} works on host-0" in run.text for name in before)
    steps = run.status["steps"]
    run.until(lambda: run.status["steps"] > steps + 100, "steps go on")
    assert run.interrupt() == 0
    verdict = check(run.run_dir.segments, run.spec, run.histories)
    assert verdict.sound and verdict.lives == 2, verdict.text


def test_scale_logs_figures_and_total_steps_include_the_hosts(make: Make) -> None:
    run = make("tests.chaos.simulator:slow_vector", "--total-steps", "3000")
    run.start()
    run.until(lambda: run.status.get("state") == "running", "all that has room is at work")
    assert [run.process(name)["state"] for name in ("actor-0", "actor-1")] == ["waiting", "waiting"]
    run.join("host-0", "--allow", "tests")
    run.until(lambda: len(run.at_work()) == 2, "both actors at work")
    assert run.command("scale", "3", "mine").returncode == 0
    run.until(lambda: run.process("actor-2").get("state") == "waiting", "the third waits for a place")
    run.join("host-1", "--allow", "tests")
    run.until(lambda: run.at_work().get("actor-2") == "host-1", "the third on the second host")
    usage = [(run.process(name)["host"], run.process(name)["rss_bytes"] > 10e6) for name in ("actor-0", "actor-2")]
    assert usage == [("host-0", True), ("host-1", True)]
    run.until(lambda: run.collected("actor-2"), "its records")
    shown = run.command("status", "mine").stdout
    assert "host-0: joined · 2 of 2 places" in shown and "host-1: joined · 1 of 2 places" in shown
    assert run.supervisor is not None and run.supervisor.wait(3 * PATIENCE_SECONDS) == 0
    assert "of 3,000 environment steps done" in run.text
    logged = run.command("logs", "actor-2", "--run", "mine").stdout
    assert "steps/s (10 s)" in logged and re.search(r"^actor-2  \| .*steps/s \(10 s\)", run.text, re.MULTILINE)
    for agent in run.agents.values():
        assert agent.wait(PATIENCE_SECONDS) == 0


def test_a_host_imports_no_code_that_is_not_allowed(make: Make) -> None:
    run = make("tests.chaos.simulator:slow_vector")
    run.start()
    run.join("host-0", "--allow", "another_package")
    assert run.agents["host-0"].wait(PATIENCE_SECONDS) == 3
    said = (run.folder / "host-0").read_text()
    assert "names tests.chaos.simulator:slow_vector, which this host does not allow: join with --allow tests" in said
    run.until(lambda: "leaves: the run's env.id names" in run.text and not run.status["hosts"], "the run says so, too")
    assert run.at_work() == {} and not list(run.histories.iterdir())
