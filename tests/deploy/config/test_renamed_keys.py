"""The table of renamed keys against the options that there are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from deploy.cli import main as cli
from deploy.config.files import read_run
from deploy.config.run import RunConfig
from learner.algorithms.base import ALGORITHMS, find_algorithm
from transport.files import renamed


def options() -> set[str]:
    """Every dotted key of every algorithm's run."""
    config = RunConfig()
    sections = {field.name: getattr(config, field.name) for field in msgspec.structs.fields(RunConfig)}
    known = {
        f"{name}.{key}"
        for name, section in sections.items()
        if isinstance(section, msgspec.Struct)
        for key in section.__struct_fields__
    }
    return known | {f"algorithm.{key}" for name in ALGORITHMS for key in find_algorithm(name).Config.__struct_fields__}


def test_each_new_name_is_an_option_and_each_old_one_is_none_or_stands_for_something_else() -> None:
    new, old = set(renamed.RENAMED.values()), set(renamed.RENAMED)
    assert new <= options()
    assert old & options() == old & new == {"algorithm.target_kl"}


def test_ppos_options_of_an_older_run_keep_their_values(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[algorithm]\nname = "ppo"\nmax_kl = 0.2\ntarget_kl = 0.05\ntrace = 0.9\npasses = 4\n')
    told = {"name": "ppo", "target_kl": 0.2, "adaptive_kl": 0.05, "gae_lambda": 0.9, "n_epochs": 4}
    assert read_run(file).values == {"algorithm": told}


@pytest.mark.parametrize(("typed", "now"), [("--algorithm.passes", "n-epochs"), ("--algorithm.entropy_coefficient", "ent-coef")])
def test_an_old_flag_answers_with_stable_baselines3s_word(typed: str, now: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--algo", "ppo", typed, "3"]) == 2
    assert capsys.readouterr().err == f"headrace: {typed.replace('_', '-')} is called --algorithm.{now} now\n"
