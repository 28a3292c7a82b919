"""Where spaces become fields, and actions of a policy become actions of an environment. The only such place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.config import EnvConfig
from actors.envs.errors import EnvError
from transport.experience import Categorical, Codec, Continuous, ExperienceSpec, Field, SpecError

MAX_BOUND = 1e6  # a bound beyond this is a way of saying that there is none
IMAGE_STACK, IMAGE_CHUNK, VECTOR_CHUNK = 4, 128, 64


def experience_spec(
    env: gymnasium.Env, config: EnvConfig, n_step: int, codec: Codec, remembered: tuple[str, ...] = ()
) -> ExperienceSpec:
    """Builds the spec of a run from an environment's spaces. Images travel with `codec`, vectors as they are.
    An environment whose image alone tells its state says so by `default_stack = 1`.

    Raises EnvError, with the reason, for spaces that cannot be fields or actions.
    """
    leaves = list(_leaves("", env.observation_space))
    images = any(is_image(leaf) for _, leaf in leaves)
    try:
        return ExperienceSpec(
            tuple(_field(name, leaf, config.quantise, codec) for name, leaf in leaves),
            _action(env.action_space),
            chunk_length=config.chunk_length or (IMAGE_CHUNK if images else VECTOR_CHUNK),
            stack=config.stack or getattr(env.unwrapped, "default_stack", IMAGE_STACK if images else 1),
            n_step=n_step,
            remembered=remembered,
        )
    except (SpecError, EnvError) as error:
        raise EnvError(f"{config.id}: {error}") from error


def flatten_observation(space: spaces.Space, observation: Any) -> dict[str, np.ndarray]:
    """Turns an environment's observation into {field name: array of the field's shape}.

    Images are uint8, [C, H, W] or [H, W]. Everything else is a float32 vector: Box flattened, Discrete and
    MultiDiscrete one-hot, MultiBinary 0 or 1. A Dict has one entry per leaf, named "key" or "key.sub".
    """
    result: dict[str, np.ndarray] = {}
    _flatten("", space, observation, result)
    return result


def to_env_action(space: spaces.Space, action: np.ndarray | np.integer) -> Any:
    """Turns a policy's action (an index, or a float32 vector) into one of the environment's own.

    A vector is clipped to the bounds and takes the space's shape and dtype.
    """
    if isinstance(space, spaces.Discrete):
        return int(action) + int(space.start)
    assert isinstance(space, spaces.Box)
    return np.clip(np.reshape(action, space.shape), space.low, space.high).astype(space.dtype)


def is_image(space: spaces.Space) -> bool:
    """Whether a space is one of uint8 pictures, with or without a channel axis."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def _leaves(name: str, space: spaces.Space) -> Iterator[tuple[str, spaces.Space]]:
    """Yields (field name, space) for each leaf of nested Dicts."""
    if isinstance(space, spaces.Dict):
        for key, sub in space.spaces.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), sub)
    else:
        yield name or "observation", space


def _flatten(name: str, space: spaces.Space, observation: Any, result: dict[str, np.ndarray]) -> None:
    """Adds the leaves of `observation` to `result`, in the order and with the names of `_leaves`."""
    if isinstance(space, spaces.Dict):
        for key, sub in space.spaces.items():
            _flatten(f"{name}.{key}" if name else str(key), sub, observation[key], result)
    else:
        result[name or "observation"] = _leaf_values(space, observation)


def _leaf_values(space: spaces.Space, value: Any) -> np.ndarray:
    """The values of one leaf, in the field's shape."""
    if is_image(space):
        image = np.asarray(value, np.uint8)
        return image.transpose(2, 0, 1) if _channels_last(space.shape) else image  # type: ignore[arg-type]
    if isinstance(space, spaces.Discrete):
        return _one_hot(int(space.n), int(value) - int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        indices = (np.asarray(value) - space.start).ravel()
        return np.concatenate([_one_hot(int(n), int(index)) for n, index in zip(space.nvec.ravel(), indices, strict=True)])
    return np.asarray(value, np.float32).reshape(-1)


def _one_hot(n: int, index: int) -> np.ndarray:
    """A float32 vector [n] with a 1 at `index`."""
    vector = np.zeros(n, np.float32)
    vector[index] = 1.0
    return vector


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image is [H, W, C]: its last axis is at most 4 and is the shorter end."""
    return len(shape) == 3 and shape[2] <= 4 and shape[2] < shape[0]


def _field(name: str, space: spaces.Space, quantise: bool, codec: Codec) -> Field:
    """The field of one leaf space."""
    if isinstance(space, spaces.Box):
        if is_image(space):
            shape = (space.shape[2], *space.shape[:2]) if _channels_last(space.shape) else space.shape
            return Field(name, shape, "|u1", scale=1 / 255, codec=codec)
        if quantise and space.dtype is not None and space.dtype.kind == "f":
            return _quantised(name, space)
        return Field(name, (int(np.prod(space.shape)),), "<f4")
    if isinstance(space, spaces.Discrete):
        return Field(name, (int(space.n),), "<f4")
    if isinstance(space, spaces.MultiDiscrete):
        return Field(name, (int(space.nvec.sum()),), "<f4")
    if isinstance(space, spaces.MultiBinary):
        return Field(name, (int(np.prod(space.shape)),), "<f4")
    raise EnvError(
        f"observation {name!r}: {type(space).__name__} spaces are not supported, "
        "only Box, Discrete, MultiDiscrete, MultiBinary and Dicts of them; wrap the environment"
    )


def _quantised(name: str, space: spaces.Box) -> Field:
    """A float Box at rest as uint8: 256 levels from its least to its greatest bound."""
    low, high = float(space.low.min()), float(space.high.max())
    if not (-MAX_BOUND <= low < high <= MAX_BOUND):
        raise EnvError(
            f"observation {name!r}: env.quantise needs finite bounds, these are {low:g} to {high:g}; "
            "bound the space or leave env.quantise off"
        )
    return Field(name, (int(np.prod(space.shape)),), "|u1", scale=(high - low) / 255, offset=low)


def _action(space: spaces.Space) -> Categorical | Continuous:
    """The action part of a spec."""
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if not isinstance(space, spaces.Box):
        raise EnvError(f"{type(space).__name__} actions are not supported, only Discrete and Box; wrap the environment")
    if space.dtype is None or space.dtype.kind != "f":
        raise EnvError(f"Box actions of {space.dtype} are not supported, only floats; wrap the environment")
    low, high = space.low.ravel(), space.high.ravel()
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise EnvError("the action space has no bounds; wrap the environment with gymnasium.wrappers.RescaleAction")
    return Continuous(tuple(map(float, low)), tuple(map(float, high)))
