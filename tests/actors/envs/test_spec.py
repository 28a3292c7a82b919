"""From spaces to fields."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from actors.config import EnvConfig
from actors.envs.foreign.actions import to_env_action, to_env_actions
from actors.envs.make import EnvError
from actors.envs.spec import experience_spec, flatten_batch, flatten_observation
from learner.algorithms.base import Needs
from transport.experience import (
    ACTION_MASK,
    Categorical,
    Continuous,
    ExperienceSpec,
    MultiCategorical,
    observed,
    read_spec,
    write_spec,
)

TWO = spaces.Discrete(2)
OF_OLD_GYM = type("Box", (), {"__module__": "gym.spaces.box", "shape": (3,)})()


def spec_for(observation: spaces.Space, action: spaces.Space = TWO, **config: Any) -> ExperienceSpec:
    env = gymnasium.Env()
    env.observation_space, env.action_space = observation, action
    return experience_spec(env, EnvConfig(id="toy", **config), "zstd", Needs(n_step=2))


def unit(*shape: int, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, shape, dtype)


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (image(84, 84), (84, 84)),
        (image(64, 80, 3), (3, 64, 80)),
        (image(64, 80, 1), (1, 64, 80)),
        (image(3, 64, 80), (3, 64, 80)),
        (image(84, 84, 12), (12, 84, 84)),
        (image(8, 8, 20), (20, 8, 8)),
    ],
)
def test_an_image_rests_as_bytes_with_its_channels_first(space: spaces.Box, shape: tuple[int, ...]) -> None:
    assert spec_for(space).fields == (observed("observation", shape, "|u1", scale=1 / 255, codec="zstd"),)
    picture = np.random.default_rng(0).integers(256, size=space.shape).astype(np.uint8)
    values = flatten_observation(space, picture)["observation"]
    assert values.shape == shape and values.dtype == np.uint8
    expected = picture if shape == space.shape else np.moveaxis(picture, -1, 0)
    assert np.array_equal(values, expected)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (unit(3, dtype=np.float64), np.array([0.5, -1.0, 1.0]), [0.5, -1.0, 1.0]),
        (unit(2, 2), np.array([[0.0, 0.25], [0.5, 0.75]], np.float32), [0.0, 0.25, 0.5, 0.75]),
        (spaces.Box(-1.0, 1.0, ()), np.float32(0.5), [0.5]),
        (spaces.Box(0, 9, (2,), np.int64), np.array([3, 9]), [3, 9]),
        (spaces.Box(0, 255, (4,), np.uint8), np.array([0, 1, 2, 255], np.uint8), [0, 1, 2, 255]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    ],
)
def test_everything_else_rests_as_a_float_vector(space: spaces.Space, value: Any, expected: list[float]) -> None:
    (field,) = spec_for(space).fields
    assert field == observed("observation", (len(expected),), "<f4")
    values = flatten_observation(space, value)["observation"]
    assert values.dtype == np.float32
    assert values.tolist() == expected


def test_a_discrete_observation_is_stored_one_hot_as_int8() -> None:
    space = spaces.Discrete(4, start=-1)
    spec = spec_for(space)
    assert spec.fields == (observed("observation", (4,), "|i1"),) and spec.is_single_discrete
    stored = spec.fields[0].encode(flatten_observation(space, np.int64(1))["observation"])
    assert stored.dtype == np.int8 and stored.tolist() == [0, 0, 1, 0]
    several = spaces.Tuple([space, space])
    for other in (
        spaces.MultiDiscrete([4]),
        spaces.MultiBinary(4),
        several,
        spaces.Box(0, 1, (4,), np.uint8),
        spaces.Box(0, 1, (4,), np.int8),
    ):
        assert not spec_for(other).is_single_discrete, other
    masked = spec_for(spaces.Dict({"place": space, ACTION_MASK: spaces.MultiBinary(2)}), TWO)
    assert masked.is_single_discrete


def test_a_nested_dict_has_one_field_per_leaf() -> None:
    space = spaces.Dict({"camera": image(40, 40), "arm": spaces.Dict({"angles": unit(6), "held": spaces.Discrete(2)})})
    names = [field.name for field in spec_for(space).fields]
    assert sorted(names) == ["arm.angles", "arm.held", "camera"]
    values = flatten_observation(space, space.sample())
    assert list(values) == names
    assert {name: array.shape for name, array in values.items()} == {"camera": (40, 40), "arm.angles": (6,), "arm.held": (2,)}


def test_the_gaps_of_the_configuration_are_filled_by_what_suits_the_space() -> None:
    pictures, vectors = spec_for(image(84, 84)), spec_for(unit(3))
    mixed = spec_for(spaces.Dict({"camera": image(40, 40), "joints": unit(3)}))
    assert (pictures.stack, pictures.chunk_length, pictures.n_step) == (4, 128, 2)
    assert (vectors.stack, vectors.chunk_length) == (1, 64)
    assert (mixed.stack, mixed.chunk_length) == (4, 128)
    assert [field.codec for field in mixed.fields] == ["zstd", "none"]
    chosen = spec_for(image(84, 84), stack=2, chunk_length=32)
    assert (chosen.stack, chosen.chunk_length) == (2, 32)


def test_a_quantised_vector_rests_as_bytes_over_its_bounds() -> None:
    space = spaces.Box(np.array([-2.0, -1.0], np.float32), np.array([2.0, 3.0], np.float32))
    (field,) = spec_for(space, quantise=True).fields
    assert (field.dtype, field.scale, field.offset) == ("|u1", 5 / 255, -2.0)
    values = np.array([-2.0, 3.0], np.float32)
    assert field.encode(values).tolist() == [0, 255]
    assert np.abs(field.decode(field.encode(values)) - values).max() < 0.5 * 5 / 255


@pytest.mark.parametrize(
    ("dtype", "low", "high", "shape", "scale", "stored"),
    [
        (np.int64, 0, 255, (84, 84), 1 / 255, {0: 0, 254: 254, 255: 255}),
        (np.uint16, 0, 65_535, (84, 84, 1), 1 / 255, {0: 0, 256: 0, 257: 1, 65_535: 255}),
        (np.int32, -1, 10, (3, 20, 20), 1 / 11, {-1: 0, 0: 1, 10: 11}),
        (np.int8, -128, 127, (20, 24, 3), 1 / 255, {-128: 0, 0: 128, 127: 255}),
        (np.int64, 0, 10, (4, 20, 24, 3), 1 / 10, {0: 0, 10: 10}),
    ],
)
@pytest.mark.parametrize("quantise", [False, True])
def test_an_image_of_other_integers_rests_as_bytes_by_its_bounds(
    dtype: type, low: int, high: int, shape: tuple[int, ...], scale: float, stored: dict[int, int], quantise: bool
) -> None:
    space = spaces.Box(low, high, shape, dtype)
    (field,) = spec_for(space, quantise=quantise).fields
    assert field.is_image and (field.scale, field.offset, field.codec) == (scale, 0.0, "zstd")
    for value, byte in stored.items():
        picture = np.full(shape, value, dtype)
        found = flatten_observation(space, picture)["observation"]
        assert found.dtype == np.uint8 and found.shape == field.shape and (found == byte).all()
        assert np.array_equal(flatten_batch(space, picture[None])["observation"], found[None])


@pytest.mark.parametrize("space", [spaces.Box(-5, 5, (3, 4), np.int64), spaces.Box(0, 2**62, (84, 84), np.int64)])
def test_a_small_matrix_of_integers_is_a_vector_and_so_is_one_without_usable_bounds(space: spaces.Box) -> None:
    (field,) = spec_for(space).fields
    assert (field.dtype, field.shape) == ("<f4", (int(np.prod(space.shape)),))


def test_quantising_leaves_images_and_indices_as_they_are() -> None:
    space = spaces.Dict({"camera": image(40, 40), "kind": spaces.Discrete(3)})
    assert spec_for(space, quantise=True).fields == spec_for(space).fields


def test_actions_become_categorical_or_continuous() -> None:
    assert spec_for(unit(1), spaces.Discrete(5, start=2)).action == Categorical(5)
    box = spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 2.0]]), dtype=np.float64)
    assert spec_for(unit(1), box).action == Continuous((-1.0, 0.0), (1.0, 2.0))
    action = to_env_action(box, np.array([7.0, 1.0], np.float32))
    assert action.dtype == np.float64 and action.tolist() == [[1.0, 1.0]]
    assert to_env_action(spaces.Discrete(5, start=2), np.int64(4)) == 6


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2, 4], start=[0, 5, -1]), spaces.MultiBinary((2, 3))])
def test_several_choices_become_one_and_each_combination_comes_once(space: spaces.MultiDiscrete | spaces.MultiBinary) -> None:
    action = spec_for(unit(1), space).action
    assert isinstance(action, Categorical)
    taken = [to_env_action(space, np.int64(index)) for index in range(action.n)]
    assert all(space.contains(choice) and choice.dtype == space.dtype for choice in taken)
    assert len({choice.tobytes() for choice in taken}) == action.n == (24 if isinstance(space, spaces.MultiDiscrete) else 64)


NESTED = spaces.Dict(
    {"arm": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2))]), "keys": spaces.MultiDiscrete([4] * 5)}
)


@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([3] * 12), spaces.MultiBinary((4, 3)), NESTED], ids=["three", "two", "nested"]
)
def test_choices_with_too_many_combinations_stay_apart(space: spaces.Space) -> None:
    action = spec_for(unit(1), space).action
    assert isinstance(action, MultiCategorical)
    chosen = np.random.default_rng(0).integers(action.sizes, size=(20, len(action.sizes))).astype(np.int32)
    taken = [to_env_action(space, row) for row in chosen]
    assert all(space.contains(one) for one in taken)
    flat = [np.asarray(spaces.flatten(space, one)) for one in taken]
    assert len({one.tobytes() for one in flat}) == len({one.tobytes() for one in chosen})
    together = list(iterate(batch_space(space, 20), to_env_actions(space, chosen)))
    assert all(np.array_equal(np.asarray(spaces.flatten(space, one)), other) for one, other in zip(together, flat, strict=True))


def test_parts_of_a_tuple_or_dict_become_one_action() -> None:
    few = spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)])
    action = spec_for(unit(1), few).action
    assert action == Categorical(12)
    taken = [to_env_action(few, np.int64(index)) for index in range(12)]
    assert all(few.contains(one) for one in taken)
    assert len({np.asarray(spaces.flatten(few, one)).tobytes() for one in taken}) == 12
    assert spec_for(unit(1), spaces.MultiDiscrete([2_000])).action == Categorical(2_000), "one choice, as of a Discrete"
    boxes = spaces.Dict({"legs": unit(2), "arm": spaces.Box(0.0, 3.0, (1, 2), np.float32)})
    assert spec_for(unit(1), boxes).action == Continuous((0.0, 0.0, -1.0, -1.0), (3.0, 3.0, 1.0, 1.0))
    found = to_env_action(boxes, np.array([1, 2, 0.5, -7], np.float32))
    assert boxes.contains(found)
    assert found["arm"].tolist() == [[1, 2]]
    assert found["legs"].tolist() == [0.5, -1]


def test_a_tuple_has_its_places_for_names_and_no_entry_takes_the_name_of_a_column() -> None:
    space = spaces.Dict({"reward": unit(1), "pair": spaces.Tuple([TWO, unit(2)])})
    assert sorted(field.name for field in spec_for(space).fields) == ["observation.reward", "pair.0", "pair.1"]
    assert [field.name for field in spec_for(spaces.Tuple([unit(1), TWO])).fields] == ["0", "1"]
    assert sorted(flatten_observation(space, space.sample())) == ["observation.reward", "pair.0", "pair.1"]


def test_a_picture_of_floats_is_a_picture_whose_values_end_at_one() -> None:
    unscaled, scaled = (spec_for(spaces.Box(0, top, (40, 48, 3), np.float32)) for top in (1, 255))
    assert unscaled.fields == (observed("observation", (3, 40, 48), "<f4", codec="zstd"),)
    assert scaled.fields[0].scale == 1 / 255 and unscaled.stack == 4
    stored = flatten_observation(spaces.Box(0, 255, (40, 48, 3), np.float32), np.full((40, 48, 3), 255.0))["observation"]
    assert scaled.fields[0].decode(scaled.fields[0].encode(stored)).max() == pytest.approx(1.0)
    bytes_ = spec_for(spaces.Box(0, 1, (40, 48, 3), np.float32), quantise=True).fields[0]
    assert (bytes_.dtype, bytes_.shape) == ("|u1", (3, 40, 48))
    assert spec_for(spaces.Box(-np.inf, np.inf, (40, 48, 3))).fields[0].shape == (40 * 48 * 3,)


def test_pictures_that_come_stacked_are_not_stacked_again() -> None:
    space = image(2, 40, 48, 3)
    spec = spec_for(space)
    assert spec.stack == 1 and spec.fields[0].shape == (6, 40, 48)
    pictures = np.random.default_rng(0).integers(256, size=space.shape).astype(np.uint8)
    values = flatten_observation(space, pictures)["observation"]
    assert np.array_equal(values[3 + 1], pictures[1, :, :, 1])


@pytest.mark.parametrize(
    ("shape", "stack"),
    [((4, 84, 84), 1), ((84, 84, 4), 1), ((12, 84, 84), 1), ((2, 40, 40), 1), ((1, 84, 84), 4), ((84, 84, 3), 4), ((84, 84), 4)],
)
def test_channels_that_are_neither_grey_nor_colours_are_a_stack(shape: tuple[int, ...], stack: int) -> None:
    assert spec_for(image(*shape)).stack == stack and spec_for(image(*shape), stack=4).stack == 4


def test_a_chunk_of_large_observations_is_short_enough() -> None:
    spec = spec_for(image(400, 400, 3))
    assert spec.chunk_length == 32 and spec.chunk_length * spec.row_bytes <= 16_000_000


def test_a_spec_survives_its_file() -> None:

    spec = spec_for(spaces.Dict({"camera": image(40, 40), "joints": unit(3)}), unit(2))
    assert read_spec(write_spec(spec)) == spec


@pytest.mark.parametrize(
    ("observation", "action", "config", "words"),
    [
        (spaces.Tuple([spaces.Text(3)]), TWO, {}, "'0': Text spaces are not supported"),
        (spaces.Dict({"a": unit(0), "b": TWO}), TWO, {}, "'a' is empty"),
        (image(1080, 1920, 3), TWO, {}, "ResizeObservation"),
        (unit(200_000), TWO, {}, "an observation takes 800,000 bytes"),
        (spaces.Sequence(unit(1)), TWO, {}, "Sequence spaces"),
        (spaces.Graph(unit(1), None), TWO, {}, "Graph spaces"),
        (spaces.Dict({"a": spaces.Text(3)}), TWO, {}, "'a': Text spaces"),
        (spaces.Dict({}), TWO, {}, "at least one field"),
        (spaces.Dict({"action_mask": unit(36)}), spaces.MultiBinary(18), {}, "a mask is of at most 1,024 combinations"),
        (unit(1), spaces.Tuple([TWO, unit(2)]), {}, "Tuple actions that mix choices and floats are not supported"),
        (unit(1), spaces.Dict({}), {}, "Dict actions without entries"),
        (unit(1), spaces.Dict({"a": spaces.Text(3)}), {}, "Text actions are not supported"),
        (unit(1), spaces.Box(0, 3, (2,), np.int32), {}, "Box actions of int32"),
        (unit(1), spaces.Box(-np.inf, np.inf, (2,)), {}, "no bounds"),
        (unit(1), spaces.Box(0, np.inf, (2,)), {}, "TransformAction(env, lambda action: action, Box(-1, 1, (2,)))"),
        (unit(1), spaces.Box(-3.4e38, 3.4e38, (2,)), {}, "no bounds"),
        (unit(1), spaces.Box(-1e300, 1e300, (2,), np.float64), {}, "no bounds"),
        (spaces.Box(-np.inf, np.inf, (2,)), TWO, {"quantise": True}, "needs finite bounds"),
        (spaces.Box(-3e38, 3e38, (2,)), TWO, {"quantise": True}, "needs finite bounds"),
        (unit(1), TWO, {"chunk_length": 100}, "power of two"),
        (OF_OLD_GYM, TWO, {}, "'observation': the space is of the package gym, which gymnasium has replaced"),
        (unit(1), OF_OLD_GYM, {}, "write `from gymnasium import spaces`"),
    ],
)
def test_what_cannot_be_a_row_is_refused_with_the_reason(
    observation: spaces.Space, action: spaces.Space, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(EnvError) as refusal:
        spec_for(observation, action, **config)
    message = str(refusal.value)
    assert message.startswith("toy: ") and words in message and "\n" not in message


@pytest.mark.parametrize("mask", [spaces.MultiBinary(6), spaces.Box(0, 1, (6,), np.int8), spaces.Box(0.0, 1.0, (6,))])
def test_an_entry_action_mask_says_which_actions_are_allowed(mask: spaces.Space) -> None:
    seen = spaces.Dict({"place": unit(3), ACTION_MASK: mask})
    found = spec_for(seen, spaces.MultiDiscrete([2, 3]), quantise=True)
    assert found.action == Categorical(6, masked=True) and found.field(ACTION_MASK) == observed(ACTION_MASK, (6,), "|u1")
    assert [field.name for field in found.visible] == ["place"]
    stored = flatten_observation(seen, {"place": np.zeros(3), ACTION_MASK: np.array([1, 0, 0, 1, 1, 0], np.int8)})[ACTION_MASK]
    assert found.field(ACTION_MASK).encode(stored).tolist() == [1, 0, 0, 1, 1, 0]
    assert not isinstance(spec_for(seen, unit(2)).action, Categorical), "of continuous actions it is an entry like any other"


@pytest.mark.parametrize("mask", [spaces.MultiBinary(5), spaces.Box(0, 1, (6, 1), np.int8), spaces.Discrete(6)])
def test_a_mask_of_another_size_is_refused(mask: spaces.Space) -> None:
    with pytest.raises(EnvError, match=r"toy: observation 'action_mask': .* a MultiBinary\(6\) or a Box of shape \(6,\)"):
        spec_for(spaces.Dict({"place": unit(3), ACTION_MASK: mask}), spaces.Discrete(6))
