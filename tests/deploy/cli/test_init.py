"""`headrace init`: what it writes works as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.children import child_environment
from deploy.cli.machine import init
from deploy.cli.main import main


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of a new project."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my_project"]) == 0
    assert capsys.readouterr().out.endswith(f"cd my_project\n{init.command('my_project')}\n")
    return tmp_path / "my_project"


def output_of_its_tests(folder: Path, *words: str) -> str:
    """The output of the project's own tests, which must pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, cwd=folder, env=child_environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_it_writes_is_named_whole_and_tidy(made: Path) -> None:
    files = {path.relative_to(made).as_posix(): path.read_text() for path in made.rglob("*") if path.is_file()}
    assert set(files) == {
        *("README.md", "pyproject.toml", "config.toml", "tests/test_my_project.py"),
        *(f"my_project/{name}.py" for name in ("__init__", "environment", "network")),
    }
    assert not [name for name, text in files.items() if init.NAME in text] and init.command("my_project") in files["README.md"]
    pytest.importorskip("ruff")
    for check in (["check", "--select", "E,F,I,B,UP"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *check, "--isolated", "--line-length", "130", "."], cwd=made)
        assert done.returncode == 0


def test_its_environment_and_its_network_pass_its_own_test(made: Path) -> None:
    assert "3 passed" in output_of_its_tests(made, "-k", "not learns")


@pytest.mark.slow
@pytest.mark.flow
@pytest.mark.timeout(900)
def test_it_trains_as_it_is(made: Path) -> None:
    assert "4 passed" in output_of_its_tests(made)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my-project", "cannot be the name of a package: write letters, digits and underscores; my_project?"),
        ("class", "cannot be the name of a package"),
        ("2d", "cannot be the name of a package"),
        ("replay", "is the name of a package that is installed"),
        ("numpy", "is the name of a package that is installed"),
        ("deep/my_project", ""),
    ],
)
def test_a_name_that_no_package_can_have_is_one_line(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == (2 if words else 0)
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == bool(words) and bool(os.listdir(tmp_path)) is not bool(words)


def test_a_folder_with_something_in_it_stays_as_it_is(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made / "config.toml").write_text("mine")
    assert main(["init", "my_project"]) == 2
    assert "there is a my_project already" in capsys.readouterr().err and (made / "config.toml").read_text() == "mine"
