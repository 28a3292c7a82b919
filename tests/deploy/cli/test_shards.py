"""`--replay.shards` and `headrace reshard`, as a user meets them."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from actors.envs.preflight.parent import PreflightResult
from deploy import settings
from deploy.children import child_environment
from deploy.cli import main as cli
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.launch import preflight
from deploy.process_spec import ProcessSpec
from deploy.recorded.status import empty
from deploy.reporting.figures import replay_record, shard_records, tags
from deploy.reporting.remote import RemoteActors
from deploy.supervision import status
from deploy.supervision.processes import ProcessState, topology
from deploy.supervision.steps import StepCount
from deploy.views.terminal.summary import show
from learner.config import LearnerSettings
from replay.config import ReplayConfig, ReplayProcess
from replay.log.shard_folders import note, stored_shards
from tests.deploy.cli.test_main import SPEC, Service, quiet_world, refused
from tests.replay.log.test_reshard import SPEC as STORED_SPEC
from tests.replay.log.test_reshard import Life, contents
from transport.experience import write_spec
from transport.messages.control import Progress
from transport.run_dir import RunDir

__all__ = ["quiet_world"]
UP = ("up", "--env", "CartPole-v1", "--run", "mine", "--algo", "dqn")
SHARD = {
    "items": 40.0, "capacity": 100.0, "inserted_steps": 50.0, "sampled_items": 100.0, "samples_per_insert": 2.0, "band_low": 2.0,
    "busy_fraction": 0.2, "sample_hold_fraction": 0.1, "insert_hold_fraction": 0.0,
}  # fmt: skip
RECORDS = {
    "replay-1": SHARD | {"busy_fraction": 0.9, "insert_hold_fraction": 0.5, "sampled_items": 300.0, "samples_per_insert": 6.0},
    "replay-0": SHARD,
    "learner": {"updates": 3.0},
}


def stopped(shards: int) -> RunDir:
    """A run with a configuration and without experience."""
    assert cli.main([*UP, "--replay.shards", str(shards)]) == 0
    run: RunDir = Service.made[-1][0]
    return run


def test_each_shard_has_a_process_settings_and_its_part_of_the_budgets() -> None:
    run = stopped(2)
    config = load_run_config(run)
    specs = [spec for spec in topology(config, run.path) if spec.role == "replay"]
    assert [(spec.name, spec.arguments[1:], spec.vital) for spec in specs] == [
        ("replay-0", ("--shard", "0"), True), ("replay-1", ("--shard", "1"), True),
    ]  # fmt: skip
    settings.write(run, config)
    for index in range(2):
        found = msgspec.json.decode(run.settings(f"replay-{index}").read_bytes(), type=ReplayProcess)
        assert (found.shard, found.place.count, found.seed) == (index, 2, config.seed + index)
        assert found.replay.capacity == config.replay.capacity / 2 and found.replay.min_size == config.replay.min_size / 2
    learner = msgspec.json.decode(run.settings("learner").read_bytes(), type=LearnerSettings)
    assert learner.replay == config.replay


def test_one_replay_is_what_it_was() -> None:
    run = stopped(1)
    config = load_run_config(run)
    (spec,) = (spec for spec in topology(config, run.path) if spec.role == "replay")
    assert (spec.name, spec.arguments) == ("replay", (str(run.path),))
    assert config.replay.of_one_shard is config.replay
    document = empty("mine", "x", "dqn")
    assert "shards" not in document and shard_records({"replay": SHARD}) == {} and replay_record({"replay": SHARD}) is SHARD


def test_a_resume_with_another_number_is_refused_and_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped(2)
    (run.segments / "1-of-2").mkdir()
    (run.segments / "1-of-2" / "0000000000000000.segment").write_bytes(b"experience")
    note(run.segments, 2)
    capsys.readouterr()
    code, line = refused(capsys, "up", "--run", "mine", "--replay.shards", "4")
    assert code == 2 and "run mine has its experience in 2 replay shards, not 4: " in line
    assert "`headrace reshard 4 mine`" in line and "--fresh" in line
    assert cli.main(["up", "--run", "mine"]) == 0


def test_rollouts_take_one_shard(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "preflight", lambda config, *more: PreflightResult(spec_of("rollouts")))
    code, line = refused(capsys, "up", "--env", "CartPole-v1", "--algo", "ppo", "--replay.shards", "2")
    assert code == 2 and "--algo ppo learns from rollouts, which need one shard: --replay.shards 1" in line


def spec_of(unit: str) -> Any:
    return msgspec.structs.replace(SPEC, unit=unit)


def test_a_selector_without_a_total_takes_one_shard(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = refused(capsys, *UP, "--replay.shards", "2", "--replay.selector", "tests.extension.recent:Recent")
    assert code == 2 and "needs replay.shards 1: it has no `total`" in line


def test_shares_that_are_too_small_are_refused_as_shares(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = refused(capsys, *UP, "--replay.shards", "16", "--replay.budget-bytes", "1e9")
    assert code == 2 and "(the part of each of 16 shards)" in line


def test_reshard_moves_the_experience_and_sets_the_number(capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped(2)
    run.spec.write_bytes(write_spec(STORED_SPEC))
    life = Life(run.segments, 2)
    life.insert(0, 3)
    life.stop()
    before = contents(run.segments)
    capsys.readouterr()
    assert cli.main(["reshard", "3", "mine"]) == 0
    assert "21 chunks of 2 replay shards are now in 3 (" in capsys.readouterr().out
    assert contents(run.segments) == before and load_run_config(run).replay.shards == 3
    assert cli.main(["reshard", "3", "mine"]) == 0
    assert "there was no experience to redistribute" in capsys.readouterr().out
    for arguments, words in ((["reshard", "65", "mine"], "1 to 64"), (["reshard", "2", "other"], "no run named")):
        code, line = refused(capsys, *arguments)
        assert code == 2 and words in line


def test_reshard_begins_nothing_where_the_number_cannot_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped(2)
    run.spec.write_bytes(write_spec(STORED_SPEC))
    life = Life(run.segments, 2)
    life.insert(0, 3)
    life.stop()
    run.config.write_text("[[[")
    capsys.readouterr()
    code, line = refused(capsys, "reshard", "3", "mine")
    assert code == 2 and "config.toml is not TOML" in line
    assert stored_shards(run.segments) == 2


def test_reshard_keeps_every_letter_of_the_configuration_in_every_locale() -> None:
    run = stopped(2)
    run.spec.write_bytes(write_spec(STORED_SPEC))
    run.config.write_bytes(run.config.read_bytes() + '[deploy.sink_options.csv]\nfolder = "für später"\n'.encode())
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-m", "headrace", "reshard", "3", "mine"],
        env=child_environment() | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert "für später" in run.config.read_text(encoding="utf-8")


def test_many_shards_are_summed_up_and_shown_one_by_one(tmp_path: Path) -> None:
    whole = replay_record(RECORDS)
    assert whole["items"] == 80 and whole["samples_per_insert"] == 4.0 and whole["band_low"] == 2.0
    assert (whole["busy_fraction"], whole["insert_hold_fraction"]) == (0.9, 0.25)
    slots = [
        ProcessState(ProcessSpec(name, name.partition("-")[0], "replay", ()), record=record) for name, record in RECORDS.items()
    ]
    supervisor: Any = SimpleNamespace(
        slots=slots, stopping=False, finished=False, exit_status=0, reason="", all_ready=True, silent_seconds=lambda _: None
    )
    remote = RemoteActors(lambda: 0.0, lambda name, text: None)
    found = status.document(RunDir(tmp_path), RunConfig(), {}, supervisor, remote, 5.0, 0.0, {})
    assert found["replay"]["items"] == 80 and list(found["shards"]) == ["replay-0", "replay-1"]
    console = Console(file=io.StringIO(), width=200)
    show(found, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "replay   80/200 items · samples/insert 4.0" in shown and "replay-1 40/100 items · samples/insert 6.0" in shown
    plotted = tags({}, whole, {}, {}, 0.0, shard_records(RECORDS))
    assert plotted["replay/size"] == 80 and plotted["replay/1/samples_per_insert"] == 6.0 and plotted["replay/0/size"] == 40


def test_steps_are_those_of_all_shards() -> None:
    def report(shard: int, pid: int, steps: int, restored: int = 0) -> Progress:
        return Progress(f"replay-{shard}", pid, "ready", 1, {}, steps, restored)

    count = StepCount(1_000, 2)
    count.on_progress(report(0, 1, 600, 600))
    assert count.total == 1_000 and not count.moved, "the other one has not said how many it has"
    count.on_progress(report(1, 2, 410, 400))
    assert count.total == 1_010 and count.moved
    count.on_progress(report(0, 3, 600, 600))  # it was killed
    count.on_progress(report(0, 3, 650, 600))
    assert count.total == 1_060
    kept = StepCount(100, 2)  # without a log
    kept.on_progress(report(0, 1, 5))
    kept.on_progress(report(1, 2, 7))
    kept.on_progress(report(1, 3, 0))
    assert kept.total == 112


def test_the_parts_of_all_shards_are_the_whole() -> None:
    config = ReplayConfig(shards=3, capacity=100, min_size=10)
    assert (config.of_one_shard.capacity, config.of_one_shard.min_size) == (34, 4)


def test_shards_that_no_actor_sends_to_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([*UP, "--replay.shards", "4", "--actors", "2"])
    assert "note: none of the 2 actors sends to replay-1, replay-2, whose part" in capsys.readouterr().out
    cli.main(["up", "--env", "CartPole-v1", "--run", "other", "--replay.shards", "2", "--actors", "2"])
    assert "sends to" not in capsys.readouterr().out
