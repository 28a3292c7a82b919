"""What the comparison of interrupted runs says of its results."""

import json
from pathlib import Path

import pytest

from benchmarks.learning.interrupted import main, report


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


def test_one_seed_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("alone", "interrupted"):
        result(tmp_path, kind, 1, 500.0)
    monkeypatch.setattr("sys.argv", ["interrupted", "--report", "--results", str(tmp_path)])
    assert main() == 0 and capsys.readouterr().out == "CartPole-v1: seeds 1\n"


@pytest.mark.parametrize(
    ("flag", "said"), [("--steps", "asked_steps 9, not 8"), ("--episodes", "episodes 9, not 8"), ("--kills", "kills 1, not 8")]
)
def test_results_of_other_values_are_not_mixed_with_new_ones(
    flag: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("alone", "interrupted"):
        path = tmp_path / f"cartpole-v1-{kind}-1.json"
        path.write_text(json.dumps({"kind": kind, "asked_steps": 9, "episodes": 9, "killed_at": [3]}))
    same = {"--steps": "9", "--episodes": "9", "--kills": "1", "--seeds": "1", "--results": str(tmp_path)}
    monkeypatch.setattr("sys.argv", ["interrupted", *(word for pair in (same | {flag: "8"}).items() for word in pair)])
    with pytest.raises(SystemExit, match=f"was made with {said}"):
        main()
