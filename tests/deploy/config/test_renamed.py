import hashlib
from pathlib import Path

import msgspec
import pytest
import tomli_w

from actors.envs.base import builtin_families
from deploy.cli import main as cli
from deploy.config.files import as_tree, leaves, read_run, write_config
from deploy.config.layers import layers, load_run_config, resolve
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from learner.algorithms.base import ALGORITHMS, find_algorithm, read_algorithm
from transport.files import renamed
from transport.run_dir import RunDir


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two options that exchanged a name, and a value that went."""
    table = {"learner.rate": "learner.learning_rate", "learner.prefetch": "learner.threads", "learner.waves": "learner.prefetch"}
    monkeypatch.setattr(renamed, "RENAMED", table)
    monkeypatch.setattr(renamed, "WITHDRAWN", {("replay.selector", "best"): "leave it out"})


def test_a_value_that_is_no_longer_taken_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[replay]\nselector = "best"\n')
    with pytest.raises(ConfigError, match="replay.selector = 'best' is no longer accepted: leave it out"):
        resolve(layers({}, file))


def test_a_key_that_is_gone_says_what_to_do_and_an_older_run_is_read_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(renamed, "REMOVED", {"learner.magic": "use none"})
    file = tmp_path / "config.toml"
    file.write_text("format = 3\n[learner]\nmagic = 3\nprefetch = 2\n")
    assert read_run(file).values == {"learner": {"prefetch": 2}}
    (tmp_path / "mine.toml").write_text("[learner]\nmagic = 3\n")
    with pytest.raises(ConfigError, match="mine.toml: learner.magic is gone: use none"):
        resolve(layers({}, tmp_path / "mine.toml"))
    assert cli.main(["up", "--learner.magic", "3"]) == 2
    assert capsys.readouterr().err == "headrace: --learner.magic is gone: use none\n"


@pytest.mark.parametrize("key", renamed.REMOVED)
def test_an_older_run_with_a_setting_that_is_gone_resumes(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, (section, name) = tmp_path / "config.toml", key.split(".")
    file.write_text(f"format = 4\nseed = 3\n[{section}]\n{name} = 7\n")
    assert load_run_config(RunDir(tmp_path), trusted=True).seed == resolve(layers({}, file)).seed == 3
    flag = f"--{key.replace('_', '-')}"
    assert cli.main(["up", flag, "7"]) == 2
    assert capsys.readouterr().err == f"headrace: {flag} is gone: {renamed.REMOVED[key]}\n"


@pytest.mark.parametrize("option", [option for _, option in renamed.REMOVED_OPTIONS])
def test_an_option_that_is_gone_is_left_out_where_it_was_off_and_refused_where_it_was_not(option: str, tmp_path: Path) -> None:
    off, advice = renamed.REMOVED_OPTIONS["sac", option]
    section = {"name": "sac", "hidden": 9, option: off}
    assert read_algorithm(section) == read_algorithm({"name": "sac", "hidden": 9})
    file = tmp_path / "config.toml"
    file.write_bytes(tomli_w.dumps({"format": 4, "algorithm": section}).encode())
    assert load_run_config(RunDir(tmp_path), trusted=True).algorithm.flat()["hidden"] == 9
    file.write_bytes(tomli_w.dumps({"format": 4, "algorithm": section | {option: "another"}}).encode())
    with pytest.raises(ConfigError, match=f"algorithm.{option} is gone: {advice}"):
        load_run_config(RunDir(tmp_path), trusted=True)
    assert renamed.without_removed({"name": "mine:Own", option: off}) == {"name": "mine:Own", option: off}


def test_a_run_of_the_first_format_is_read_with_todays_names_even_where_names_were_exchanged(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[learner]\nrate = 0.5\nprefetch = 2\nwaves = 7\n[replay]\nselector = "best"\n')
    assert read_run(file).values == {"learner": {"learning_rate": 0.5, "threads": 2, "prefetch": 7}, "replay": {}}
    config = load_run_config(RunDir(file.parent), trusted=True)
    assert (config.learner.learning_rate, config.learner.threads, config.learner.prefetch) == (0.5, 2, 7)
    assert config.replay.selector == RunConfig().replay.selector


def test_a_run_of_the_second_format_loses_withdrawn_values_and_keeps_its_names(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('format = 2\n[learner]\nprefetch = 2\n[replay]\nselector = "best"\n')
    assert read_run(file).values == {"learner": {"prefetch": 2}, "replay": {}}


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_switch_for_graphs_that_knew_only_yes_and_no_is_now_one_of_three(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the tables as they are
    file = tmp_path / "config.toml"
    file.write_text(f"format = 2\n[learner]\ngraphs = {value}\n")
    assert load_run_config(RunDir(file.parent), trusted=True).learner.graphs == "auto"
    mine = tmp_path / "mine.toml"
    mine.write_text(f"[learner]\ngraphs = {value}\n")
    with pytest.raises(ConfigError, match="learner.graphs = .* is no longer accepted: use .*, or auto"):
        resolve(layers({}, mine))


def test_what_is_written_today_is_not_renamed_again(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    config = resolve(layers({"learner": {"prefetch": 5}}))
    file.write_bytes(write_config(config))
    assert load_run_config(RunDir(file.parent), trusted=True) == config
    assert resolve(layers({}, file)).learner.prefetch == 5, "as a user's own file, too"


def test_a_run_made_by_a_newer_version_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"format = {renamed.FORMAT + 1}\nseed = 3\n")
    run = RunDir(tmp_path)
    for read in (lambda path: load_run_config(run), lambda path: layers({}, path), lambda path: layers({}, None, run)):
        with pytest.raises(ConfigError, match="was written by a newer version of Headrace") as error:
            read(file)
        assert "\n" not in str(error.value)


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


def test_each_new_name_is_an_option_and_each_old_one_is_none_or_stands_for_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    new, old = set(renamed.RENAMED.values()), set(renamed.RENAMED)
    assert new <= options()
    assert old & options() == old & new == {"algorithm.target_kl"}


def test_ppos_options_of_an_older_run_keep_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    file = tmp_path / "config.toml"
    file.write_text('[algorithm]\nname = "ppo"\nmax_kl = 0.2\ntarget_kl = 0.05\ntrace = 0.9\npasses = 4\n')
    told = {"name": "ppo", "target_kl": 0.2, "adaptive_kl": 0.05, "gae_lambda": 0.9, "n_epochs": 4}
    assert read_run(file).values == {"algorithm": told}


def test_a_key_that_is_new_or_gone_has_a_new_format() -> None:
    """Or a resume would take the keys that an older run's config.toml has not for lost ones."""
    keys = {key for key, _ in leaves(as_tree(RunConfig())) if not key.startswith("algorithm.")}
    for name in ALGORITHMS:
        keys |= {f"{name}.{option}" for option in find_algorithm(name).Config.__struct_fields__}
    for name, family in builtin_families().items():
        keys |= {f"{name}.{option}" for option in family.Options.__struct_fields__}
    digest = hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]
    assert (renamed.FORMAT, digest) == (9, "c68c664c2ee802bd"), "raise FORMAT, and write down what the keys of it are"
