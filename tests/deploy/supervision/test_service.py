"""The real supervisor over real processes that stand in for the roles.

How soon things happen is measured by tests/chaos and, with a clock of its own, by test_supervisor.py.
"""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from deploy import runs
from deploy.cli import main as cli
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.supervision.service import Service
from tests.harness.run import Stubs
from tests.harness.waiting import gone, wait_until
from transport.run_dir import RunDir

pytestmark = [pytest.mark.flow, pytest.mark.skipif(os.name != "posix", reason="signals")]

Make = Callable[..., Stubs]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes the run of a test."""
    monkeypatch.chdir(tmp_path)
    made: list[Stubs] = []

    def make(*arguments: str) -> Stubs:
        made.append(Stubs(tmp_path, *arguments))
        return made[-1]

    yield make
    for run in made:
        run.close()


def up(run: Stubs) -> list[int]:
    run.up()
    return list(run.pids().values())


def leaves_nothing(run: Stubs, processes: list[int]) -> None:
    wait_until(lambda: all(map(gone, processes)), what="every process has ended")
    found = run.run_dir
    assert not any(folder.exists() for folder in found.socket_folders) and not runs.is_up(found)
    assert not list((found.path / "endpoints").iterdir())


def delete(folder: Path) -> None:
    """At once: while a folder is emptied file by file, somebody may write another one into it."""
    gone_from_here = folder.with_name(f"{folder.name}.deleted")
    folder.rename(gone_from_here)
    shutil.rmtree(gone_from_here)


def test_ctrl_c_stops_all_in_order_and_leaves_nothing(make: Make) -> None:
    run = make()
    processes = up(run)
    assert len(processes) == 4
    assert run.interrupt() == 0
    leaves_nothing(run, processes)
    assert "supervisor | stopping: stopped by you (Ctrl-C again kills at once)" in run.text
    assert "did not stop in time" not in run.text
    assert run.status["state"] == "stopped" and not any(run.pids().values())
    assert "supervisor | stopping: stopped by you" in run.run_dir.log("run").read_text()


def test_deaf_and_stopped_processes_do_not_hold_the_end(make: Make) -> None:
    run = make("actor-0=deaf", "learner=deaf", "--stop-seconds", "1.5")
    processes = up(run)
    os.kill(processes[3], signal.SIGSTOP)
    assert cli.main(["down"]) == 1
    assert run.ended() == 1  # without the supervisor's deadline it would never end
    assert run.status["reason"].startswith("headrace down; learner died at the stop (did not stop in time")
    late = [f"{name} did not stop in time" in run.text for name in ("actor-0", "actor-1", "learner")]
    assert late == [True, True, True]
    leaves_nothing(run, processes)


def test_the_time_of_a_run_counts_from_its_first_step(make: Make) -> None:
    run = make("replay=late", "--stop-after", "0.5")
    run.start()
    assert run.ended() == 0
    assert re.search(r"stopping: [01] s are over \(Ctrl-C kills at once\)", run.text)
    assert run.status["steps"] > 0


def test_a_run_ends_at_a_time_of_the_clock(make: Make) -> None:
    at = time.time() + 3.0
    run = make("--stop-at", datetime.fromtimestamp(at).isoformat())
    run.start()
    assert run.ended() == 0, run.text
    assert re.search(r"stops at \d\d:\d\d(:\d\d)?, in [0-3] s", run.text) and run.status["reason"].startswith("it is ")
    assert run.status["time"] >= at and run.status["ends_at"] is None


def test_a_run_ends_when_an_evaluation_has_reached_the_return_that_was_asked_for(make: Make) -> None:
    run = make("evaluator=well", "--stop-at-return", "5")
    run.start()
    assert run.ended() == 0, run.text
    assert "stopping: an evaluation has reached a return of" in run.text and run.status["state"] == "stopped"


def test_an_engine_is_asked_for_places_for_those_actors_that_may_not_run_here(make: Make) -> None:
    run = make("--on", "tests.harness.stub:Lender", "--local-actors", "1")
    run.start()
    asked = run.run_dir.path / "asked"
    run.until(lambda: run.status.get("state") == "running", "all that has room is ready")
    assert cli.main(["scale", "4"]) == 0
    run.until(lambda: asked.read_text() == "1 places\n3 places\n", "three more places are wanted")
    assert cli.main(["down"]) == 0
    assert asked.read_text() == "1 places\n3 places\nthe end\n"


def test_a_second_ctrl_c_kills_at_once(make: Make) -> None:
    run = make("actor-0=deaf", "actor-1=deaf", "learner=deaf", "replay=deaf", "--stop-seconds", "600")
    processes = up(run)
    assert run.supervisor is not None
    run.supervisor.send_signal(signal.SIGINT)
    run.until(lambda: "stopping" in run.run_dir.log("supervisor").read_text(), "it begins to stop")
    run.interrupt()  # long before any of them would be killed for being late
    assert "did not stop in time" not in run.text
    leaves_nothing(run, processes)


def test_a_killed_supervisor_leaves_no_process_and_down_sweeps_the_rest(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = make()
    processes = up(run)
    run.kill()  # and waits for it: its lock ends with the last of its threads
    wait_until(lambda: all(map(gone, processes)), what="every process has ended")
    assert cli.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "dead"
    assert cli.main(["down"]) == 0
    leaves_nothing(run, processes)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_folder_is_gone_stops_and_says_why(replaced: bool, make: Make, tmp_path: Path) -> None:
    run = make()
    processes, supervisor = up(run), run.supervisor
    assert supervisor is not None
    supervisor.send_signal(signal.SIGSTOP)  # it is not to look between the two
    wait_until(lambda: psutil.Process(supervisor.pid).status() == psutil.STATUS_STOPPED, what="it looks at nothing")
    run.run_dir.path.rename(tmp_path / "elsewhere")
    if replaced:
        run.run_dir.create()
    supervisor.send_signal(signal.SIGCONT)
    assert run.ended() == 1
    assert (
        f"its folder {run.run_dir.path} was {'replaced' if replaced else 'deleted'}" in run.text and "Traceback" not in run.text
    )
    wait_until(lambda: all(map(gone, processes)), what="every process has ended")
    assert run.run_dir.path.exists() == replaced, "it is not made again"


def test_a_folder_that_cannot_be_looked_at_for_a_moment_is_not_taken_for_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stat(path: Path) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied")

    stopped: list[str] = []
    parts = {
        "_next_look": 0.0,
        "_folder": (1, 2),
        "_run": RunDir(tmp_path),
        "stop": lambda reason, exit_status: stopped.append(reason),
    }
    service: Any = SimpleNamespace(supervisor=SimpleNamespace(stopping=False), _config=RunConfig(), **parts)
    monkeypatch.setattr(Path, "stat", stat)
    Service._check_folder(service)
    assert not stopped
    monkeypatch.undo()
    service._next_look = 0.0
    Service._check_folder(service)
    assert len(stopped) == 1 and "was replaced" in stopped[0]


def test_a_crashing_learner_ends_the_run_with_status_1_and_its_traceback_in_the_log(make: Make) -> None:
    run = make("learner=crashes")
    run.start()
    assert run.ended() == 1
    assert "run mine failed: learner failed (exit 1: RuntimeError: out of order)" in run.text
    assert "learner  | Traceback (most recent call last):" in run.text and "learner  | RuntimeError: out of order" in run.text
    assert run.status["state"] == "failed" and "learner failed" in run.status["reason"]


def test_a_refusal_by_a_role_ends_the_run_without_another_try(make: Make) -> None:
    run = make("replay=refuses")
    run.start()
    assert run.ended() == 1
    assert "replay failed (exit 2: the capacity is too small)" in run.text and "starting again" not in run.text


def test_the_run_ends_by_itself_when_its_steps_are_done(make: Make) -> None:
    run = make("--total-steps", "100")
    run.start()
    assert run.ended() == 0 and "of 100 environment steps done" in run.text
    assert run.status["steps"] >= 100


def test_a_terminal_that_is_not_read_does_not_stop_the_run(make: Make) -> None:
    run = make()
    command, folder, environment = run.command_line, run.folder, run.environment
    run.supervisor = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert run.supervisor.stdout is not None
    run.supervisor.stdout.close()
    wait_until(lambda: run.status.get("state") == "running", what="every process is ready")
    assert run.interrupt(signal.SIGTERM) == 0


def test_top_shows_a_run_once_where_there_is_no_terminal(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = make()
    up(run)
    assert cli.main(["top"]) == 0
    out = capsys.readouterr().out
    assert "mine running" in out and "actor-1" in out
    assert run.interrupt(signal.SIGTERM) == 0
    assert cli.main(["top", "mine"]) == 0
    assert "mine stopped" in capsys.readouterr().out


def test_deleted_sockets_and_logs_are_made_again_and_new_processes_reach_them(make: Make) -> None:
    run = make()
    processes = up(run)
    assert run.run_dir.sockets is not None
    delete(run.run_dir.sockets)
    run.until(lambda: "was deleted; made it again" in run.text, "the socket is bound again")
    delete(run.run_dir.log("run").parent)
    os.kill(run.pid("actor-0"), signal.SIGKILL)
    run.until(
        lambda: (actor := run.process("actor-0"))["restarts"] == 1 and actor["state"] == "ready", "another actor-0 is ready"
    )
    assert run.interrupt() == 0
    assert "run mine stopped" in run.run_dir.log("run").read_text()
    leaves_nothing(run, processes)


def test_a_run_is_scaled_while_it_is_up_unless_its_disk_takes_no_settings(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = make()
    up(run)
    assert run.supervisor is not None
    hindrance = run.run_dir.settings("actor-0").with_name(f".actor-0.json.{run.supervisor.pid}.tmp")
    hindrance.mkdir()  # in the place of a file
    assert cli.main(["scale", "3"]) == 0
    assert "goes from 2 to 3 actors" in capsys.readouterr().out
    run.until(lambda: "the run goes on with 2 actors: " in run.text, "the supervisor says why")
    hindrance.rmdir()
    assert cli.main(["scale", "3"]) == 0
    wanted = ["replay", "learner", "actor-0", "actor-1", "actor-2"]
    run.until(lambda: [p["name"] for p in run.status["processes"] if p["state"] == "ready"] == wanted, "three actors are ready")
    assert load_run_config(run.run_dir, trusted=True).actors.count == 3
    assert cli.main(["scale", "1"]) == 0
    run.until(lambda: len(run.status["processes"]) == 3, "one actor is left")
    capsys.readouterr()
    assert cli.main(["scale", "1"]) == 0
    assert "has 1 actors already" in capsys.readouterr().out
    assert run.interrupt(signal.SIGTERM) == 0
    assert "actor-2 has left" in run.text and "starting again" not in run.text
    assert cli.main(["scale", "2"]) == 2
    assert "is not up; start it with" in capsys.readouterr().err
