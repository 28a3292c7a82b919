"""`headrace verify`: a card that is true, and cards that are not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.evaluation import evaluate
from deploy.cli import main as cli
from deploy.cli.policies import common
from deploy.cli.policies.verify import trainable
from deploy.views.sharing.card import card
from deploy.views.sharing.facts import COMMAND, EVALUATOR, measured_by, of_file
from deploy.views.sharing.verification import Evaluation, compare, contradiction, half_width, read_claim
from learner.weights import checkpoint

OLDER = Path(__file__).parents[2] / "headrace" / "older" / "format2-ppo.safetensors"
EPISODES = 30


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of the policy, as `headrace eval` measures it."""
    folder = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patched, (folder / "out").open("w") as out:
        patched.chdir(folder)
        patched.setattr(common, "child", lambda module, *words, python="", keys=False: evaluate.main(list(words), out))
        assert cli.main(["eval", str(OLDER), "--episodes", str(EPISODES), "--json"]) == 0
    return json.loads((folder / "out").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def written(figures: dict[str, Any], tmp_path: Path) -> Path:
    """The card of a policy beside it."""
    file = tmp_path / "cartpole.safetensors"
    file.write_bytes(OLDER.read_bytes())
    facts = of_file(file)[0]._replace(steps=3_000, measured=measured_by(COMMAND, figures))
    (tmp_path / "cartpole.md").write_text(card(facts, file.name), encoding="utf-8")
    return tmp_path / "cartpole.md"


def edit(path: Path, found: str, by: str) -> None:
    text = path.read_text(encoding="utf-8")
    changed = re.sub(found, by, text, count=1)
    assert changed != text
    path.write_text(changed, encoding="utf-8")


def test_a_true_card_is_verified_by_other_episodes(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(written), "--seed", "5"]) == 0
    assert capsys.readouterr().out.startswith("verified: the policy has return")
    assert cli.main(["verify", str(written), "--seed", "6", "--episodes", "50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verified"] and found["episodes"] == 50 and found["low"] <= found["return_mean"] <= found["high"]


def test_a_card_with_the_line_ends_of_windows_says_the_same(written: Path) -> None:
    lines, claims = written.read_text(encoding="utf-8"), []
    for end in ("\n", "\r\n"):
        written.write_text(lines, encoding="utf-8", newline=end)
        claims.append(read_claim(written))
    assert claims[0] == claims[1]


def test_other_seeds_play_other_episodes(figures: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(common, "child", lambda module, *words, python="", keys=False: evaluate.main(list(words), out))
        for seed in ("0", "1"):
            assert cli.main(["eval", str(OLDER), "--episodes", str(EPISODES), "--json", "--seed", seed]) == 0
    same, other = map(json.loads, (tmp_path / "out").read_text().splitlines())
    assert same["episode_returns"] == figures["episode_returns"] != other["episode_returns"]
    assert len(other["episode_returns"]) == EPISODES and np.mean(other["episode_returns"]) == pytest.approx(other["return_mean"])


def test_changed_weights_are_noticed(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written.with_suffix(".safetensors")
    weights, metadata = checkpoint.read(file)
    weights = {name: values.copy() for name, values in weights.items()}
    next(iter(weights.values())).reshape(-1)[0] += 1e-3
    checkpoint.write(file, weights, metadata)
    assert cli.main(["verify", str(written)]) == 1
    assert "NOT verified: the weights of cartpole.safetensors are not those of the card" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "by", "reason"),
    [
        (r'"episode_returns": \[[\d.]+', '"episode_returns": [500.0', "its returns have"),
        (r'"return_mean": [\d.]+', '"return_mean": 499.0', "says a mean of 499"),
        (r'"episodes": 30', '"episodes": 3000', "lists 30 returns"),
        (r'"episodes": 30', '"episodes": 1', "has no interval"),
        (r'"env": "CartPole-v1"', '"env": "CartPole-v0"', "is ppo on CartPole-v1, not ppo on CartPole-v0"),
        (r'"return_std": [\d.]+', '"return_std": null', "standard deviation of nothing"),
    ],
)
def test_a_card_that_contradicts_itself_is_noticed(
    found: str, by: str, reason: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(written, found, by)
    assert cli.main(["verify", str(written)]) == 1
    assert reason in capsys.readouterr().out


def test_a_card_that_promises_too_much_is_not_verified(
    figures: dict[str, Any], written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    better = figures | {
        "return_mean": 2 * figures["return_mean"],
        "episode_returns": [2 * one for one in figures["episode_returns"]],
    }
    file = written.with_suffix(".safetensors")
    facts = of_file(file)[0]._replace(measured=measured_by(COMMAND, better | {"return_std": 2 * figures["return_std"]}))
    written.write_text(card(facts, file.name), encoding="utf-8")
    assert cli.main(["verify", str(written), "--seed", "1"]) == 1
    assert "NOT verified: the policy has return" in (told := capsys.readouterr().out) and "outside of" in told


def test_what_is_no_card_is_one_line(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = written.read_text(encoding="utf-8")
    (written.parent / "text.md").write_text("# a page")
    for text, reason in (
        ("", "no card of this version"),
        (whole.replace("headrace: {", "other: {", 1), "no card of this version"),
        (whole.replace('"format": 1', '"format": 9', 1), "format 9"),
        (whole.replace('"weights_sha256": "', '"weights_sha256": ["', 1), "damaged"),
        (whole.replace('"episodes": 30', '"episodes": "30"', 1), "damaged"),
        (whole.replace('"episodes": 30', '"episodes": 0', 1), "damaged"),
    ):
        written.write_text(text, encoding="utf-8")
        assert cli.main(["verify", str(written)]) == 2
        assert reason in (told := capsys.readouterr().err) and told.count("\n") == 1
    written.write_text(whole, encoding="utf-8")
    written.with_suffix(".safetensors").unlink()
    for words, reason in ((["verify", str(written)], "there is no file"), (["verify", "nothing.md"], "cannot be read")):
        assert cli.main(words) == 2
        assert reason in (told := capsys.readouterr().err) and told.count("\n") == 1


def test_an_interval_is_widened_by_that_of_the_new_episodes() -> None:
    claim = Evaluation(by=EVALUATOR, episodes=100, return_mean=50.0, return_std=10.0)
    assert not contradiction(claim)
    verdict = compare(claim, 53.0, 10.0, 25)
    # 1.984 and 2.064 are the quantiles of Student's t for 99 and 24 degrees of freedom.
    width = 1.984 * 10 / 99**0.5 + 2.064 * 10 / 24**0.5
    assert (verdict.low, verdict.high) == (pytest.approx(50 - width, rel=0.002), pytest.approx(50 + width, rel=0.002))
    assert verdict.holds and not compare(claim, 57.0, 10.0, 25).holds
    alike = Evaluation(by=COMMAND, episodes=10, return_mean=500.0, return_std=0.0, episode_returns=(500.0,) * 10)
    assert compare(alike, 500.0, 0.0, 10).holds and not compare(alike, 499.0, 0.0, 10).holds


def test_the_interval_is_that_of_student() -> None:
    for episodes, quantile in ((2, 12.706), (5, 2.776), (17, 2.120), (31, 2.042), (101, 1.984), (1_001, 1.962)):
        assert half_width(1.0, episodes) * (episodes - 1) ** 0.5 == pytest.approx(quantile, rel=0.006)


@pytest.mark.slow
def test_a_training_is_repeated_by_the_settings_of_the_file(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(written), "--train", "--seed", "3", "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert "a training by the same settings has return" in found["reason"] and found["seed"] == 3


def test_a_training_has_no_settings_that_name_files_or_hosts() -> None:
    config = {
        "seed": 1,
        "env": {"id": "CartPole-v1"},
        "learner": {"weights": "/etc/passwd", "batch_size": 64},
        "replay": {"demonstrations": "/etc"},
        "deploy": {"on": "ray"},
        "ray": {"address": "somewhere:6379"},
    }
    assert trainable(config) == {"env": {"id": "CartPole-v1"}, "learner": {"batch_size": 64}, "replay": {}}
