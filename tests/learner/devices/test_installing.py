from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.cli import main as cli
from learner.devices import builds, installing

ROOT = installing.TREE


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose pip is the one on the PATH."""
    monkeypatch.setattr(installing.shutil, "which", lambda name: str(Path(sys.executable).with_name(name)))


@pytest.mark.usefixtures("active")
def test_an_extra_is_installed_from_where_headrace_came_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "platform", "linux")
    assert installing.headrace("web") == "pip install -e '.[web]'", "in the source tree"
    assert installing.headrace() == "pip install -e ."
    monkeypatch.chdir(tmp_path)
    assert installing.headrace("web") == f"pip install -e '{ROOT}[web]'", "elsewhere"
    with monkeypatch.context() as windows:
        windows.setattr(sys, "platform", "win32")
        assert installing.headrace("web") == f'pip install -e "{ROOT}[web]"'
    monkeypatch.setattr(installing, "TREE", tmp_path)  # a copy in site-packages
    for told, place in (
        (None, "headrace"),
        ('{"url": "https://example.org/headrace.whl", "archive_info": {}}', "headrace"),
        ('{"url": "file:///home/me/head%20race", "dir_info": {}}', str(Path("/home/me/head race"))),
    ):
        found = SimpleNamespace(read_text=lambda name, told=told: told)
        monkeypatch.setattr(metadata, "distribution", lambda name, found=found: found)
        assert installing.headrace("web") == f"pip install '{place}[web]'"


def test_the_command_is_one_of_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing.shutil, "which", lambda name: "/usr/bin/pip")
    index = "https://download.pytorch.org/whl/cu126"
    assert installing.torch("cu126") == f"{sys.executable} -m pip install torch==2.13.0+cu126 --extra-index-url {index}"
    monkeypatch.setattr(builds, "look", lambda: builds.Machine("linux", kfd=True))
    assert "torch==2.13.0+rocm7.2 " in installing.torch(), "for this machine"
    monkeypatch.setattr(builds, "look", lambda: builds.Machine("darwin"))
    assert installing.torch() == installing.headrace("torch")
    monkeypatch.setattr(installing, "find_spec", lambda name: None)
    assert installing.headrace("web").startswith(f"uv pip install --python {sys.executable} ")


@pytest.mark.parametrize("module", ["torch", "zmq", "cv2", "tomli_w", "safetensors"])
def test_any_command_says_which_required_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    def run(words: list[str]) -> int:
        raise ModuleNotFoundError(f"No module named '{module}.part'", name=f"{module}.part")

    monkeypatch.setattr(cli, "_run", run)
    assert cli.main(["list"]) == 2
    told = capsys.readouterr().err
    command = installing.headrace("torch" if module == "torch" else "")
    assert re.fullmatch(rf"headrace: [\w-]+ is not installed: {re.escape(command)}\n", told)


def test_a_module_that_headrace_does_not_require_is_not_its_to_install() -> None:
    assert installing.missing_package("ModuleNotFoundError: No module named 'my_env'") == ""
    assert installing.missing_package("RuntimeError: oh dear") == ""
