"""What of an actor can be seen without processes; the rest is tests/flow."""

from __future__ import annotations

from actors.actor import ActorSettings, describe
from actors.config import ActorsConfig, EnvConfig
from learner.algorithms.dqn.config import DqnConfig
from tests.learner.examples import make_spec, vector
from transport.names import Named


def make_settings(index: int, count: int, each: int) -> ActorSettings:
    actors = ActorsConfig(count=count, envs_per_actor=each)
    return ActorSettings(index, 1, EnvConfig(), Named("dqn", DqnConfig()), actors, make_spec(vector()))


def test_the_environments_of_all_actors_are_numbered_through() -> None:
    numbers: list[int] = []
    for index in range(3):
        settings = make_settings(index, count=3, each=4)
        assignment = settings.assignment
        numbers += range(assignment.offset, assignment.offset + 4)
        assert assignment.environments == 12
    assert numbers == list(range(12))


def test_the_throughput_line_says_what_was_measured() -> None:
    record = {
        "steps_per_second": 1412.4,
        "steps_per_second_60": 1405.0,
        "episodes": 118.0,
        "episode_return": 231.54,
        "policy_version": 42.0,
        "lag": 1.0,
        "wait_credit_fraction": 0.004,
        "raw_bytes_per_second": 3.2e6,
        "sent_bytes_per_second": 0.25e6,
    }
    parts = describe(record).split(" · ")
    assert parts[:2] == ["1,412 steps/s (10 s) 1,405 (60 s)", "episodes 118"]
    assert {"policy v42 lag 1", "waiting 0.4%", "3.20 MB/s raw, 0.25 sent (12.8x)"} <= set(parts)
    assert any(part.startswith("return 231.5") for part in parts)


def test_before_there_is_a_figure_the_throughput_line_is_whole_all_the_same() -> None:
    line = describe({})
    assert "return –" in line and "policy v-1" in line and "0.00 sent" in line
