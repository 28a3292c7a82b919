"""Two real processes that learn together, over gloo: bit for bit alike, and as one would from the doubled batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from learner.parallel.base import ALONE, STORE_VARIABLE, rank_and_size
from learner.parallel.group import join
from tests.harness.waiting import ROOT, wait_until
from tests.learner.parallel import learning_together
from tests.learner.parallel.learning_together import CASES, fixed_noise, learn

pytestmark = pytest.mark.xdist_group("two ranks")  # they are started once for all tests here
SECONDS = 280


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which two ranks have left what came of it."""
    folder = tmp_path_factory.mktemp("together")
    command = [sys.executable, "-m", learning_together.__name__, str(folder)]
    environment = os.environ | {STORE_VARIABLE: str(folder / "store"), "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    log = (folder / "log").open("wb")
    ranks = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=log, stderr=log) for rank in range(2)]
    try:
        wait_until(lambda: all(rank.poll() is not None for rank in ranks), SECONDS, "two ranks")
        assert [rank.returncode for rank in ranks] == [0, 0], (folder / "log").read_text()
        yield folder
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        log.close()


def found(folder: Path, name: str) -> list[dict[str, np.ndarray]]:
    """What each rank has saved."""
    return [dict(np.load(folder / f"{name}-{rank}.npz", allow_pickle=False)) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_the_weights_of_all_ranks_are_equal_to_the_bit(together: Path, case: str) -> None:
    one, other = found(together, case)
    assert one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("case", ["dqn", "sac", "ppo", "ppo-lstm", "pqn", "reppo"])
def test_two_ranks_learn_what_one_process_learns_from_the_doubled_batch(
    together: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "randn_like", fixed_noise)
    alone, begun = learn(case), learning_together.learn_nothing(case)
    shared = found(together, case)[0]
    assert alone.keys() == shared.keys()
    moved = max(float(np.abs(alone[name] - begun[name]).max()) for name in begun if name.endswith("weight"))
    apart = {name: float(np.abs(alone[name] - shared[name]).max()) for name in alone}
    assert moved > 0.05 and max(apart.values()) < 5e-6, apart


def test_no_process_takes_a_step_whose_gradient_is_not_finite_in_one_of_them(together: Path) -> None:
    one, other = found(together, "broken")
    assert all(np.isfinite(one[name]).all() and one[name].tobytes() == other[name].tobytes() for name in one)
    assert one["skipped"] == 1


def test_running_statistics_become_those_of_rank_0(together: Path) -> None:
    one, other = found(together, "statistics")
    assert not np.array_equal(one.pop("before"), other.pop("before"))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_collectives_return_the_same_in_all_processes_and_listen_on_loopback_only(together: Path) -> None:
    one, other = (json.loads((together / f"answers-{rank}.json").read_text()) for rank in range(2))
    for answers in (one, other):
        assert answers["any"] == [False, True] and answers["least"] == 10 and answers["total"] == 21
        assert set(answers["listening"]) <= {"127.0.0.1"}


def test_a_process_that_waits_for_another_sends_heartbeats(together: Path) -> None:
    assert (together / "beaten").exists() and not json.loads((together / "answers-0.json").read_text())["waited"]


def test_a_process_that_has_lost_another_raises_group_broken(together: Path) -> None:
    assert (together / "broken").exists()


def test_a_process_that_was_started_alone_is_a_group_of_one() -> None:
    assert rank_and_size() == (0, 1) and type(join(torch.device("cpu"), learning_together.Beating(Path()))) is type(ALONE)
    value, parameter = torch.tensor(2.0), torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.full((3,), 5.0)
    ALONE.average([parameter], 4)
    assert parameter.grad.tolist() == [5.0] * 3
    assert ALONE.greatest(value) is value and ALONE.mean(value) is value
    assert ALONE.any(True) and not ALONE.any(False)
    assert (ALONE.least(3), ALONE.total(3)) == (3, 3)
