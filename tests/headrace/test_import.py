from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from deploy.children import ROOT
from transport.names import UnknownName, find

MOST_SECONDS = 0.15
TRIES = 5
HEAVY = ("numpy", "torch", "gymnasium", "zmq", "msgspec", "psutil", "deploy", "actors", "learner", "replay", "transport")


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_headrace_imports_nothing_else() -> None:
    assert printed(f"import sys, headrace; print([name for name in {HEAVY} if name in sys.modules])") == "[]\n"


@pytest.mark.alone
def test_importing_headrace_takes_at_most_150_ms() -> None:
    code = "import time; began = time.perf_counter(); import headrace; print(time.perf_counter() - began)"
    assert min(float(printed(code)) for _ in range(TRIES)) <= MOST_SECONDS


def test_every_exported_name_is_there() -> None:
    for name in headrace.__all__:
        assert callable(getattr(headrace, name))
    assert sorted(dir(headrace)) == sorted([*headrace.__all__, "__version__"])
    assert headrace.__version__.count(".") == 2


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(headrace, "trian")


@pytest.mark.parametrize("name", ["replay", "learner", "deploy"])
def test_a_users_module_that_hides_a_package_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    words = f"{name}.py hides Headrace's own package `{name}`: give it another name"
    command = [sys.executable, "-m", "headrace", "list"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("headrace: ") and words in done.stderr
    assert done.stderr.count("\n") == 1
    code = "import headrace\ntry: headrace.train\nexcept headrace.ConfigurationError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert words in done.stdout, done.stderr


def test_a_package_that_hides_a_users_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "replay.py").write_text("")
    (tmp_path / "my_algorithm.py").write_text("from replay import mine\n")
    with pytest.raises(UnknownName, match="replay in this folder is hidden by Headrace's own package `replay`"):
        find("my_algorithm:Mine", {}, "algorithm")
