"""The device of each process, and what is logged about its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import tomli_w
import torch

from benchmarks.common.settings import write_settings
from learner.algorithms.dqn.config import DqnConfig
from learner.config import LearnerConfig
from learner.devices.capabilities import Capabilities, DeviceError
from learner.parallel import peers, ranks
from learner.parallel.peers import BROKEN_STATUS
from learner.parallel.ranks import resolve_each
from tests.harness.waiting import ROOT
from tests.learner.examples import CPU, make_spec, vector
from tests.learner.parallel import dying_in_a_sum
from transport.experience import write_spec
from transport.run_dir import RunDir


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str) -> torch.device:
        return torch.device("cuda", 0) if name == "auto" else torch.device(name if ":" in name else f"{name}:0")

    monkeypatch.setattr(ranks, "resolve", resolve)
    monkeypatch.setattr(ranks, "capabilities", lambda device: Capabilities("a card", collectives="nccl"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_all_processes_share_the_cpu() -> None:
    assert resolve_each("cpu", 1) == [CPU] and resolve_each("cpu", 3) == [CPU] * 3


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_process_has_its_own_gpu(name: str, two_gpus: None) -> None:
    assert resolve_each(name, 2) == [torch.device("cuda", 0), torch.device("cuda", 1)]


@pytest.mark.parametrize(
    ("name", "processes", "reason"),
    [("cuda", 3, "there are 2: use --learner.processes 2"), ("cuda:1", 2, "one device, but there are 2 processes: use cuda")],
)
def test_more_processes_than_gpus_are_refused(name: str, processes: int, reason: str, two_gpus: None) -> None:
    with pytest.raises(DeviceError, match=reason):
        resolve_each(name, processes)


def test_a_card_that_cannot_compute_is_refused_before_its_process_starts(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = ranks.resolve

    def with_an_old_card(name: str) -> torch.device:
        if name == "cuda:1":
            raise DeviceError("device cuda:1 is not available: no kernels")
        return resolve(name)

    monkeypatch.setattr(ranks, "resolve", with_an_old_card)
    assert resolve_each("cuda", 1) == [torch.device("cuda", 0)]
    with pytest.raises(DeviceError, match="cuda:1 is not available"):
        resolve_each("cuda", 2)


def test_a_device_without_collectives_serves_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "resolve", lambda name: torch.device("mps"))
    assert resolve_each("mps", 1) == [torch.device("mps")]
    with pytest.raises(DeviceError, match="only one learner process: leave out --learner.processes 2"):
        resolve_each("mps", 2)


@pytest.mark.parametrize(
    ("ended", "status", "line"),
    [
        ({0: BROKEN_STATUS, 1: -9}, 1, "learner-1 was killed by SIGKILL, so the other learner processes were ended too\n"),
        ({0: BROKEN_STATUS, 2: 2}, 2, ""),
        ({0: 1}, 1, ""),
        ({0: BROKEN_STATUS, 1: BROKEN_STATUS}, BROKEN_STATUS, "learner: its processes have lost the connection to each other\n"),
    ],
)
def test_the_first_cause_is_logged(ended: dict[int, int], status: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ranks.explain(ended) == status and capsys.readouterr().out == line


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_error_in_all_processes_is_logged_once_and_ends_them_all(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    learner = msgspec.to_builtins(LearnerConfig(processes=2, device="cpu", batch_size=10, accumulation=3))
    sections = {"algorithm": msgspec.to_builtins(DqnConfig(hidden=8)), "learner": learner}
    run_dir.config.write_text(tomli_w.dumps({"env": {"id": "toy"}} | sections))
    write_settings(run_dir, {"env": {"id": "toy"}} | sections)
    run_dir.spec.write_bytes(write_spec(make_spec(vector(), n_step=3)))
    command = [sys.executable, "-m", "learner", str(run_dir.path)]
    child = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert child.returncode == 2
    assert child.stdout == "learner: learner.batch_size 10 must be a multiple of learner.accumulation 3\n"
    assert not list((run_dir.path / "endpoints").iterdir())


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["gloo", "stuck"])
def test_a_process_killed_inside_a_sum_ends_the_one_that_waits_for_it(tmp_path: Path, how: str) -> None:
    """`stuck`: nothing but its own thread can end the other one before the launcher kills it, after 30 seconds."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    command = [sys.executable, "-m", dying_in_a_sum.__name__, str(run_dir.path), how]
    child = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    assert child.stdout == "learner-1 was killed by SIGKILL, so the other learner processes were ended too\n"
    assert child.returncode == 1, "the supervisor starts the learner again"
    assert (run_dir.path / "ended").read_text() == str(BROKEN_STATUS), "it was not killed"
    assert peers.LOOK_SECONDS + peers.LOSS_SECONDS < 15, "so it is over within half a minute"
