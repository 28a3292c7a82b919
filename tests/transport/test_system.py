"""What a process asks of its system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from transport import system

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    sys.platform == "win32" or not Path("/proc/self/autogroup").exists(), reason="this system has no groups of sessions"
)
def test_a_lower_priority_is_that_of_the_process_and_of_its_session_which_can_be_undone() -> None:
    code = (
        "import os; from pathlib import Path; from transport.system import lower_priority, usual_priority\n"
        "before, group = os.nice(0), lambda: Path('/proc/self/autogroup').read_text().split()[-1]\n"
        "lower_priority(); print(os.nice(0) - before, group())\n"
        "usual_priority(); print(group())\n"
        "lower_priority(); print(os.nice(0) - before, group())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, start_new_session=True)
    lower = [str(system.NICENESS)] * 2
    assert done.stdout.split() == [*lower, "0", *lower], done.stderr


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
