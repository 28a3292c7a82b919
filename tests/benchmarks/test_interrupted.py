"""The report of the comparison of interrupted runs."""

import json
from pathlib import Path

from benchmarks.learning.interrupted import report


def result(folder: Path, kind: str, seed: int, newest: float, env: str = "CartPole-v1") -> None:
    evaluation = {"newest": {"return_mean": newest}, "best": {"return_mean": 500.0}}
    found = {"env": env, "kind": kind, "seed": seed, "evaluation": evaluation}
    (folder / f"{env}-{kind}-{seed}.json".lower()).write_text(json.dumps(found))


def test_seeds_that_have_both_runs_are_compared(tmp_path: Path) -> None:
    for seed, alone, interrupted in ((1, 480, 490), (2, 500, 500), (3, 520, 510)):
        result(tmp_path, "alone", seed, alone)
        result(tmp_path, "interrupted", seed, interrupted)
    result(tmp_path, "alone", 4, 1.0)
    result(tmp_path, "alone", 1, 1.0, "Other-v0")
    head, newest, best = report(tmp_path, "CartPole-v1")
    assert head == "CartPole-v1: seeds 1, 2, 3"
    assert "alone 500.0, interrupted 500.0: difference 0.0, 95 % interval -10.0 to 10.0, as wide as 4.0% of the score" in newest
    assert "alone 500.0, interrupted 500.0: difference 0.0, 95 % interval 0.0 to 0.0" in best
