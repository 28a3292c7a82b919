"""A run on a cluster of Ray over three machines: scaled, struck and ended; and CartPole solved there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.chaos.hosts.ray_machines import ray_machines
from tests.chaos.rows import Row
from tests.harness.spread import LIGHT

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.alone,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'headrace[ray]'"),
]
AT_WORK_SECONDS = 30.0
ELSEWHERE_SECONDS = 20.0  # longer than where another host has room: Ray starts a new host first
SOLVED = 475.0  # the return at which Gymnasium calls CartPole-v1 solved
SOLVE_SECONDS = 300.0


@pytest.mark.row(
    "H5",
    "on Ray actors are scaled; a raylet, or all of its machine, is killed (kill -9)",
    "at work <= 30 s, 4 to 8 to 2 live, elsewhere <= 20 s (p95), lost = doubled = torn = 0, no Ray actor left",
)
def test_actors_on_a_cluster_of_ray_are_scaled_and_outlive_its_machines(row: Row, tmp_path: Path) -> None:
    kills = row.times(0, 4, 10)
    free = "--replay.samples-per-insert-low", "0", "--replay.samples-per-insert-high", "1e9"  # actors never wait for the learner
    with ray_machines(tmp_path, "tests.chaos.simulator:slow_vector", *LIGHT, *free, "--actors", "4") as run:
        run.start()
        at_work = run.wait_for(4)
        scaled = {f"to_{count}_seconds": run.scale(count) for count in (8, 2)}
        run.scale(4)
        gone, elsewhere = zip(*(run.kill_node(everything=bool(number % 2)) for number in range(kills)), strict=True)
        left, verdict = run.down(), run.verdict()
    late = float(np.quantile(elsewhere, 0.95))
    row.measured(
        verdict.text,
        at_work_seconds=at_work,
        **scaled,
        kills=kills,
        elsewhere_p95_seconds=late,
        gone_seconds=max(gone),
        ray_actors_left=left,
        **verdict.figures,
    )
    assert at_work <= AT_WORK_SECONDS and late <= ELSEWHERE_SECONDS and not left
    assert verdict.sound and len(verdict.acknowledged) > 100 * kills


@pytest.mark.row("H6", "CartPole on a cluster of Ray", f"a mean return of {SOLVED:.0f} or more, no Ray actor left")
def test_cartpole_is_solved_on_a_cluster_of_ray(row: Row, tmp_path: Path) -> None:
    row.times(0, 1)
    with ray_machines(tmp_path, "CartPole-v1", "--actors", "4", "--evaluator.episodes", "20", "--seed", "1") as run:
        run.start()
        returns = lambda: [each["return_mean"] for each in run.records("evaluator") if "return_mean" in each]  # noqa: E731
        run.until(lambda: max(returns(), default=0) >= SOLVED, "CartPole solved", SOLVE_SECONDS)
        row.measured(best=max(returns()))
        assert run.down() == 0
