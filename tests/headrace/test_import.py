from __future__ import annotations

import subprocess
import sys

import pytest

import headrace

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
