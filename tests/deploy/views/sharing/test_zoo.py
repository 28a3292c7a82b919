"""The policies that come with Headrace."""

from __future__ import annotations

import pytest

from benchmarks.learning.records import RECORDS
from benchmarks.learning.zoo import ENTRIES, check
from deploy.cli.main import main
from deploy.errors import ConfigError
from deploy.views.sharing.facts import digest_of
from deploy.views.sharing.named import FOLDER, SUFFIX, ZOO, card_file, policy_file, zoo
from deploy.views.sharing.verification import read_claim
from learner.saving.export import read_exported

MOST_BYTES = 7_000_000


def test_every_policy_has_a_card_that_fits_it() -> None:
    assert {"zoo:cartpole", "zoo:snake"} <= set(zoo()) <= {ZOO + name for name in (*ENTRIES, *RECORDS)}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES
    assert {path.suffix for path in FOLDER.iterdir()} == {SUFFIX, ".md"}
    for name in zoo():
        file = policy_file(name)
        assert file is not None
        weights, _, config = read_exported(file)
        claim = read_claim(card_file(name))
        assert claim.weights_sha256 == digest_of(weights) and claim.env == config["env"]["id"]
        assert claim.evaluation is not None and claim.evaluation.episodes >= 100 and not claim.evaluation.selected


def test_a_name_that_the_zoo_has_not_is_one_line() -> None:
    with pytest.raises(ConfigError, match="the zoo has no policy zoo:cartpol; did you mean zoo:cartpole?"):
        policy_file("zoo:cartpol")


def test_a_policy_does_what_its_card_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "zoo:cartpole", "--episodes", "20"]) == 0
    assert "verified: the policy has return" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo())
def test_each_does(name: str) -> None:
    assert main(["verify", name]) == 0


@pytest.mark.slow
def test_exports_of_all_are_exact() -> None:
    pytest.importorskip("onnxruntime")
    assert check() == 0
