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
from deploy.install import Environment
from learner.devices import builds

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell script")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment that is kept as it is, whose Python writes down its arguments as pip. It cannot install uv, nor compile."""
    made = Environment(tmp_path / "venv")
    made.python.parent.mkdir(parents=True)
    made.stamp.write_text(f"{made.folder} digest extras torch")
    script(made.python, "pip", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(install, "python_version", lambda interpreter: (3, 11))
    monkeypatch.setenv("PIP_NO_COMPILE", "0")
    return made


def script(path: Path, name: str, folder: Path, status: int = 0) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{{ printf '%s' {name}; printf '\\t%s' \"$@\"; echo; }} >> '{folder}/calls'\nexit {status}\n")
    path.chmod(0o700)


def calls(folder: Path) -> list[list[str]]:
    return [line.split("\t") for line in (folder / "calls").read_text().splitlines()]


def run(environment: Environment, build: str = "cpu", torch: str = builds.TORCH) -> None:
    install.install(environment, ["video"], build, torch, "wanted")


def test_uv_installs_where_it_is_on_the_path(environment: Environment, tmp_path: Path) -> None:
    script(tmp_path / "path" / "uv", "uv", tmp_path)
    run(environment)
    program = ["uv", "pip", "install", "--python", str(environment.python)]
    assert calls(tmp_path) == [
        [*program, f"torch=={builds.TORCH}+cpu"],
        [*program, "--editable", f"{install.ROOT}[video]"],
    ]
    assert environment.read_stamp() == "wanted"


@pytest.mark.parametrize("wanted", [True, False])
def test_headraces_own_modules_are_compiled_unless_pip_is_to_compile_none(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    if wanted:
        monkeypatch.delenv("PIP_NO_COMPILE")
    script(tmp_path / "path" / "uv", "uv", tmp_path)
    run(environment)
    compiled = [words for words in calls(tmp_path) if "compileall" in words]
    folders = [str(install.ROOT / name) for name in install.PACKAGES]
    assert [words[-len(folders) :] for words in compiled] == ([folders] if wanted else [])
    assert all(Path(folder, "__init__.py").is_file() for folder in folders)


def test_what_is_installed_is_installed_at_the_versions_of_the_constraints(environment: Environment, tmp_path: Path) -> None:
    """They are the ones in the environment, where every command runs, with the torch that is asked for."""
    assert {name for name, value in install.environ().items() if value == install.LIMITS} == {
        *("PIP_CONSTRAINT", "UV_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "UV_BUILD_CONSTRAINT")
    }
    run(environment, torch="2.4.1")
    limits = (environment.folder / install.LIMITS).read_text().splitlines()
    assert "torch==2.4.1" in limits and f"torch=={builds.TORCH}" not in limits


def test_without_one_uv_is_installed_into_the_environment(environment: Environment, tmp_path: Path) -> None:
    own = environment.python.with_name("uv")
    script(tmp_path / "made", "own-uv", tmp_path)
    environment.python.write_text(f"#!/bin/sh\necho $4 $5 >> '{tmp_path}/calls'; cp '{tmp_path}/made' '{own}'\n")
    run(environment)
    assert [call[0] for call in calls(tmp_path)] == ["install uv", "own-uv", "own-uv"]


def test_pip_installs_what_uv_cannot(environment: Environment, tmp_path: Path) -> None:
    script(tmp_path / "path" / "uv", "uv", tmp_path, status=2)
    run(environment)
    made = calls(tmp_path)
    assert [call[0] for call in made] == ["uv", "pip"] * 2, "pip has found the build for this machine: no other one is tried"
    assert made[1] == ["pip", "-I", "-m", "pip", "install", *made[0][5:]] and environment.read_stamp() == "wanted"


def test_what_neither_can_install_is_an_error_that_shows_the_log(environment: Environment, tmp_path: Path) -> None:
    script(tmp_path / "path" / "uv", "uv; echo error: dns error", tmp_path, status=2)
    script(environment.python, "pip", tmp_path, status=1)
    with pytest.raises(SystemExit, match=r"without a GPU: --torch cpu.*The log, .*install.log, ends:"):
        run(environment)
    assert environment.read_stamp() == "unfinished"


def test_without_a_network_the_error_says_so(environment: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    environment.log.write_text("WARNING: Retrying … Failed to establish a new connection: Temporary failure in name resolution\n")
    with pytest.raises(SystemExit, match="No network: a package index cannot be reached."):
        environment.fail("Headrace could not be installed.")


def test_uv_looks_where_pip_is_told_to_and_compiles_unless_pip_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://mirror.example/simple")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("UV_INDEX", "https://own.example/simple")
    environ = install.environ()
    assert environ["UV_FIND_LINKS"] == "/wheels,/more"
    assert environ["UV_INDEX"] == "https://own.example/simple", "what the user tells uv counts more"


def test_without_a_compiler_the_advice_leaves_out_mario_and_nothing_else() -> None:
    advised = install.NO_COMPILER.rpartition("EXTRAS=")[2].split(",")
    assert advised == [extra for extra in install.USUAL.split(",") if extra not in ("mario", "retro")]


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
            environment.stamp.write_text(wanted)

        monkeypatch.setattr(install, "install", instead)
        monkeypatch.setattr(sys, "argv", ["install.py", "--venv", str(tmp_path / "a venv"), *arguments])
        install.main()
        return made[0] if made else None

    return call


def test_a_call_without_options_keeps_those_of_the_installation(asked: Callable[..., object]) -> None:
    """`make install TORCH=cu126`, then `make up`: the second installed the first build again."""
    version = builds.TORCH
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
    run(environment, "auto", "newest")
    assert calls(tmp_path)[0][5:] == ["torch", "--torch-backend", "auto"]


@pytest.mark.parametrize(
    ("extras", "build", "python", "message"),
    [
        ([], "rocm", (3, 11), "docs/start/windows.md"),
        (["directml"], "auto", (3, 13), "DirectML is for Python 3.11 and 3.12"),
        (["retro"], "auto", (3, 11), "needs g\\+\\+"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_touched(
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
    extras: list[str],
    build: str,
    python: tuple[int, int],
    message: str,
) -> None:
    before = environment.read_stamp()
    monkeypatch.setattr(builds, "look", lambda: builds.Machine("win32", adapters=("1002:744c",)))
    monkeypatch.setattr(install, "python_version", lambda interpreter: python)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match=message):
        install.install(environment, extras, build, builds.TORCH, "wanted")
    assert environment.read_stamp() == before


def test_a_folder_that_is_not_an_environment_of_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="was not made by this installer"):
        Environment(tmp_path).make([])
    assert (tmp_path / "thesis.tex").exists()
