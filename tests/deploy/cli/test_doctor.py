import json
import os
import subprocess
from typing import Any

import pytest

from deploy.cli import main as cli
from deploy.cli.machine import doctor


def answer(monkeypatch: pytest.MonkeyPatch, stdout: str) -> None:
    done: Any = subprocess.CompletedProcess([], 0, stdout, "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *arguments, **options: done)


def test_it_says_what_is_there_and_why_the_rest_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        dict.fromkeys(("name", "precision", "can", "memory"), "") | {"kind": "cuda", "missing": "check the driver"},
        dict.fromkeys(("name", "precision", "can", "memory"), "") | {"kind": "directml", "missing": "this is no Windows"},
        {"kind": "cpu", "missing": "", "name": "CPU", "precision": "float32", "can": "torch.compile", "memory": "7 GB free"},
    ]
    found = {"auto": "cpu", "order": ["cuda", "cpu"], "kinds": rows, "advice": "ROCm is the better road"}
    found |= {"built": "CUDA 13.0, for sm_86", "next": "pip install another torch"}
    answer(monkeypatch, f"a notice\n{json.dumps(found)}\n")
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "-     cuda          not available: check the driver" in out
    assert "-     directml      not available: this is no Windows\n                    ROCm is the better road\n" in out
    assert out.count("directml") == 1
    assert "ok    cpu           CPU, computes in float32\n" in out and "          torch.compile\n" in out and "7 GB free\n" in out
    assert "          built for CUDA 13.0, for sm_86\n" in out and out.endswith("\nnext: pip install another torch\n")
    assert "means cpu here, the first available of cuda, cpu" in out
    for what in ("python", "torch", "packages", "mario", "video", "cores", "memory", "disk"):
        assert f" {what} " in out


def test_what_is_lacking_is_named_at_the_end_and_the_status_is_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, "")
    monkeypatch.setattr(doctor, "MIN_OPEN_FILES", 10**9)  # Windows has no such limit
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "LACKS devices" in out and "\nHeadrace lacks: devices" in out and ("ulimit -n" in out) == (os.name == "posix")
    assert out.splitlines()[-1] == "next: headrace up --env CartPole-v1"
