"""Hindsight wanted of an environment whose rewards cannot be computed from goals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.cli import main as cli


def test_it_is_refused_in_one_line_that_says_how_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONIOENCODING"):  # put back afterwards: the command changes them
        monkeypatch.setenv(name, os.environ.get(name, ""))
    assert cli.main(["up", "--env", "tests.actors.toy_envs:PlanePushed", "--algo", "sac"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("headrace: ") and error.count("\n") == 1
    assert "PlanePushed" in error and "--algorithm.hindsight 0" in error
    assert not Path("runs").exists()
