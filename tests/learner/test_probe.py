from __future__ import annotations

import json
import subprocess
import sys

import pytest

from learner.devices import detection as finding
from learner.devices.probe import probe


@pytest.mark.parametrize("maker", ["NVIDIA", "AMD"])
def test_a_gpu_that_auto_cannot_take_is_told_of_where_the_cpu_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, maker: str
) -> None:
    monkeypatch.setattr(finding, "missing", lambda kind: f"{kind} is gone")
    for name, here, note in (("auto", {maker}, "cuda is gone"), ("auto", set(), ""), ("cpu", {maker}, "")):
        monkeypatch.setattr(finding, "gpus", lambda here=here: here)
        assert probe(name, "auto", 1) == {"device": "cpu", "name": "CPU", "note": note, "processes": 1}


def test_what_cannot_be_is_an_error_that_names_the_flag() -> None:
    error = str(probe("toaster", "auto", 1)["error"])
    assert error.startswith("--device: ") and "toaster" in error
    refused = "--learner.precision: precision float16 is not to be had on cpu: use auto, or float32 or bfloat16"
    assert probe("cpu", "float16", 1) == {"error": refused}


def test_the_module_prints_one_json_line() -> None:
    command = [sys.executable, "-m", "learner.devices.probe", "cpu", "auto", "4"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert json.loads(child.stdout) == {"device": "cpu", "name": "CPU", "note": "", "processes": 4}
