"""What the process that keeps a mirror says of what fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.launch.mirror.__main__ import MirrorProcess
from deploy.launch.mirror.copier import MirrorError
from deploy.launch.mirror.note import MirrorNote, write_note
from transport.metrics import Metrics
from transport.run_dir import RunDir


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES), "disk/night"), "Permission denied: disk/night"),
        (MirrorError("the folder disk of deploy.mirror is gone"), "the folder disk of deploy.mirror is gone"),
        (OSError("0000.segment is not a regular file"), "0000.segment is not a regular file"),
    ],
)
def test_a_failure_is_said_once_with_its_reason_and_so_is_its_end(
    error: OSError, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path / "night")
    run.create()
    write_note(run.path, MirrorNote("a" * 32))
    lifetime: Any = SimpleNamespace(metrics=Metrics(), beat=lambda: None)
    process = MirrorProcess(run, tmp_path / "disk", lifetime)
    left = [error, error]

    def turn(sealed: bool) -> int:
        if left:
            raise left.pop()
        return 0

    monkeypatch.setattr(process._copier, "turn", turn)
    assert [process.turn() for _ in range(3)] == [False, False, True]
    assert capsys.readouterr().out.splitlines() == [
        f"nothing can be copied ({reason}); training continues, and copying is tried again",
        "copying goes on",
    ]
