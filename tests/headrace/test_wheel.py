"""The wheel, built here and used where nothing of the source tree is at hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import msgspec
import pytest

pytestmark = [pytest.mark.flow, pytest.mark.timeout(300), pytest.mark.xdist_group("the wheel")]  # it is built once
venv = pytest.importorskip("venv", reason="the embeddable Python of Windows has no venv")
ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("transport", "replay", "learner", "actors", "deploy", "headrace")
LIBRARIES = Path(msgspec.__file__).parent.parent  # of the environment that runs the tests
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel and sees this one's libraries, but not its source tree."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=os.name == "posix")
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True, text=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    Path(run(folder, [scripts / "python", "-c", code]).strip(), "libraries.pth").write_text(f"{LIBRARIES}\n")
    return scripts


def run(folder: Path, command: list[str | Path]) -> str:
    """What a command prints in `folder`; with an environment that knows nothing of the source tree."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    assert held == {name for name in ours if "__pycache__" not in name}
    assert {f"{package}/py.typed" for package in PACKAGES} <= held


@pytest.mark.slow
def test_the_command_and_the_roles_start_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert run(tmp_path, [installed / "headrace", "--version"]) == f"headrace {VERSION}\n"
    assert run(tmp_path, [installed / "python", "-m", "headrace", "--version"]) == f"headrace {VERSION}\n"
    for role in ("replay", "learner", "actors"):
        assert run(tmp_path, [installed / "python", "-m", role, "--help"]).startswith("usage:")


def test_the_packages_and_their_data_come_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = f"import {', '.join(PACKAGES)}; print(headrace.__version__, *[m.__file__ for m in ({', '.join(PACKAGES)})])"
    version, *files = run(tmp_path, [installed / "python", "-c", code]).split()
    assert version == VERSION and all(Path(file).is_relative_to(installed.parent) for file in files)
    assert "cartpole" in run(tmp_path, [installed / "headrace", "presets"])
    preset = ROOT / "deploy/config/presets/cartpole.toml"
    assert run(tmp_path, [installed / "headrace", "presets", "cartpole"]) == preset.read_text()
    code = "from actors.envs.robot.arm.urdf import OWN_URDF; print(OWN_URDF.read_text())"
    assert "<robot" in run(tmp_path, [installed / "python", "-c", code])


@pytest.mark.slow
def test_a_run_from_the_wheel_learns(installed: Path, tmp_path: Path) -> None:
    arguments = ["--env", "CartPole-v1", "--actors", "1", "--run", "first", "--total-steps", "500", "--replay.min-size", "256"]
    arguments += ["--deploy.record-seconds", "1"]
    shown = run(tmp_path, [installed / "headrace", "up", *arguments, "--learner.batch-size", "64"])
    assert re.search(r"learner +\|", shown) and "supervisor" in shown
    status = json.loads(run(tmp_path, [installed / "headrace", "status", "first", "--json"]))
    assert status["state"] == "stopped" and status["steps"] >= 500


@pytest.fixture(scope="module")
def torchless(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel, and of the libraries here all but torch."""
    folder = tmp_path_factory.mktemp("torchless")
    libraries, bare = folder / "libraries", folder / "bare"
    libraries.mkdir()
    for path in LIBRARIES.iterdir():
        if not path.name.lower().startswith(("torch", "functorch", "_headrace", "headrace")):
            (libraries / path.name).symlink_to(path)
    shutil.copytree(installed.parent, bare, symlinks=True)
    (found,) = bare.rglob("libraries.pth")
    found.write_text(f"{libraries}\n")
    return bare / installed.name


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_dense_networks_train_and_play_without_torch(torchless: Path, tmp_path: Path) -> None:
    headrace = [torchless / "python", "-m", "headrace"]
    absent = "import importlib.util as u; print(u.find_spec('torch'))"
    assert run(tmp_path, [torchless / "python", "-c", absent]) == "None\n"
    shown = run(tmp_path, [*headrace, "demo", "--headless", "--episodes", "1"])
    assert "so this is zoo:snake" in shown and "policy v" in shown
    assert json.loads(run(tmp_path, [*headrace, "eval", "zoo:cartpole", "--episodes", "3", "--json"]))["return_mean"] > 400
    told = run(tmp_path, [*headrace, "up", "--env", "CartPole-v1", "--actors", "1", "--total-steps", "20000", "--run", "mine"])
    assert "by numpy" in told and "of 20,000 environment steps done" in told
    assert "policy v" in run(tmp_path, [*headrace, "eval", "mine", "--episodes", "2"])
    assert "policy v" in run(tmp_path, [*headrace, "demo", "mine", "--headless", "--episodes", "1"])
    refused = subprocess.run(
        [*headrace, "up", "--env", "CartPole-v1", "--algo", "r2d2"], cwd=tmp_path, capture_output=True, text=True
    )
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "torch is not installed: " in refused.stderr and "[torch]" in refused.stderr
