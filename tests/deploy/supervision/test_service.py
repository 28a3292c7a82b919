"""The real supervisor over real processes that stand in for the roles."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy import runs
from deploy.children import child_environment
from deploy.cli import main as cli
from deploy.config.layers import load_run_config
from tests.harness.waiting import gone, wait_until
from transport.run_dir import RunDir

pytestmark = [pytest.mark.flow, pytest.mark.skipif(os.name != "posix", reason="signals")]

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.chdir(tmp_path)
    found = RunDir(Path("runs/mine"))
    found.path.mkdir(parents=True)
    return found


@pytest.fixture
def start(run: RunDir) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def make(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "tests.harness.host", "stubs", str(run.path), *arguments]
        started.append(
            subprocess.Popen(command, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        return started[-1]

    yield make
    for host in started:
        host.kill()
        with host:
            pass


def status(run: RunDir) -> dict[str, Any]:
    return runs.read_status(run) or {"state": None, "processes": []}


def pids(run: RunDir) -> list[int]:
    return [process["pid"] for process in status(run)["processes"] if process["pid"]]


def up(run: RunDir) -> list[int]:
    wait_until(lambda: status(run)["state"] == "running")
    return pids(run)


def leaves_nothing(run: RunDir, processes: list[int]) -> None:
    wait_until(lambda: all(map(gone, processes)), 3)
    assert not run.sockets.exists() and not list((run.path / "endpoints").iterdir()) and not runs.is_up(run)


def test_ctrl_c_stops_all_in_order_and_leaves_nothing(run: RunDir, start: Start) -> None:
    host = start()
    processes = up(run)
    assert len(processes) == 4
    began = time.monotonic()
    host.send_signal(signal.SIGINT)
    out, _ = host.communicate(timeout=10)
    assert host.returncode == 0 and time.monotonic() - began < 5
    leaves_nothing(run, processes)
    assert "supervisor | stopping: stopped by you" in out and "did not stop in time" not in out
    assert status(run)["state"] == "stopped" and pids(run) == []
    assert "supervisor | stopping: stopped by you" in run.log("run").read_text()


def test_a_killed_actor_is_replaced_and_the_others_never_notice(run: RunDir, start: Start) -> None:
    host = start()
    up(run)
    before = {process["name"]: process["pid"] for process in status(run)["processes"]}
    began = time.monotonic()
    os.kill(before["actor-1"], signal.SIGKILL)
    after = wait_until(
        lambda: [p for p in status(run)["processes"] if p["name"] == "actor-1" and p["restarts"] == 1 and p["state"] == "ready"]
    )
    assert time.monotonic() - began < 10 and after[0]["last_exit"] == "killed by SIGKILL"
    assert [p["pid"] for p in status(run)["processes"]][:3] == [before[name] for name in ("replay", "learner", "actor-0")]
    host.send_signal(signal.SIGTERM)
    out, _ = host.communicate(timeout=10)
    assert "supervisor | actor-1 died (killed by SIGKILL); starting again" in out and host.returncode == 0


def test_deaf_and_stopped_processes_do_not_hold_the_end(run: RunDir, start: Start) -> None:
    host = start("actor-0=deaf", "learner=deaf")
    processes = up(run)
    os.kill(processes[3], signal.SIGSTOP)
    began = time.monotonic()
    assert cli.main(["down"]) == 0
    out, _ = host.communicate(timeout=10)
    assert time.monotonic() - began < 4 and host.returncode == 0  # the deadline is 2 s
    assert [f"{name} did not stop in time; killed" in out for name in ("actor-0", "actor-1", "learner", "replay")] == [
        True,
        True,
        True,
        False,
    ]
    leaves_nothing(run, processes)


def test_a_second_ctrl_c_kills_at_once(run: RunDir, start: Start) -> None:
    host = start("actor-0=deaf", "actor-1=deaf", "learner=deaf", "replay=deaf", "--stop-seconds", "100")
    processes = up(run)
    host.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in run.log("supervisor").read_text())
    host.send_signal(signal.SIGINT)
    out, _ = host.communicate(timeout=10)  # long before any of them would have been killed for being late
    assert "did not stop in time" not in out
    leaves_nothing(run, processes)


def test_a_killed_supervisor_leaves_no_process_and_down_sweeps_the_rest(
    run: RunDir, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    host = start()
    processes = up(run)
    host.kill()
    host.wait()  # its lock ends with the last of its threads, which may be after its children
    wait_until(lambda: all(map(gone, processes)), 3)
    assert cli.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "dead"
    assert cli.main(["down"]) == 0
    leaves_nothing(run, processes)


def test_a_run_after_a_killed_supervisor_starts_as_ever(run: RunDir, start: Start) -> None:
    start().kill()
    first = start()
    up(run)
    first.kill()
    wait_until(lambda: not runs.is_up(run))
    second = start()
    wait_until(lambda: status(run).get("pid") == second.pid and status(run)["state"] == "running")
    second.send_signal(signal.SIGINT)
    assert second.wait(10) == 0


def test_descendants_of_a_killed_process_go_with_it(run: RunDir, start: Start) -> None:
    host = start("actor-0=parent")
    processes = up(run)
    grandchild = int((run.path / "grandchild").read_text())
    os.kill(processes[2], signal.SIGKILL)
    wait_until(lambda: gone(grandchild), 3)
    host.send_signal(signal.SIGINT)
    assert host.wait(10) == 0


def test_a_crashing_learner_ends_the_run_with_status_1_and_its_traceback_in_the_log(run: RunDir, start: Start) -> None:
    host = start("learner=crashes")
    out, _ = host.communicate(timeout=20)
    assert host.returncode == 1
    assert "run mine failed: learner failed (exit 1: RuntimeError: out of order)" in out
    assert "learner  | Traceback (most recent call last):" in out and "learner  | RuntimeError: out of order" in out
    assert status(run)["state"] == "failed" and "learner failed" in status(run)["reason"]


def test_a_refusal_by_a_role_ends_the_run_without_another_try(run: RunDir, start: Start) -> None:
    host = start("replay=refuses")
    out, _ = host.communicate(timeout=20)
    assert host.returncode == 1 and "replay failed (exit 2: the capacity is too small)" in out and "starting again" not in out


def test_the_run_ends_by_itself_when_its_time_is_over(run: RunDir, start: Start) -> None:
    host = start("--stop-after", "1.5")
    out, _ = host.communicate(timeout=20)
    assert host.returncode == 0 and "are over" in out and status(run)["state"] == "stopped"


def test_the_run_ends_by_itself_when_its_steps_are_done(run: RunDir, start: Start) -> None:
    host = start("--total-steps", "100")
    out, _ = host.communicate(timeout=30)
    assert host.returncode == 0 and "of 100 environment steps done" in out
    assert status(run)["steps"] >= 100


def test_a_terminal_that_is_not_read_does_not_stop_the_run(run: RunDir, start: Start) -> None:
    host = start()
    assert host.stdout is not None
    host.stdout.close()
    up(run)
    host.send_signal(signal.SIGTERM)
    assert host.wait(10) == 0


def test_top_shows_a_run_until_it_is_down(run: RunDir, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    host = start("--stop-after", "3")
    up(run)
    assert cli.main(["top"]) == 0
    assert host.wait(10) == 0
    out = capsys.readouterr().out
    assert "mine: stopped" in out and "actor-1" in out


def test_a_run_is_scaled_while_it_is_up(run: RunDir, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    host = start()
    up(run)
    assert cli.main(["scale", "3"]) == 0
    assert "goes from 2 to 3 actors" in capsys.readouterr().out
    wait_until(
        lambda: [p["name"] for p in status(run)["processes"] if p["state"] == "ready"][2:] == [f"actor-{i}" for i in range(3)]
    )
    assert load_run_config(run.config).actors.count == 3
    assert cli.main(["scale", "1"]) == 0
    wait_until(lambda: len(status(run)["processes"]) == 3)
    assert cli.main(["scale", "1"]) == 0
    assert "has 1 actors already" in capsys.readouterr().out
    host.send_signal(signal.SIGTERM)
    out, _ = host.communicate(timeout=10)
    assert host.returncode == 0 and "actor-2 has left" in out and "starting again" not in out
    assert cli.main(["scale", "2"]) == 2
    assert "is not up; start it with" in capsys.readouterr().err
