"""Columns and specs: quantisation, digests, invalid specs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import replace

from learner.algorithms.base import Needs, join
from learner.algorithms.columns import without_hindsight
from transport.experience import (
    ACTION_MASK,
    Categorical,
    Column,
    Continuous,
    ExperienceSpec,
    SpecError,
    observed,
    read_spec,
    write_spec,
)

IMAGE = observed("observation", (4, 4), "|u1", scale=1 / 255, codec="lz4")
SPEC = ExperienceSpec((IMAGE,), Categorical(3), chunk_length=8, stack=4, n_step=3)
ACHIEVED, DESIRED = observed("achieved_goal", (3,), "<f4"), observed("desired_goal", (3,), "|u1", scale=2 / 255, offset=-1.0)
GOALS = join(ExperienceSpec((ACHIEVED, DESIRED), Continuous((-1.0,), (1.0,)), chunk_length=8), Needs(goals=4))


ANGLE = observed("angle", (), "|u1", scale=8 / 255, offset=-3.0)


@given(hnp.arrays(np.float32, 20, elements=st.floats(-3, 5, width=32)))
def test_a_quantised_value_is_off_by_at_most_half_a_step_and_encodes_to_the_same_again(values: np.ndarray) -> None:
    seen = ANGLE.decode(ANGLE.encode(values))
    assert seen.dtype == np.float32 and np.abs(seen - values).max() <= ANGLE.scale / 2 + 1e-6
    assert (seen == ANGLE.decode(ANGLE.encode(seen))).all()


def test_values_beyond_the_bounds_are_stored_as_the_bounds_and_a_stored_array_as_it_is() -> None:
    assert ANGLE.encode(np.array([-99.0, 99.0])).tolist() == [0, 255]
    frame = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert IMAGE.encode(frame) is frame


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            b'{"fields":[{"name":"observation","shape":[84,84],"dtype":"|u1","scale":0.00392156862745098,"offset":0.0,'
            b'"codec":"lz4"}],"action":{"type":"categorical","n":7},"chunk_length":128,"stack":4,"n_step":3}',
            "format 1",  # as it was before columns said what they are
        ),
        (write_spec(SPEC).replace(b'"format":2', b'"format":3'), "format 3"),
        (write_spec(SPEC).replace(b'"format":2', b'"format":"new"'), "format 'new'"),
    ],
)
def test_a_spec_of_another_format_is_refused_in_one_line_that_says_what_to_do(text: bytes, found: str) -> None:
    with pytest.raises(SpecError) as refusal:
        read_spec(text)
    assert found in str(refusal.value) and "--fresh" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "change",
    [
        {"chunk_length": 16},
        {"stack": 2},
        {"n_step": 1},
        {"unit": "rollouts"},
        {"burn_in": 2, "unit": "sequences"},
        {"extras": (Column("log_prob", (), "<f4"),)},
        {"extras": (Column("log_prob", (), "<f4", default=None),)},
        {"action": Categorical(4)},
        {"action": Continuous((-1.0,), (1.0,))},
        {"fields": (replace(IMAGE, scale=1.0),)},
        {"fields": (replace(IMAGE, shape=(4, 5)),)},
    ],
)
def test_the_digest_differs_when_anything_differs(change: dict[str, object]) -> None:
    assert replace(SPEC, **change).digest != SPEC.digest


def test_hindsight_adds_two_columns_and_changes_the_digest() -> None:
    without = without_hindsight(GOALS)
    assert without.digest != GOALS.digest != join(without, Needs(goals=3)).digest
    goal, reward = GOALS.columns[len(without.columns) :]
    rests = replace(DESIRED, name="hindsight_goal", shape=(4, 3), taken="row")
    assert goal == rests, "goals rest as goals do"
    assert reward == Column("hindsight_reward", (4,), "<f4", check="reward")
    assert (without.goals, without.extras) == (0, ())


def test_a_column_that_a_chunk_has_once_is_counted_once() -> None:
    state = Column("memory/h", (5,), "<f4", once=True)
    with_state = replace(SPEC, unit="sequences", burn_in=2, extras=(state,))
    without = replace(with_state, extras=())
    assert with_state.chunk_bytes == without.chunk_bytes + 20
    assert with_state.row_bytes == without.row_bytes
    assert (with_state.history, with_state.rows(8)) == (5, 5 + 8 + 3)


def test_a_spec_survives_its_file() -> None:
    again = read_spec(write_spec(SPEC))
    assert again == SPEC and again.digest == SPEC.digest


MASK = observed(ACTION_MASK, (4,), "|u1")
NO_MASK = r"masked actions need a field action_mask of shape \(4,\) and dtype |u1"


@pytest.mark.parametrize(
    ("spec", "change", "reason"),
    [
        (SPEC, {"chunk_length": 12}, "power of two"),
        (SPEC, {"stack": 0}, "stack"),
        (SPEC, {"n_step": 0}, "n_step"),
        (SPEC, {"fields": ()}, "at least one field"),
        (SPEC, {"fields": (replace(IMAGE, name="reward"),)}, "differ"),
        (SPEC, {"fields": (replace(IMAGE, taken="row"),)}, 'needs taken="window"'),
        (SPEC, {"fields": (replace(IMAGE, dtype="|O"),)}, "dtype"),
        (SPEC, {"fields": (replace(IMAGE, shape=(0,)),)}, "empty axis"),
        (SPEC, {"extras": (Column("observation", (), "<f4"),)}, "differ"),
        (SPEC, {"extras": (Column("steps", (), "<f4"),)}, "array of that name"),
        (SPEC, {"extras": (Column("state", (), "<f4", once=True, taken="steps"),)}, "once=True cannot be"),
        (SPEC, {"extras": (Column("state", (), "|O"),)}, "dtype"),
        (SPEC, {"burn_in": -1, "unit": "sequences"}, "burn_in"),
        (SPEC, {"burn_in": 4}, "0 for transitions"),
        (SPEC, {"action": Categorical(4, masked=True)}, NO_MASK),
        (SPEC, {"action": Categorical(4, masked=True), "fields": (IMAGE, replace(MASK, shape=(5,)))}, NO_MASK),
        (SPEC, {"action": Categorical(4, masked=True), "fields": (IMAGE, replace(MASK, dtype="<f4"))}, NO_MASK),
        (GOALS, {"fields": (ACHIEVED, IMAGE)}, "needs the fields achieved_goal and desired_goal with the same shape"),
        (GOALS, {"fields": (ACHIEVED, replace(DESIRED, shape=(2,)))}, "with the same shape"),
        (GOALS, {"n_step": 3}, "needs n_step 1, not 3"),
        (GOALS, {"goals": 17}, "0 to 16, not 17"),
        (GOALS, {"goals": -1}, "0 to 16, not -1"),
    ],
)
def test_an_invalid_spec_is_refused_with_the_reason(spec: ExperienceSpec, change: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        replace(spec, **change)


def test_a_mask_is_a_field_that_no_network_sees() -> None:
    masked = replace(SPEC, fields=(*SPEC.fields, MASK), action=Categorical(4, masked=True))
    assert masked.visible == SPEC.fields == SPEC.visible and read_spec(write_spec(masked)) == masked
    assert b"masked" not in write_spec(SPEC), "a spec without masks is written as before there were any"
    field = replace(SPEC, fields=(*SPEC.fields, MASK))
    assert field.visible == field.fields, "without masked actions it is a field like any other"


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"fields": [], "surprise": 1}', write_spec(SPEC)[:-9]])
def test_a_file_that_is_no_spec_is_refused(text: bytes) -> None:
    with pytest.raises(SpecError):
        read_spec(text)
