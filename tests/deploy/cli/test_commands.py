"""What holds for every command."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.errors import EnvError
from deploy import runs
from deploy.children import child_environment
from deploy.cli import main as cli
from deploy.cli.common import complain
from deploy.cli.machine import envs
from deploy.cli.runs import down
from deploy.config.run import DeployConfig
from deploy.launch import preflight
from tests.deploy.launch.test_prepare import FACTS
from transport.messages.control import Stopping
from transport.run_dir import RunDir


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_shows_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0 and f"usage: headrace {command}" in capsys.readouterr().out


def test_the_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for typed in ([], ["--help"], ["-h"]):
        assert cli.main(typed) == 0
        text = capsys.readouterr().out
        assert all(f"  {name} " in text and about in text for name, (_, about) in cli.COMMANDS.items())


def test_the_help_imports_nothing_but_the_command_itself() -> None:
    code = "import sys; from deploy.cli import main; main.main(['--help']); print(sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-P", "-c", code], env=child_environment(), capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and "'deploy'" in loaded
    assert not [name for name in ("numpy", "msgspec", "zmq", "rich", "psutil", "torch") if f"'{name}'" in loaded]


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_parent_that_ignores_the_end_of_its_children_does_not_hand_that_on(tmp_path: Path) -> None:
    """Some starters of services do. Then the kernel reaps children itself, and the supervisor would find none of its own."""
    code = """
import signal, sys
from deploy.children import child_environment
from deploy.cli import main
from deploy.places.child import Child
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
main.main(["list"])
child = Child("child", [sys.executable, "-c", "raise SystemExit(3)"], child_environment(), print)
while (ended := child.poll()) is None:
    pass
print(ended.code)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=child_environment(), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "3\n" and not done.stderr


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "deploy.cli", "presets"], env=child_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0 and "cartpole" in done.stdout


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "no memory left"),
        (RuntimeError("can't start new thread"), "no more processes or threads"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "no more processes or threads"),
    ],
)
def test_what_a_machine_has_run_out_of_is_one_line(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: object) -> None:
        raise error

    monkeypatch.setattr("deploy.runs.all_runs", fails)
    assert cli.main(["list"]) == 3
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


def test_an_error_of_headrace_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("deploy.runs.all_runs", fails)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["list"])


def test_bench_without_a_name_lists_the_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line.split(maxsplit=1)) == 2 and "`" not in line for line in lines)
    assert {"replay", "learner", "env", "gpu"} <= {line.split()[0] for line in lines}


def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"headrace {cli.version()}\n"


def test_the_message_of_an_error_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise OSError("\x1b[2Jno \x07 room")

    monkeypatch.setattr("deploy.runs.all_runs", fails)
    assert cli.main(["list"]) == 3
    assert complain("\x1b[31mno \x07 room", 3) == 3
    assert capsys.readouterr().err == 2 * "headrace: no \\x07 room\n"


def test_an_environment_is_checked_with_every_option_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[dict[str, Any]] = []
    monkeypatch.setattr("deploy.cli.machine.envs.check_env", lambda section, picture: checked.append(section))
    assert cli.main(["envs", "--check", "robot", "--env.tier", "hard", "--env.stack", "2"]) == 0
    assert cli.main(["envs", "--check", "my_pkg:make", "--env.size", "12"]) == 0
    assert checked == [{"id": "robot", "tier": "hard", "stack": 2}, {"id": "my_pkg:make", "size": "12"}]


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_an_environment_may_print_any_bytes_while_it_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf '\\377 no picture\\n' >&2\nexit 1\n")
    python.chmod(0o700)
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONIOENCODING"):  # put back afterwards: the check changes them
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(preflight, "try_environment", lambda config: FACTS)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(EnvError, match="no picture"):
        envs.check_env({"id": "snake"}, None)


@pytest.mark.parametrize(
    ("writes_until", "state", "up", "ends_at", "status"),
    [
        (60, "stopping", 7, 60, 0),
        (0, "stopping", 7, 60, 1),
        (0, "stopped", 7, 60, 0),  # it was writing checksums before
        (0, "stopped", 8, 60, 1),  # a status of an earlier start
        (20, "stopped", 8, 60, 0),
        (20, "stopped", 7, 900, 1),
    ],
)
def test_down_waits_for_as_long_as_the_supervisor_writes_its_status_and_after_its_last_one_for_its_checksums(
    writes_until: int, state: str, up: int, ends_at: int, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [0.0]

    def read_status(run: RunDir) -> dict[str, Any]:
        shown = "stopped" if now[0] >= ends_at else state if now[0] >= writes_until else "stopping"
        return {"time": min(now[0], writes_until) // 5, "state": shown, "pid": 7}

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(down, "time", clock)
    monkeypatch.setattr(down, "ask_supervisor", lambda *given: None)
    monkeypatch.setattr(down, "read_deploy", lambda path: DeployConfig())
    monkeypatch.setattr(down.runs, "supervisor_pid", lambda run: up)
    monkeypatch.setattr(down, "_is_here", lambda pid, run: False)
    monkeypatch.setattr(down.runs, "is_up", lambda run: now[0] < ends_at)
    monkeypatch.setattr(down.runs, "read_status", read_status)
    assert down.stop(RunDir(tmp_path)) == status


def test_down_stops_a_run_whose_configuration_was_broken_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, asked = RunDir(tmp_path), list[object]()
    run.config.write_text("[deploy]\nstop_seconds = ")

    def ask(*given: object) -> Stopping:
        asked.append(given)
        return Stopping()

    monkeypatch.setattr(down, "ask_supervisor", ask)
    monkeypatch.setattr(down.runs, "supervisor_pid", lambda run: None)
    monkeypatch.setattr(down.runs, "is_up", lambda run: not asked)
    monkeypatch.setattr(down.runs, "read_status", lambda run: {"state": "stopped"})
    assert down.stop(run) == 0 and len(asked) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"state": "failed", "reason": "headrace down; replay died at the stop (1 step lost)"},
            "replay died at the stop (1 step lost)",
        ),
        ({"state": "stopping"}, "could not write its last status"),
        (None, "could not write its last status"),
    ],
)
def test_down_says_what_could_not_be_saved(
    status: dict[str, str] | None, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([True])
    monkeypatch.setattr(down, "ask_supervisor", lambda *given: Stopping())
    monkeypatch.setattr(down.runs, "is_up", lambda run: next(looks, False))
    monkeypatch.setattr(down.runs, "read_status", lambda run: status)
    assert down.stop(RunDir(tmp_path)) == 1
    told = capsys.readouterr().err
    assert " is down, but " in told and words in told and told.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_down_sends_no_signal_to_a_process_that_only_has_the_number_of_a_supervisor_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Machines of a cluster share the folder and its lock, and a container has numbers of its own."""
    run, signals, now = RunDir(tmp_path / "runs" / "mine"), list[int](), [0.0]
    run.create()
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(down, "time", clock)
    monkeypatch.setattr(down, "ask_supervisor", lambda *given: None)
    monkeypatch.setattr(down.runs, "supervisor_pid", lambda run: os.getppid())
    monkeypatch.setattr(down.os, "kill", lambda pid, number: signals.append(pid))
    with runs.locked(run):
        assert down.stop(run) == 1 and not signals
        assert "it is up on another machine or in a container; stop it there" in capsys.readouterr().err
        monkeypatch.setattr(down.runs, "supervisor_pid", lambda run: os.getpid())
        assert down.stop(run) == 1 and signals == [os.getpid()]


@pytest.mark.parametrize("posix", [True, False])
def test_down_asks_a_supervisor_whose_pid_is_not_written_yet(
    posix: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signals, asked = list[tuple[int, int]](), list[object]()
    pids = iter([None, None])

    def ask(run: RunDir, message: object) -> Stopping | None:
        asked.append(message)
        return Stopping() if len(asked) > 1 else None

    monkeypatch.setattr(down, "POSIX", posix)  # Windows has no signal that asks
    monkeypatch.setattr(down, "ask_supervisor", ask)
    monkeypatch.setattr(down, "read_deploy", lambda path: DeployConfig())
    monkeypatch.setattr(down.runs, "supervisor_pid", lambda run: next(pids, 4711))
    monkeypatch.setattr(down.runs, "is_up", lambda run: not signals and len(asked) < 2)
    monkeypatch.setattr(down, "_is_here", lambda pid, run: True)
    monkeypatch.setattr(down, "has_ended", lambda pid: bool(signals) or len(asked) > 1)
    monkeypatch.setattr(down.runs, "read_status", lambda run: {"state": "stopped"})
    monkeypatch.setattr(down.os, "kill", lambda pid, number: signals.append((pid, number)))
    assert down.stop(RunDir(tmp_path)) == 0
    assert signals == [(4711, signal.SIGTERM)] * posix and len(asked) == (1 if posix else 2)
