"""The record: quantisation, digests, refusals."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from transport.experience import Categorical, Continuous, ExperienceSpec, Field, SpecError, read_spec

IMAGE = Field("observation", (4, 4), "|u1", scale=1 / 255, codec="lz4")
SPEC = ExperienceSpec((IMAGE,), Categorical(3), chunk_length=8, stack=4, n_step=3)
ACHIEVED, DESIRED = Field("achieved_goal", (3,), "<f4"), Field("desired_goal", (3,), "|u1", scale=2 / 255, offset=-1.0)
GOALS = ExperienceSpec((ACHIEVED, DESIRED), Continuous((-1.0,), (1.0,)), chunk_length=8, hindsight=4)


@given(hnp.arrays(np.float32, 20, elements=st.floats(-3, 5, width=32)))
def test_a_quantised_value_is_off_by_at_most_half_a_step(values: np.ndarray) -> None:
    field = Field("angle", (), "|u1", scale=8 / 255, offset=-3.0)
    assert np.abs(field.decode(field.encode(values)) - values).max() <= field.scale / 2 + 1e-6


def test_values_beyond_the_bounds_are_stored_as_the_bounds() -> None:
    field = Field("angle", (), "|u1", scale=8 / 255, offset=-3.0)
    assert field.encode(np.array([-99.0, 99.0])).tolist() == [0, 255]


def test_an_array_at_rest_type_is_taken_as_it_is() -> None:
    frame = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert IMAGE.encode(frame) is frame


def test_round_trip_gives_what_the_learner_will_see() -> None:
    field = Field("angle", (2,), "|u1", scale=2 / 255, offset=-1.0)
    spec = ExperienceSpec((field,), Categorical(2), chunk_length=4)
    seen = spec.round_trip("angle", np.array([0.1, -0.7], np.float32))
    assert seen.dtype == np.float32 and (seen == field.decode(field.encode(seen))).all()


def test_a_spec_written_before_anything_was_remembered_keeps_its_digest() -> None:
    text = (
        b'{"fields":[{"name":"observation","shape":[84,84],"dtype":"|u1","scale":0.00392156862745098,"offset":0.0,"codec":"lz4"}],'
        b'"action":{"type":"categorical","n":7},"chunk_length":128,"stack":4,"n_step":3}'
    )
    assert read_spec(text).digest == "a5953acaad4db2e5"


@pytest.mark.parametrize(
    "change",
    [
        {"chunk_length": 16},
        {"stack": 2},
        {"n_step": 1},
        {"remembered": ("initial_priority",)},
        {"action": Categorical(4)},
        {"action": Continuous((-1.0,), (1.0,))},
        {"fields": (msgspec.structs.replace(IMAGE, scale=1.0),)},
        {"fields": (msgspec.structs.replace(IMAGE, shape=(4, 5)),)},
    ],
)
def test_the_digest_differs_when_anything_differs(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(SPEC, **change).digest != SPEC.digest


def test_hindsight_adds_two_columns_and_changes_the_digest() -> None:
    without = msgspec.structs.replace(GOALS, hindsight=0)
    assert without.digest != GOALS.digest != msgspec.structs.replace(GOALS, hindsight=3).digest
    goal, reward = GOALS.columns[len(without.columns) :]
    assert goal == msgspec.structs.replace(DESIRED, name="hindsight_goal", shape=(4, 3)), "goals rest as goals do"
    assert reward == Field("hindsight_reward", (4,), "<f4")
    assert without.hindsight_columns == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fields": (ACHIEVED, IMAGE)}, "needs the fields achieved_goal and desired_goal, of one shape"),
        ({"fields": (ACHIEVED, msgspec.structs.replace(DESIRED, shape=(2,)))}, "of one shape"),
        ({"n_step": 3}, "needs n_step 1, not 3"),
        ({"hindsight": 17}, "0 to 16, not 17"),
        ({"hindsight": -1}, "0 to 16, not -1"),
    ],
)
def test_hindsight_is_refused_where_there_is_nothing_to_look_back_at(change: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        msgspec.structs.replace(GOALS, **change)


def test_a_spec_survives_its_file() -> None:
    again = read_spec(msgspec.json.encode(SPEC))
    assert again == SPEC and again.digest == SPEC.digest


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"chunk_length": 12}, "power of two"),
        ({"stack": 0}, "stack"),
        ({"n_step": 0}, "n_step"),
        ({"fields": ()}, "at least one field"),
        ({"fields": (msgspec.structs.replace(IMAGE, name="reward"),)}, "differ"),
        ({"remembered": ("observation",)}, "differ"),
        ({"fields": (msgspec.structs.replace(IMAGE, dtype="|O"),)}, "dtype"),
        ({"fields": (msgspec.structs.replace(IMAGE, shape=(0,)),)}, "empty axis"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_with_the_reason(change: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        msgspec.structs.replace(SPEC, **change)


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"fields": [], "surprise": 1}', msgspec.json.encode(SPEC)[:-9]])
def test_a_file_that_is_no_spec_is_refused(text: bytes) -> None:
    with pytest.raises(SpecError):
        read_spec(text)
