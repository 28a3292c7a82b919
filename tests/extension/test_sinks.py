"""A stranger's sink gets the figures of a run; one that fails is switched off and harms nothing."""

import json
from pathlib import Path

import pytest

from deploy.config.files import FLAGS, Layer, write_config
from deploy.config.layers import load_run_config, resolve
from deploy.config.run import DeployConfig
from deploy.errors import ConfigError
from deploy.reporting.base import Point
from deploy.reporting.sinks import feeds
from deploy.reporting.sinks.feeds import Sinks
from tests.harness.waiting import wait_until
from transport.run_dir import RunDir

CSV = "tests.extension.sinks:Csv"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run waits until a sink has written all, however slow the machine is."""
    monkeypatch.setattr(feeds, "CLOSE_SECONDS", 60.0)
    monkeypatch.setattr(feeds, "PROCESS_CLOSE_SECONDS", 60.0)


def opened(tmp_path: Path, said: list[str], names: list[str], **options: dict[str, str]) -> Sinks:
    deploy = DeployConfig(sinks=tuple(names), sink_options=options)
    return Sinks(deploy, tmp_path, said.append, lambda label, line: said.append(f"{label}: {line}"))


def point(steps: int) -> Point:
    return Point(steps, 12.5, {"time/fps": steps / 10, "eval/mean_reward": -1.0})


def test_a_sink_of_ones_own_gets_its_options_every_point_and_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    made = opened(tmp_path, said, [CSV, "jsonl"], **{CSV: {"tag": "eval/mean_reward"}})
    (tmp_path / "metrics").mkdir()
    for steps in (100, 200):
        made.write(point(steps))
    made.close()
    assert (tmp_path / "figures.csv").read_text() == "100,-1.0\n200,-1.0\nclosed\n" and not said
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "run.jsonl").read_text().splitlines()]
    assert [line["steps"] for line in lines] == [100, 200] and lines[0]["time/fps"] == 10.0


def test_a_sink_that_raises_is_off_with_one_line_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    names = ["tests.extension.sinks:Raising", CSV, "tests.extension.sinks:Unmakeable"]
    made = opened(tmp_path, said, names)
    made.write(point(100))
    wait_until(lambda: len(said) == 2, what="both are off")
    made.write(point(200))
    made.close()
    assert sorted(said) == [
        "sink tests.extension.sinks:Raising is off for the rest of this run: SystemExit: the server is gone",
        "sink tests.extension.sinks:Unmakeable is off for the rest of this run: ValueError: no account",
    ]
    assert (tmp_path / "figures.csv").read_text() == "100,10.0\n200,20.0\nclosed\n"


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (["tensorbord"], {}, "no sink is called 'tensorbord'; did you mean tensorboard"),
        ([CSV], {CSV: {"tga": "x"}}, "unknown field tga"),
        ([CSV], {CSV: {"tag": ""}}, "length >= 1"),
        (["jsonl"], {"jsonll": {}}, "'jsonll' is not among deploy.sinks; did you mean jsonl"),
    ],
)
def test_a_mistake_is_one_line_before_the_launch(names: list[str], options: dict[str, dict[str, str]], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        feeds.check(DeployConfig(sinks=tuple(names), sink_options=options))
    assert "\n" not in str(error.value)


def test_sinks_and_their_options_are_kept_with_the_run(tmp_path: Path) -> None:
    given = {"deploy": {"sinks": ["tensorboard", CSV], "sink_options": {CSV: {"tag": "eval/mean_reward"}}}}
    config = resolve([Layer(FLAGS, given)])
    (tmp_path / "config.toml").write_bytes(write_config(config))
    again = load_run_config(RunDir(tmp_path), trusted=True)
    assert again == config and again.deploy.sink_options == {CSV: {"tag": "eval/mean_reward"}}
