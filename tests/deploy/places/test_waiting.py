"""A learner that is started before its run: what it answers, how its run begins, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_fields

from actors.config import ActorsConfig
from deploy.children import ROOT, child_environment
from deploy.config.run import DeployConfig, RunConfig
from deploy.errors import ConfigError
from deploy.launch.probe import LearnerProbe
from deploy.places import local, waiting
from deploy.places import standby as standing
from deploy.places.base import Exit
from deploy.places.child import Child
from deploy.places.local import LocalPlace
from deploy.places.standby import Standby
from deploy.places.waiting import WaitingLearner
from deploy.process_spec import ProcessSpec
from learner.config import LearnerConfig
from learner.devices import installing
from replay.config import ReplayConfig
from tests.harness.waiting import gone, wait_until
from transport.messages.control import Assignment

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")

Start = Callable[[str], WaitingLearner]
PLAN = ProcessSpec("learner", "learner", "learner", ("runs/mine",), vital=True)
DEVICE = {"device": "cpu", "name": "CPU", "note": "", "processes": 1}
ECHO = f"import json\nprint('a warning')\nprint(json.dumps({DEVICE}))\nprint('its run is', input())\nimport time; time.sleep(600)"


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    made: list[WaitingLearner] = []

    def make(code: str) -> WaitingLearner:
        monkeypatch.setattr(waiting, "python_command", lambda *arguments: [sys.executable, "-u", "-c", code])
        made.append(WaitingLearner(LearnerConfig()))
        return made[-1]

    yield make
    for learner in made:
        learner.close()


def pid_of(learner: WaitingLearner) -> int:
    assert learner._child is not None
    return learner._child.pid


def end(child: Child) -> Exit:
    child.kill()
    wait_until(lambda: child.poll() is not None)
    ended = child.poll()
    assert ended is not None
    return ended


def test_it_answers_and_then_is_the_process_of_its_run(start: Start) -> None:
    learner, lines = start(ECHO), list[tuple[str, str]]()
    pid = pid_of(learner)
    assert LearnerProbe(learner).device() == DEVICE
    child = learner.begin(PLAN, PLAN.arguments, lambda name, line: lines.append((name, line)))
    assert child is not None and child.pid == pid
    wait_until(lambda: lines == [("learner", "its run is runs/mine")], what="a line for the log, and none of before")
    learner.close()
    assert child.poll() is None, "it is the run's to end now"
    assert end(child).code == -signal.SIGKILL


def test_lines_from_before_its_run_that_were_not_read_go_to_the_log(start: Start) -> None:
    learner, lines = start("print('one')\nprint('two')\nprint(input())\nimport time; time.sleep(600)"), list[str]()
    wait_until(lambda: learner._lines.qsize() == 2)
    child = learner.begin(PLAN, PLAN.arguments, lambda name, line: lines.append(line))
    assert child is not None
    wait_until(lambda: lines == ["one", "two", "runs/mine"])
    end(child)


def test_an_answer_may_be_longer_than_any_line_of_a_log(start: Start) -> None:
    learner = start("import json\nprint(json.dumps({'error': 'x' * 300_000}))\ninput()")
    with pytest.raises(ConfigError, match=r"^x{300000}$"):
        LearnerProbe(learner).device()


def test_an_answer_that_comes_at_once_is_not_cut(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    class AtOnce(threading.Thread):
        def start(self) -> None:
            super().start()
            self.join()

    monkeypatch.setattr(threading, "Thread", AtOnce)
    learner = start("print('x' * 300_000)")
    assert [len(line) for line in learner.lines(60)] == [300_000]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('a warning')\nraise ImportError('no torch here')", "ImportError: no torch here"),
        ("import no_such\n", "ModuleNotFoundError: No module named 'no_such'"),
        (
            "raise ModuleNotFoundError(\"No module named 'torch'\")",
            f"torch is not installed: {installing.headrace('torch')}",
        ),
        ("import sys\nsys.exit(7)", "exit 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "exit -11"),
    ],
)
def test_one_that_dies_instead_of_answering_is_a_mistake_in_one_line(start: Start, code: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        LearnerProbe(start(code)).device()
    assert str(refused.value) == f"looking for the device failed: {reason}"


def test_one_that_does_not_answer_in_time_is_a_mistake_that_names_a_remedy(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.launch.probe.SECONDS", 0.2)
    with pytest.raises(ConfigError, match="took more than 0 s; name one with --device cpu"):
        LearnerProbe(start("input()")).device()


def test_one_that_no_run_needs_is_ended_at_once_with_all_it_has_started(start: Start) -> None:
    server = "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)\n"
    learner = start(server + "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ninput()")
    pid, server_pid = pid_of(learner), int(next(learner.lines(20)))
    learner.close()
    assert gone(pid)
    wait_until(lambda: gone(server_pid))


def test_a_learner_of_several_processes_is_started_anew(start: Start) -> None:
    learner = start("input()")
    pid = pid_of(learner)
    several = ProcessSpec("learner", "learner", "learner", ("x",), processes=2)
    assert learner.begin(several, several.arguments, lambda name, line: None) is None
    assert gone(pid)


def test_a_place_begins_the_first_learner_with_it_and_later_ones_anew(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "python_command", lambda *arguments, python: ["sleep", "600"])
    learner = start(ECHO)
    pid, lines = pid_of(learner), list[str]()
    place = LocalPlace(lambda name, line: lines.append(line), standby=Standby(learner))
    try:
        actor = place.begin(ProcessSpec("actor-0", "actor", "actors", ()), None)
        first = place.begin(PLAN, None)
        assert actor.pid != pid == first.pid
        place.turn()
        assert set(place._orphans.members()) == {actor.pid, pid}
        end(first)
        place.turn()
        second = place.begin(PLAN, None)
        assert second.pid not in (pid, actor.pid) and second.poll() is None
        for child in (actor, second):
            end(child)
    finally:
        place.close()


WORDS = "import time\nfrom transport.lifetime import command_arguments\nprint(command_arguments(), flush=True)\ntime.sleep(600)"
ACTORS = tuple(ProcessSpec(f"actor-{index}", "actor", "actors", ("it", "--actor", str(index))) for index in range(2))
TWO = RunConfig(actors=ActorsConfig(count=2))


@pytest.fixture
def standby(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standby]:
    """A learner that answers; replay and actors that print what they are told."""
    made = Standby(start(ECHO))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(waiting, "python_command", lambda *words: [sys.executable, "-u", "-c", WORDS, *words[1:]])
    monkeypatch.setattr(standing, "core_count", lambda: 2)
    yield made
    made.close()


def test_replay_and_actors_that_waited_get_their_arguments_when_the_run_begins(standby: Standby) -> None:
    standby.fill(TWO)
    lines = list[tuple[str, str]]()
    place = LocalPlace(lambda name, line: lines.append((name, line)), standby=standby)
    try:
        children = [place.begin(spec, Assignment(8 * index, 16, 5)) for index, spec in enumerate(ACTORS)]
        wait_until(lambda: len(lines) == 2)
        words = ["--environments", "16", "--first-seed", "5", "--level", "0"]
        assert sorted(lines) == [(spec.name, str([*spec.arguments, *words])) for spec in ACTORS]
        assert len({child.pid for child in children} & set(place._orphans.members())) == 2
        for child in children:
            end(child)
    finally:
        place.close()


def test_what_waited_in_vain_ends_once_the_run_has_begun_and_another_of_its_name_is_started(
    standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "python_command", lambda *arguments, python: ["sleep", "600"])
    standby.fill(TWO)
    pids = {name: each._child.pid for name, each in standby._waiting.items() if each._child is not None}
    assert set(pids) == {"learner", "replay", "actor-0", "actor-1"}
    place = LocalPlace(lambda name, line: None, standby=standby)
    try:
        more_threads = place.begin(replace(ACTORS[0], threads=4), None)
        assert more_threads.pid != pids["actor-0"] and gone(pids["actor-0"])
        first = place.begin(ACTORS[1], None)
        assert first.pid == pids["actor-1"]
        place.turn()
        assert not gone(pids["replay"]), "there may be more to start in the next turn"
        place.turn()
        assert gone(pids["replay"]) and gone(pids["learner"]) and first.poll() is None
        end(first)
        again = place.begin(ACTORS[1], None)
        assert again.pid not in pids.values()
        for child in (more_threads, again):
            end(child)
    finally:
        place.close()


def test_processes_that_no_settings_foretell_are_not_started_before_their_run(standby: Standby) -> None:
    config = replace_fields(TWO, replay=ReplayConfig(shards=2), deploy=DeployConfig(actor_python="python9"))
    standby.fill(config)
    assert set(standby._waiting) == {"learner"}
    many = replace_fields(TWO, actors=ActorsConfig(count=64))
    standby.fill(many)
    assert set(standby._waiting) == {"learner", "replay", "actor-0", "actor-1"}, "as many as there are cores"


@pytest.mark.parametrize("module", ["replay", "actors"])
def test_one_that_waits_ends_without_a_word_where_there_is_to_be_no_run(module: str) -> None:
    command, environment = [sys.executable, "-m", module, "--wait"], child_environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_simulator_finds_the_arguments_that_arrived_later() -> None:
    code = (
        "import sys; from transport.lifetime import command_arguments; print(command_arguments() == sys.argv[1:], sys.argv[1:])"
    )
    command, words = [sys.executable, "-c", code, "--wait"], '["run", "--actor", "1"]\n'
    done = subprocess.run(command, env=child_environment(PYTHONPATH=str(ROOT)), input=words, capture_output=True, text=True)
    assert done.stdout.strip() == "True ['run', '--actor', '1']", done.stderr


@pytest.mark.parametrize("moment", ["importing", "waiting"])
def test_it_ends_when_the_command_that_started_it_is_killed(moment: str) -> None:
    code = (
        "import sys\nfrom deploy.places.waiting import WaitingLearner\nfrom learner.config import LearnerConfig\n"
        "made = WaitingLearner(LearnerConfig(device='cpu'))\nprint(made._child.pid, flush=True)\n"
        "print(next(line for line in made.lines(60) if line), flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    environment = child_environment(PYTHONPATH=str(ROOT))
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if moment == "waiting":
            assert '"device": "cpu"' in parent.stdout.readline()
        parent.kill()
    wait_until(lambda: gone(pid), what="its end")
