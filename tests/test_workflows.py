"""GitHub's workflows, which only run there, by GitHub's schema."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("check_jsonschema")
WORKFLOWS = sorted((Path(__file__).parent.parent / ".github" / "workflows").glob("*.yml"))


def check(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True)


def test_workflows_are_what_github_takes(tmp_path: Path) -> None:
    assert len(WORKFLOWS) == 2
    done = check(*WORKFLOWS)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on", "runs-in"), encoding="utf-8")
    assert check(wrong).returncode == 1


def test_every_python_that_is_tested_may_be_installed() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.11,<3.15"' in text
    assert 'python: ["3.11", "3.12", "3.13"]' in WORKFLOWS[-1].read_text(encoding="utf-8")
