"""The installer with stubs in place of uv and pip, which write down how they are called."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from deploy import install
from deploy.install import Environment, InstallError
from learner.devices import builds

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell script")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment that is kept as it is, whose Python writes down its arguments as pip. It cannot install uv."""
    made = Environment(tmp_path / "venv")
    made.python.parent.mkdir(parents=True)
    made.write_stamp("before")
    script(made.python, "pip", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(install, "choose_python", lambda *arguments: (sys.executable, (3, 11), True))
    return made


def script(path: Path, name: str, folder: Path, status: int = 0) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{{ printf '%s' {name}; printf '\\t%s' \"$@\"; echo; }} >> '{folder}/calls'\nexit {status}\n")
    path.chmod(0o700)


def calls(folder: Path) -> list[list[str]]:
    return [line.split("\t") for line in (folder / "calls").read_text().splitlines()]


def run(environment: Environment) -> None:
    install.install(environment, ["video"], "cpu", install.pinned("torch"), "wanted")


def test_uv_installs_where_it_is_on_the_path_under_the_same_constraints(environment: Environment, tmp_path: Path) -> None:
    script(tmp_path / "path" / "uv", "uv", tmp_path)
    run(environment)
    made = calls(tmp_path)
    assert [call[:5] for call in made] == [["uv", "pip", "install", "--python", str(environment.python)]] * 2
    torch, headrace = made
    limits = str(environment.folder / "constraints.txt")
    assert torch[5:] == [
        *("--index-strategy", "unsafe-best-match"),
        *(f"torch=={install.pinned('torch')}+cpu", "--constraint", limits),
    ], "without the options that only pip has"
    assert headrace[-6:] == ["--editable", f"{install.ROOT}[video]", "--constraint", limits, "--build-constraint", limits]
    assert environment.holds("wanted")


def test_without_one_uv_is_installed_into_the_environment(environment: Environment, tmp_path: Path) -> None:
    script(environment.python.with_name("uv"), "own-uv", tmp_path)
    run(environment)
    first, *others = calls(tmp_path)
    assert first == ["pip", "-I", "-m", "pip", "install", f"uv=={install.pinned('uv')}"]
    assert [call[0] for call in others] == ["own-uv"] * 2


def test_pip_installs_where_no_uv_can_be_installed(environment: Environment, tmp_path: Path) -> None:
    run(environment)
    made = calls(tmp_path)
    assert [call[:5] for call in made] == [["pip", "-I", "-m", "pip", "install"]] * 4
    assert made[1][5:] == [f"pip=={install.pinned('pip')}"] and "--retries" in made[2]


def test_pip_installs_what_uv_cannot(environment: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script(tmp_path / "path" / "uv", "uv", tmp_path, status=2)
    run(environment)
    made = [call[0] for call in calls(tmp_path)]
    assert made == ["uv", "pip", "uv", "pip", "pip", "pip"], "pip has found the build for this machine: no other one is tried"
    assert "uv could not install all; trying pip" in capsys.readouterr().out and environment.holds("wanted")


def test_uv_looks_where_pip_is_told_to_and_compiles_unless_pip_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://mirror.example/simple")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("UV_INDEX", "https://own.example/simple")
    monkeypatch.delenv("UV_COMPILE_BYTECODE", raising=False)
    monkeypatch.delenv("PIP_NO_COMPILE", raising=False)
    environ = install.install_environ()
    assert environ["UV_FIND_LINKS"] == "/wheels,/more"
    assert environ["UV_INDEX"] == "https://own.example/simple", "what the user tells uv counts more"
    assert environ["UV_COMPILE_BYTECODE"] == "1"
    monkeypatch.setenv("PIP_NO_COMPILE", "0")
    assert "UV_COMPILE_BYTECODE" not in install.install_environ()


def test_what_neither_can_install_is_an_error_that_shows_the_log(environment: Environment, tmp_path: Path) -> None:
    script(tmp_path / "path" / "uv", "uv", tmp_path, status=2)
    script(environment.python, "pip", tmp_path, status=1)
    with pytest.raises(InstallError, match=r"pip could not be updated. The log ends:"):
        run(environment)
    assert environment.read_stamp() == install.UNFINISHED


def test_without_a_compiler_the_advice_leaves_out_mario_and_nothing_else() -> None:
    usual = install.USUAL.split(",")
    advised = install.NO_COMPILER.rpartition("EXTRAS=")[2].split(",")
    assert advised == [extra for extra in usual if extra not in ("mario", "retro")]


def test_an_extra_brings_what_the_extras_in_it_bring() -> None:
    assert install.extras_with("nes-py", ["retro", "robot", "mario", "dev"]) == ["retro", "mario"]
    assert install.extras_with("optuna", ["dev", "docs"]) == ["dev"]
    assert install.extras_with("pybullet", ["dev", "robot"]) == ["robot"]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="on a later Python, other versions are installed")
def test_every_pinned_package_takes_the_oldest_python_that_headrace_takes() -> None:
    """Debian 12 has Python 3.11.2, and pip refuses a pin that wants a later one."""
    wanted = {found.name: found.metadata["Requires-Python"] or "" for found in metadata.distributions()}
    assert not [(name, versions) for name, versions in wanted.items() if not SpecifierSet(versions).contains("3.11.0")]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[list[str], str, str] | None]:
    """Runs the installer's command line. Returns with which extras, build and torch it installs; None where it does nothing."""

    def call(*arguments: str) -> tuple[list[str], str, str] | None:
        made: list[tuple[list[str], str, str]] = []

        def instead(environment: Environment, extras: list[str], build: str, torch: str, wanted: str) -> None:
            made.append((extras, build, torch))
            environment.python.parent.mkdir(parents=True, exist_ok=True)
            environment.python.touch()
            environment.write_stamp(wanted)

        monkeypatch.setattr(install, "install", instead)
        monkeypatch.setattr(sys, "argv", ["install.py", "--venv", str(tmp_path / "a venv"), *arguments])
        assert install.main() == 0
        return made[0] if made else None

    return call


def test_a_call_without_options_keeps_those_of_the_installation(asked: Callable[..., object]) -> None:
    """`make install TORCH=cu126`, then `make up`: the second installed the first build again."""
    version = install.pinned("torch")
    assert asked() == (sorted(install.USUAL.split(",")), "auto", version) and asked() is None
    assert asked("--torch", "cu126", "--extras", "atari,dev") == (["atari", "dev"], "cu126", version)
    assert asked() is None and asked("--extras", "dev,atari") is None
    assert asked("--torch", "auto") == (["atari", "dev"], "auto", version)
    assert asked("--torch-version", "newest") == (["atari", "dev"], "auto", "newest") and asked() is None


@pytest.mark.parametrize(
    ("system", "build", "version", "expected"),
    [
        ("linux", builds.CUDA, builds.TORCH, [["torch==2.13.0,!=2.13.0+cpu"]]),
        ("linux", builds.OLDER_CUDA, builds.TORCH, [["torch==2.13.0+cu126", f"{builds.INDEX}cu126"]]),
        ("linux", builds.ROCM, builds.TORCH, [["torch==2.13.0+rocm7.2", f"{builds.INDEX}rocm7.2"]]),
        ("linux", builds.XPU, builds.TORCH, [["torch==2.13.0+xpu", f"{builds.INDEX}xpu"]]),
        (
            "linux",
            builds.CPU,
            builds.TORCH,
            [["torch==2.13.0+cpu"], ["torch==2.13.0+cpu", f"{builds.INDEX}cpu"], ["torch==2.13.0"]],
        ),
        ("linux", builds.CPU, "newest", [["torch", f"{builds.INDEX}cpu"], ["torch"]]),
        ("win32", builds.CUDA, builds.TORCH, [["torch==2.13.0+cu130", f"{builds.INDEX}cu130"]]),
        ("win32", builds.OLDER_CUDA, builds.TORCH, [["torch==2.13.0+cu126", f"{builds.INDEX}cu126"]]),
        ("win32", builds.CPU, builds.TORCH, [["torch==2.13.0"]]),
        ("darwin", builds.MPS, builds.TORCH, [["torch==2.13.0"]]),
    ],
)
def test_a_build_is_taken_from_where_it_is_published(
    monkeypatch: pytest.MonkeyPatch, system: str, build: str, version: str, expected: list[list[str]]
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(builds.platform, "machine", lambda: "x86_64")
    tried = [arguments for _, arguments in builds.sources(build, version)]
    assert [[word for word in words if word.startswith(("torch", "https:"))] for words in tried] == expected


def test_uv_chooses_the_build_of_another_torch_than_the_table_is_about(environment: Environment, tmp_path: Path) -> None:
    script(tmp_path / "path" / "uv", "uv", tmp_path)
    install.install(environment, ["video"], "auto", "newest", "wanted")
    assert calls(tmp_path)[0][7:10] == ["torch", "--torch-backend", "auto"]


def test_what_cannot_be_is_refused_before_anything_is_touched(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "look", lambda: builds.Machine("win32", adapters=("1002:744c",)))
    with pytest.raises(InstallError, match="docs/start/windows.md"):
        install.install(environment, [], "rocm", builds.TORCH, "wanted")
    monkeypatch.setattr(install, "choose_python", lambda *arguments: (sys.executable, (3, 13), True))
    with pytest.raises(InstallError, match="DirectML is for Python 3.11 and 3.12"):
        install.install(environment, ["directml"], "auto", builds.TORCH, "wanted")
    assert environment.read_stamp() == "before"
