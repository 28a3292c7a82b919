"""Mistakes on the command lines of benchmarks: one line each, before anything is measured."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.replay.peer import Peer, PeerFailed

CASES = [
    ("replay.__main__", ["--peer", "reverb"], "each --peer needs a --peer-python"),
    ("replay.__main__", ["--cases", "insert,nothing"], "no cases nothing"),
    ("replay.__main__", ["--runs", "0"], "must be greater than 0"),
    ("replay.__main__", ["--peer", "unheard-of"], "unheard-of"),
    ("replay.__main__", ["--peer", "reverb", "--peer-python", "no/such/python"], "--peer-python: there is no no/such/python"),
    ("pipeline.__main__", ["--batch-size", "0"], "headrace bench pipeline: --learner.batch-size"),
    ("device.__main__", ["--device", "gpu"], "headrace bench device: no device is called 'gpu'"),
    ("device.__main__", ["--sizes", "0"], "must be greater than 0"),
    ("device.gpu", ["--quick", "--device", "cpu"], "headrace bench gpu: there is no GPU to check: --device names the CPU"),
    ("device.gpu", ["--out", "x", "--json"], "--json is of --quick"),
    ("learner.__main__", ["--batches", "nature:0"], "a batch is written 512"),
    ("actors.env", ["--env", "no-such-env"], "no-such-env"),
    ("actors.success", ["--tolerances", "-1"], "lengths in metres"),
]


@pytest.mark.parametrize(("module", "given", "said"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_mistake_costs_one_line(module: str, given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = importlib.import_module(f"benchmarks.{module}").main(given)
    except SystemExit as ended:
        status = ended.code
    output = capsys.readouterr()
    assert status == 2 and output.out == "" and said in output.err.splitlines()[-1]


@pytest.mark.skipif(find_spec("reverb") is not None, reason="Reverb is installed here")
def test_a_peer_that_is_not_installed_is_told_before_anything_is_measured() -> None:
    with pytest.raises(PeerFailed, match=r"has no reverb; benchmarks/README.md says how to install it"):
        Peer("reverb", sys.executable, {})


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("benchmarks.replay.roles", ["torch"]),
        ("benchmarks.replay.peer_script", ["torch", "msgspec", "zmq", "transport"]),
        ("benchmarks.peers.contestant", ["torch", "msgspec", "zmq", "transport"]),
        ("benchmarks.peers.make", ["torch", "msgspec", "zmq", "transport"]),
    ],
)
def test_what_must_stay_light_imports_nothing_heavy(module: str, absent: list[str]) -> None:
    code = f"import sys, {module}; sys.exit(', '.join(set({absent}) & sys.modules.keys()) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
