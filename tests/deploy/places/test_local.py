import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy import children
from deploy.children import ROOT, check_actor_python, child_environment, python_command
from deploy.errors import ConfigError
from deploy.places.base import Exit
from deploy.places.child import Child
from tests.harness.waiting import gone, wait_until

Made = Callable[[str], Child]


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def start(lines: list[str]) -> Iterator[Made]:
    made: list[Child] = []

    def make(code: str) -> Child:
        made.append(Child("child", [sys.executable, "-c", code], child_environment(), lambda name, line: lines.append(line)))
        return made[-1]

    yield make
    for child in made:
        child.kill()
        wait_until(lambda child=child: child.poll() is not None)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (
            "import os\nos.write(1, b'one\\ntw'); os.write(2, b'o\\nthr'); os.write(1, 'ee ü\\nlast'.encode())",
            ["one", "two", "three ü", "last"],
        ),
        ("print('412 steps/s · waiting …')", ["412 steps/s · waiting …"]),
    ],
    ids=["pieces", "letters"],
)
def test_output_arrives_as_whole_lines_in_order_in_every_locale(
    start: Made, lines: list[str], monkeypatch: pytest.MonkeyPatch, code: str, found: list[str]
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    child = start(code)
    wait_until(lambda: child.poll() is not None)
    assert lines == found and child.poll() == Exit(0, found[-1])


def test_an_endless_line_is_cut(start: Made, lines: list[str]) -> None:
    child = start("import os\nfor _ in range(10): os.write(1, b'x' * 65536)")
    wait_until(lambda: child.poll() is not None)
    assert sum(map(len, lines)) == 655_360 and max(map(len, lines)) <= 3 * 65_536


def test_a_process_whose_lines_nobody_can_read_has_not_been_started(start: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            made.append(self.pid)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="can't start new thread"):
        start("import time; time.sleep(600)")
    assert len(made) == 1 and gone(made[0])


@pytest.mark.parametrize(("line", "explained"), [("NAME: no such level", True), ("no such level", False), ("NAMES: no", False)])
def test_an_exit_is_the_processs_own_where_its_last_line_begins_with_its_name(start: Made, line: str, explained: bool) -> None:
    child = start(f"import sys; print({line.replace('NAME', 'child')!r} + 'x' * 400); sys.exit(4)")
    wait_until(lambda: child.poll() is not None)
    ended = child.poll()
    assert ended is not None and (ended.code, ended.explained) == (4, explained)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_that_ignores_sigterm_or_is_stopped_can_be_killed(start: Made, lines: list[str], stopped: bool) -> None:
    child = start("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\ntime.sleep(600)")
    wait_until(lambda: lines == ["deaf"])
    if stopped:
        os.kill(child.pid, signal.SIGSTOP)
    child.ask()
    assert child.poll() is None
    child.kill()
    wait_until(lambda: child.poll() == Exit(-9, "deaf"))


def test_what_a_child_has_started_ends_with_it(start: Made, lines: list[str]) -> None:
    child = start("import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)")
    wait_until(lambda: child.poll() is not None)
    grandchild = int(lines[0])
    wait_until(lambda: gone(grandchild))


def test_a_folder_of_the_same_name_cannot_take_a_modules_place(tmp_path: Path) -> None:
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "mine.py").write_text("print('mine')")
    environment = child_environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    run = [python_command("replay.config"), python_command("mine")]
    done = [subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True) for command in run]
    assert [(each.returncode, each.stdout) for each in done] == [(0, ""), (0, "mine\n")]


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("[[3, 10], []]", "is Python 3.10; actors need 3.11 or newer"),
        ('[[3, 13], ["torch", "cv2"]]', "lacks torch, cv2; install Headrace for that interpreter, too"),
        ("hello", "does not run as a Python interpreter"),
    ],
)
def test_an_interpreter_that_no_actor_could_run_in_is_refused(tmp_path: Path, answer: str, words: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o700)
    with pytest.raises(ConfigError, match=words):
        check_actor_python(str(python))


def test_an_interpreter_with_all_that_an_actor_imports_is_fine() -> None:
    check_actor_python(sys.executable)


def test_another_interpreter_gets_the_source_tree_but_not_what_is_installed_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def paths() -> list[str]:
        return child_environment("other")["PYTHONPATH"].split(os.pathsep)

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), "mine"]))
    assert paths()[:2] == [str(ROOT), "mine"]
    monkeypatch.setattr(children.sysconfig, "get_path", lambda name: str(ROOT))
    assert str(ROOT) not in paths() and "mine" in paths()
