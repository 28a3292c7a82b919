"""What a process asks of its system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.waiting import wait_until
from transport import system

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    sys.platform == "win32" or not Path("/proc/self/autogroup").exists(), reason="this system has no groups of sessions"
)
def test_a_lower_priority_is_that_of_the_process_and_of_its_session_which_can_be_undone() -> None:
    code = (
        "import os; from pathlib import Path; from transport.system import lower_priority, usual_priority\n"
        "group = lambda: Path('/proc/self/autogroup').read_text().split()[-1]\n"
        "print(os.nice(0)); lower_priority(); print(os.nice(0), group())\n"
        "usual_priority(); print(group())\n"
        "lower_priority(); print(os.nice(0), group())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, start_new_session=True)
    before, *found = map(int, done.stdout.split())
    lower = [min(before + system.NICENESS, system.MOST_NICENESS), 2 * system.NICENESS]
    assert found == [*lower, system.NICENESS, *lower], done.stderr


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="this system has no priorities")
def test_a_child_yields_to_this_process_and_so_does_its_session_once_the_system_allows_it() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    group = Path(f"/proc/{child.pid}/autogroup")
    try:
        system.lower_child(child.pid)
        niceness = min(own + system.NICENESS, system.MOST_NICENESS)
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == niceness
        wait_until(lambda: system.lower_group(child.pid), what="the system allows it")
        if group.exists():
            assert group.read_text().split()[-1] == str(system.NICENESS)
            group.write_text("9")
            assert system.lower_group(child.pid) and group.read_text().split()[-1] == "9", "what the child has set stays"
    finally:
        child.communicate()
    assert system.lower_group(child.pid), "it has ended: there is nothing left to do"


def test_a_group_that_cannot_be_changed_yet_is_changed_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    class Busy:
        def write_text(self, text: str) -> None:
            written.append(text)
            if len(written) < 3:
                raise BlockingIOError

    monkeypatch.setattr(system, "GROUP_TURN_SECONDS", 0.0)
    system._set_group(system.NICENESS, Busy())  # type: ignore[arg-type]
    assert written == [str(system.NICENESS)] * 3
    monkeypatch.setattr(system, "GROUP_SECONDS", -1.0)
    written.clear()
    system._set_group(system.NICENESS, Busy())  # type: ignore[arg-type]
    assert len(written) == 1, "it gives up"
