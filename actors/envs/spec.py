"""Turns Gymnasium spaces into the fields and the action of an experience spec."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces

from actors.config import EnvConfig
from actors.envs.base import EnvironmentFamily
from actors.envs.foreign.actions import MAX_COMBINATIONS, action_of
from actors.envs.make import open_family
from actors.errors import OF_OLD_GYM, EnvError, is_of_old_gym
from learner.algorithms.base import Needs, join
from learner.algorithms.columns import HINDSIGHT_GOAL, HINDSIGHT_REWARD
from transport.experience import (
    ACHIEVED_GOAL,
    ACTION_MASK,
    DESIRED_GOAL,
    ROW_COLUMNS,
    Categorical,
    Codec,
    Column,
    ExperienceSpec,
    MultiCategorical,
    SpecError,
    observed,
)

MAX_BOUND = 1e6  # a greater bound counts as no bound
IMAGE_STACK, IMAGE_CHUNK, VECTOR_CHUNK = 4, 128, 64
CHUNK_BYTES = 16_000_000  # chunks of large observations are made shorter than usual to stay below this
MAX_OBSERVATION_BYTES = 500_000  # above it, the layer after the convolutions alone has some hundred million parameters
PICTURE_CHANNELS = (1, 3)  # of a single picture: grey or RGB
MIN_IMAGE_SIDE = 12  # float arrays with a shorter side do not count as images
OTHER_COLUMNS = frozenset(["action", *(column.name for column in ROW_COLUMNS), HINDSIGHT_GOAL, HINDSIGHT_REWARD])


def experience_spec(env: gymnasium.Env, config: EnvConfig, codec: Codec, needs: Needs = Needs()) -> ExperienceSpec:  # noqa: B008
    """Builds the spec of a run from an environment's spaces and its family. Images are compressed by `codec`, vectors are not. If
    the environment has no goals, `needs.goals` is ignored.

    Raises EnvError, with the reason, for spaces that are not supported.
    """
    try:
        found = [(name, leaf) for name, leaf, _ in leaves(env.observation_space)]
        action = action_of(env.action_space)
        n = action.n if isinstance(action, Categorical) else 0
        masked = n > 0 and ACTION_MASK in dict(found)
        if isinstance(action, MultiCategorical) and ACTION_MASK in dict(found):
            raise EnvError(
                f"observation {ACTION_MASK!r}: a mask is of at most {MAX_COMBINATIONS:,} combinations of choices, and there are "
                "more; wrap the environment, or give it another name"
            )
        fields = tuple(
            _mask_field(leaf, n) if masked and name == ACTION_MASK else _field(name, leaf, config.quantise, codec)
            for name, leaf in found
        )
        images = any(len(field.shape) > 1 for field in fields)
        _check_size(fields)
        stacked = any(is_stacked(leaf) for _, leaf in found)
        family = open_family(config)
        stack = family.default_stack or (IMAGE_STACK if images and not stacked else 1)
        half = ExperienceSpec(
            fields,
            Categorical(n, masked=True) if masked else action,
            chunk_length=config.chunk_length or _chunk_length(fields, IMAGE_CHUNK if images else VECTOR_CHUNK),
            stack=config.stack or stack,
        )
        return join(half, needs if has_goals(env, family) else msgspec.structs.replace(needs, goals=0))
    except (SpecError, EnvError) as error:
        raise EnvError(f"{config.id}: {error}") from error


def has_goals(env: gymnasium.Env, family: EnvironmentFamily) -> bool:
    """True for a goal environment: it has compute_reward, and its observation is a Dict of observation, achieved_goal and
    desired_goal, where the goals are float vectors of one shape."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or family.compute_reward(env) is None:
        return False
    goals = [space.spaces.get(name) for name in (ACHIEVED_GOAL, DESIRED_GOAL)]
    vectors = all(
        isinstance(goal, spaces.Box) and np.issubdtype(goal.dtype, np.floating) and len(goal.shape) == 1 for goal in goals
    )
    return vectors and goals[0].shape == goals[1].shape and "observation" in space.spaces  # type: ignore[union-attr]


def flatten_observation(space: spaces.Space, observation: Any) -> dict[str, np.ndarray]:
    """Turns an environment's observation into {field name: array of the field's shape}.

    Images are uint8 (or float32, if the space is of floats), [C, H, W] or [H, W]; other integers become uint8 by their bounds.
    Everything else is a float32 vector: Box flattened, Discrete and MultiDiscrete one-hot, MultiBinary 0 or 1. A Dict or Tuple
    has one entry per leaf, named "key" or "key.sub", "0" or "0.sub". Raises ValueError for an index outside its space, and
    KeyError, IndexError or TypeError for another structure.
    """
    return {name: flatten_leaf(leaf, np.asarray(value)[None])[0] for name, leaf, value in leaves(space, observation)}


def flatten_batch(space: spaces.Space, observation: Any) -> dict[str, np.ndarray]:
    """flatten_observation for K observations at once: leaves are arrays [K, …], and so are the results [K, *shape]."""
    # Copies: simulators may write their next observations into the same arrays.
    return {name: flatten_leaf(leaf, np.array(value)) for name, leaf, value in leaves(space, observation)}


def leaves(space: spaces.Space, observation: Any = None, name: str = "") -> Iterator[tuple[str, spaces.Space, Any]]:
    """Yields (field name, space, part of the observation) for each leaf of nested Dicts and Tuples, but for the texts of a
    Dict that has other entries. The part is None if there is no observation."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        without_texts = isinstance(space, spaces.Dict) and not all(map(is_text, space.spaces.values()))
        for key, sub in parts:
            if not (without_texts and is_text(sub)):
                yield from leaves(sub, None if observation is None else observation[key], f"{name}.{key}" if name else str(key))
    else:
        yield leaf_name(name), space, observation


def leaf_name(path: str) -> str:
    """The name of the column for the entry of an observation at `path`, such as `camera.left`; `observation` for the whole."""
    return f"observation.{path}" if path in OTHER_COLUMNS else path or "observation"  # `reward` is another column's name


def is_text(space: spaces.Space) -> bool:
    """True if a space holds texts, which no network reads, such as Text and MiniGrid's missions."""
    return isinstance(getattr(space, "dtype", None), np.dtype) and space.dtype.kind == "U"  # type: ignore[union-attr]


def is_image(space: spaces.Space) -> bool:
    """True if a space holds images: uint8 [H, W], with a channel axis, or a stack of these; other bounded integers likewise, if
    they are not small; or bounded floats with a channel axis."""
    if not isinstance(space, spaces.Box) or space.dtype is None or 0 in space.shape:
        return False
    if space.dtype == np.uint8:
        return len(space.shape) in (2, 3, 4)
    if looks_like_an_image_of_integers(space):
        return bool(-MAX_BOUND <= space.low.min() and space.high.max() <= MAX_BOUND)
    if space.dtype.kind != "f" or len(space.shape) != 3 or not space.is_bounded():
        return False
    channels, *sides = _image_shape(space.shape)
    return channels <= 4 and min(sides) >= MIN_IMAGE_SIDE


def looks_like_an_image_of_integers(space: spaces.Space) -> bool:
    """True for the shape of an image with integers other than uint8, whatever their bounds."""
    if not isinstance(space, spaces.Box) or space.dtype is None or space.dtype.kind not in "iu" or space.dtype == np.uint8:
        return False
    return len(space.shape) in (2, 3, 4) and min(_image_shape(space.shape)[-2:]) >= MIN_IMAGE_SIDE


def integer_range(space: spaces.Box) -> tuple[int, int]:
    """The least value of an image of integers, and how far the greatest is above it."""
    low = int(space.low.min())
    return low, max(int(space.high.max()) - low, 1)


def _pixels(space: spaces.Box, values: Any) -> np.ndarray:
    """Values of an image as they are stored: uint8; or float32, if the space is of floats. Integers become 0 to 255 by their
    bounds, and keep their steps where they have at most 256 values."""
    if space.dtype == np.uint8 or space.dtype.kind == "f":  # type: ignore[union-attr]
        return np.asarray(values, np.uint8 if space.dtype == np.uint8 else np.float32)
    low, width = integer_range(space)
    above = np.clip(np.asarray(values, np.int64) - low, 0, width)
    return (above if width <= 255 else above * 255 // width).astype(np.uint8)


def flatten_leaf(space: spaces.Space, values: np.ndarray) -> np.ndarray:
    """The values of one leaf in K observations, [K, …], with the field's shape, [K, *shape]. May share their memory."""
    count = len(values)
    if is_image(space):
        images = _pixels(space, values)  # type: ignore[arg-type]
        if channels_last(space.shape):  # type: ignore[arg-type]
            images = np.moveaxis(images, -1, -3)
        return images.reshape(count, -1, *images.shape[3:]) if len(space.shape) == 4 else images  # type: ignore[arg-type]
    if isinstance(space, spaces.Discrete):
        return _one_hots(int(space.n), values - space.start)
    if isinstance(space, spaces.MultiDiscrete):
        indices = (values - space.start).reshape(count, -1)
        sizes = space.nvec.ravel().tolist()
        return np.concatenate([_one_hots(n, index) for n, index in zip(sizes, indices.T, strict=True)], axis=1)
    return values.astype(np.float32).reshape(count, -1)


def unflatten_leaf(space: spaces.Space, field: Column, stored: np.ndarray) -> np.ndarray:
    """The inverse of flatten_leaf() and encode: stored values [K, *field.shape] -> plain ones [K, *space.shape]. What encoding
    has rounded stays rounded."""
    count, shape = len(stored), space.shape or ()
    if isinstance(space, spaces.Discrete):
        return stored.argmax(1) + space.start  # type: ignore[no-any-return]
    if isinstance(space, spaces.MultiDiscrete):
        parts = np.split(stored, np.cumsum(space.nvec.ravel())[:-1], axis=1)
        return np.stack([part.argmax(1) for part in parts], 1).reshape(count, *shape) + space.start  # type: ignore[no-any-return]
    assert isinstance(space, spaces.Box | spaces.MultiBinary) and space.dtype is not None
    if not is_image(space):
        return field.decode(stored).reshape(count, *shape).astype(space.dtype)
    values = field.decode(stored) if space.dtype.kind == "f" and stored.dtype == np.uint8 else stored
    if space.dtype.kind in "iu" and space.dtype != np.uint8:
        low, width = integer_range(space)  # type: ignore[arg-type]
        values = low + (stored.astype(np.int64) if width <= 255 else np.rint(stored / 255 * width))
    if channels_last(shape):
        *before, height, across, channels = shape
        values = np.moveaxis(values.reshape(count, *before, channels, height, across), -3, -1)
    return values.reshape(count, *shape).astype(space.dtype)


def _one_hots(n: int, indices: np.ndarray) -> np.ndarray:
    """Float32 [K, n] with a 1 at each index [K]. Raises ValueError for an index outside 0 to n - 1."""
    vectors = np.zeros((len(indices), n), np.float32)
    for row, index in enumerate(indices.ravel().tolist()):  # mostly there is one: array operations would take six times as long
        if not 0 <= index < n:
            raise ValueError(f"choice {index} of {n}, counted from 0")
        vectors[row, int(index)] = 1.0
    return vectors


def channels_last(shape: tuple[int, ...]) -> bool:
    """True if the channels of [H, W, C] or [C, H, W] come last: the end unlike the middle, otherwise the shorter one."""
    if len(shape) < 3:
        return False
    first, middle, last = shape[-3:]
    return first == middle if (first == middle) != (middle == last) else last < first


def is_stacked(space: spaces.Space) -> bool:
    """True if a space holds images that are stacks already: [S, …], or with a number of channels that is neither grey nor RGB."""
    if not isinstance(space, spaces.Box) or not is_image(space):
        return False
    shape = _image_shape(space.shape)
    return len(space.shape) == 4 or (len(shape) == 3 and shape[0] not in PICTURE_CHANNELS)


def _image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The field's shape [C, H, W] or [H, W] for an image space; a stack of images [S, …] becomes channels."""
    if len(shape) < 3:
        return shape
    *stack, first, middle, last = shape
    channels, height, width = (last, first, middle) if channels_last(shape) else (first, middle, last)
    return (math.prod(stack) * channels, height, width)


def _field(name: str, space: spaces.Space, quantise: bool, codec: Codec) -> Column:
    """The field of one leaf space."""
    if isinstance(space, spaces.Box):
        if is_image(space):
            return _image_field(name, space, quantise, codec)
        if quantise and space.dtype is not None and space.dtype.kind == "f":
            return _quantised(name, space)
        return observed(name, (math.prod(space.shape),), "<f4")
    if isinstance(space, spaces.Discrete):
        return observed(name, (int(space.n),), "|i1")
    if isinstance(space, spaces.MultiDiscrete):
        return observed(name, (int(space.nvec.sum()),), "<f4")
    if isinstance(space, spaces.MultiBinary):
        return observed(name, (int(np.prod(space.shape)),), "<f4")
    if is_of_old_gym(space):
        raise EnvError(f"observation {name!r}: {OF_OLD_GYM}")
    raise EnvError(
        f"observation {name!r}: {type(space).__name__} spaces are not supported, "
        "only Box, Discrete, MultiDiscrete, MultiBinary, and Dicts and Tuples of them; wrap the environment"
    )


def _mask_field(space: spaces.Space, n: int) -> Column:
    """The field of an entry `action_mask`, which says which of n actions are allowed."""
    shape = space.shape if isinstance(space, spaces.MultiBinary | spaces.Box) else None
    if shape != (n,):
        raise EnvError(
            f"observation {ACTION_MASK!r}: it says which actions are allowed, so it must be a MultiBinary({n}) or a Box of shape "
            f"({n},), with 1 where one is; wrap the environment, or give it another name"
        )
    return observed(ACTION_MASK, (n,), "|u1")


def _image_field(name: str, space: spaces.Box, quantise: bool, codec: Codec) -> Column:
    """The field of an image. uint8 is scaled by its greatest bound to 0 to 1, and so are floats with a bound above 1; other
    integers by both bounds."""
    shape = _image_shape(space.shape)
    if space.dtype == np.uint8:
        return observed(name, shape, "|u1", scale=1 / max(int(space.high.max()), 1), codec=codec)
    if space.dtype is not None and space.dtype.kind in "iu":
        return observed(name, shape, "|u1", scale=1 / min(integer_range(space)[1], 255), codec=codec)
    if quantise:
        return msgspec.structs.replace(_quantised(name, space), shape=shape, codec=codec)
    greatest = float(max(space.high.max(), -space.low.min()))
    return observed(name, shape, "<f4", scale=1 / greatest if 1 < greatest <= MAX_BOUND else 1.0, codec=codec)


def _check_size(fields: tuple[Column, ...]) -> None:
    """Raises EnvError for an observation that is empty, or larger than MAX_OBSERVATION_BYTES."""
    for field in fields:
        if 0 in field.shape:
            raise EnvError(f"observation {field.name!r} is empty (shape {field.shape}): wrap the environment to leave it out")
    largest = max(fields, key=lambda field: field.row_bytes, default=None)
    total = sum(field.row_bytes for field in fields)
    if largest is not None and total > MAX_OBSERVATION_BYTES:
        shape = "x".join(map(str, largest.shape))
        raise EnvError(
            f"an observation takes {total:,} bytes ({largest.name}: {shape}), more than {MAX_OBSERVATION_BYTES:,}: wrap the "
            "environment to make it smaller, an image with gymnasium.wrappers.ResizeObservation(env, (84, 84))"
        )


def _chunk_length(fields: tuple[Column, ...], usual: int) -> int:
    """The usual length, halved until a chunk is at most CHUNK_BYTES."""
    row_bytes = sum(field.row_bytes for field in fields)
    while usual > 1 and usual * row_bytes > CHUNK_BYTES:
        usual //= 2
    return usual


def _quantised(name: str, space: spaces.Box) -> Column:
    """The field of a float Box that is stored as uint8: 256 levels from its least to its greatest bound."""
    low, high = float(space.low.min()), float(space.high.max())
    if not (-MAX_BOUND <= low < high <= MAX_BOUND):
        raise EnvError(
            f"observation {name!r}: env.quantise needs finite bounds, these are {low:g} to {high:g}; "
            "bound the space or leave env.quantise off"
        )
    return observed(name, (math.prod(space.shape),), "|u1", scale=(high - low) / 255, offset=low)
