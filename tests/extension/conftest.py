"""The stranger's package counts as installed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.children import ROOT
from deploy.cli import main as cli


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs `headrace` in the test's process, which has imported everything, and returns what it prints. `status`: the exit status
    that is expected."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(Path(__file__).parent)]))

    def call(*arguments: str, status: int = 0) -> str:
        assert cli.main(list(arguments)) == status
        return "".join(capfd.readouterr())

    return call
