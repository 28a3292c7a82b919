"""The page about scale has the tables that the script makes of the measured figures, and they follow from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import scale
from benchmarks.scale import ACTORS, PAGE, TABLES, Constants, ends, figure, filled, rounded

KNOWN = Constants.measured()


def test_the_page_has_the_tables_of_the_script() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, KNOWN) == page, "python -m benchmarks.scale --write"
    assert [match[2] for match in scale.BLOCK.finditer(page)] == list(TABLES)
    faster = replace(KNOWN, steps_per_second=2 * KNOWN.steps_per_second)
    assert filled(page, faster) != page and filled(filled(page, faster), KNOWN) == page


def test_figures_are_those_of_the_benchmarks() -> None:
    assert KNOWN.bytes_per_step == figure("replay", "together at 1.43 : 1", "on the wire")
    with pytest.raises(LookupError):
        figure("replay", "together at 1.43 : 1", "inserts per fortnight")


def test_no_trunk_has_more_shards_than_there_may_be() -> None:
    for known in (KNOWN, replace(KNOWN, bytes_per_step=1.0)):  # the link is the limit, or the shards are
        shards = [int(row.split(" | ")[2]) for row in scale.trunks(known).splitlines()[2:]]
        assert max(shards) <= scale.MOST_SHARDS


@pytest.mark.parametrize("count", scale.MEASURED_CONNECTIONS)
def test_what_connections_cost_is_as_computed_from_other_numbers_of_them(count: int) -> None:
    """The line goes through the costs of 8 and of 500 connections, and this is a number between or beyond."""
    per_step, per_connection = scale.shard_cost()
    case = f"{count:,} connections"
    computed = figure("connections", case, "inserts") * per_step + count * per_connection
    assert abs(scale.measured_cores(case) / computed - 1) <= 0.25


def test_shards_are_enough_for_steps_and_for_peers() -> None:
    for actors in ACTORS:
        shards = KNOWN.shards(actors)
        assert shards >= actors * KNOWN.shard_cores_per_actor > shards - 1
    slow = replace(KNOWN, steps_per_second=1.0)
    assert slow.shards(10_000) == 10, "a thousand peers each"


def test_each_choice_ends_where_the_next_actor_is_one_too_many() -> None:
    found = {choice: at for choice, at, _ in ends(KNOWN)}
    assert KNOWN.bits(int(found["experience over a link of 10 Gb/s"])) <= 10e9
    assert KNOWN.bits(int(found["experience over a link of 10 Gb/s"]) + 1) > 10e9
    assert KNOWN.shards(int(found["one replay process"])) == 1 and KNOWN.shards(int(found["one replay process"]) + 1) == 2
    assert list(found.values()) == sorted(found.values())


@pytest.mark.parametrize(
    ("value", "said"), [(0.0123, "0.012"), (9.96, "10.0"), (650_000_000, "650,000,000"), (163, "160"), (0, "0")]
)
def test_two_digits_are_said(value: float, said: str) -> None:
    assert rounded(value) == said
