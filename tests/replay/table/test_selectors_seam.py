"""A selector of another package is found by its name, has options, and is refused in one line if it is invalid."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from deploy.config.checks import validate
from deploy.config.layers import layers, resolve
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from replay.config import ReplayConfig
from replay.table.base import SelectorState
from replay.table.ring import Ring
from replay.table.selectors import Prioritised, find_selector, selector_config
from tests.extension.recent import Recent, RecentConfig
from tests.replay.examples import Logged, draw, make_spec, stream_chunks

RECENT = "tests.extension.recent:Recent"
SPEC = make_spec(length=4)
CHUNKS = stream_chunks(SPEC, {}, 100)
CONFIG = ReplayConfig(selector=RECENT, selector_options={"blocks": 2}, capacity=40, min_size=4)


def test_a_selector_of_another_package_draws_the_items() -> None:
    ring = Ring(SPEC, CONFIG, seed=0)
    for chunk in CHUNKS[:20]:
        ring.insert(chunk)
        ring.check_invariants()
    batch = draw(ring, 400)
    assert set(batch["key"].tolist()) == set(range(18 * 4, 20 * 4)), "the newest two chunks"
    assert batch["probability"] == pytest.approx(1 / 8)
    assert ring.update_priorities(batch["key"][:3], np.ones(3)) == 3


def test_its_state_is_saved_and_resumed_but_not_by_another_selector(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = Logged(tmp_path, SPEC, CONFIG)
    for sequence, chunk in enumerate(CHUNKS[:5]):
        first.append(chunk, sequence)
    first.stop()
    again = Logged(tmp_path, SPEC, CONFIG)
    again.stop()
    assert again.ring.size == 20 and "priorities" not in capfd.readouterr().out
    Logged(tmp_path, SPEC, ReplayConfig(capacity=40, min_size=4)).stop()
    assert "not of this selector" in capfd.readouterr().out


class Counting(Recent):
    """Its state cannot be saved: a number of numpy is no JSON."""

    def state(self) -> SelectorState:
        values, numbers = super().state()
        return SelectorState(values, numbers | {"drawn": np.int64(1)})


def test_a_state_that_cannot_be_saved_is_said_and_the_chunks_still_go_to_the_disk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = msgspec.structs.replace(CONFIG, selector=f"{__name__}:Counting", state_seconds=1e-9)
    logged = Logged(tmp_path, SPEC, config)
    for sequence, chunk in enumerate(CHUNKS[:5]):
        logged.append(chunk, sequence)
        logged.journal.turn(dict)
    logged.stop()
    assert logged.journal.log.unsynced == (0, 0)
    assert "could not write to the disk (TypeError: " in capfd.readouterr().out


def test_options_are_those_of_the_selector() -> None:
    assert find_selector(RECENT) is Recent
    assert selector_config(CONFIG) == RecentConfig(blocks=2)
    assert selector_config(ReplayConfig(priority_exponent=0.9)) == Prioritised.Config(0.9), "the section's own key"


@pytest.mark.parametrize(
    ("replay", "words"),
    [
        ({"selector": "best"}, "replay.selector: no selector is called 'best'"),
        ({"selector": "prioritized"}, "did you mean prioritised"),
        ({"selector": "fifo"}, "leave it out"),
        ({"selector": "tests.extension.recent:RecentConfig"}, "is not a selector: it has no Config, insert"),
        ({"selector": "tests.extension.none:Recent"}, "there is no module tests.extension.none"),
        ({"selector": RECENT, "selector_options": {"blocks": 0}}, f"replay.selector_options of {RECENT}: .*>= 1"),
        ({"selector": RECENT, "selector_options": {"block": 1}}, "unknown field `block`"),
        ({"selector_options": {"blocks": 1}}, "replay.selector_options of prioritised"),
    ],
)
def test_an_invalid_selector_is_refused_in_one_line_before_the_launch(replay: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        resolve(layers({"replay": replay}))
    assert "\n" not in str(refusal.value)


def test_a_selector_with_options_goes_through_the_configuration() -> None:
    config: RunConfig = resolve(layers({"replay": {"selector": RECENT, "selector_options": {"blocks": 3}}}))
    assert config.replay.selector_options == {"blocks": 3} and validate(config) == []
