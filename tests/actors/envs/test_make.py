"""Processes that have made environments end, whatever threads a simulator leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import actors

ROOT = Path(actors.__file__).parent
PROGRAMS = [path for path in sorted(ROOT.rglob("*.py")) if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]


def test_a_thread_that_never_ends_keeps_no_process() -> None:
    program = (
        "import threading, time; from actors.envs.make import leave\n"
        "threading.Thread(target=time.sleep, args=(1e6,)).start()\n"
        "print('played', end='')\n"
        "leave(lambda: 3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT.parent, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "played")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_program_with_environments_ends_so(program: Path) -> None:
    end = program.read_text(encoding="utf-8").partition('__name__ == "__main__"')[2]
    assert "leave(" in end or "os._exit(" in end
