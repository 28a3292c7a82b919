"""Turns an action space into the action of an experience spec, and a policy's actions into the environment's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from actors.errors import OF_OLD_GYM, EnvError, is_of_old_gym
from transport.experience import Categorical, Continuous, MultiCategorical

Action = Categorical | MultiCategorical | Continuous
INNERMOST = 0.9999  # of bounds at -1 and 1, where a stored action would be infinite
MAX_COMBINATIONS = 1_024  # of several choices: with more, each choice has its own distribution, which PPO alone learns


def action_of(space: spaces.Space) -> Action:
    """The action part of a spec. The parts of a Dict or Tuple are joined."""
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    parts = _action_leaves(space)
    for part in parts:
        _check_action(part)
    boxes = [part for part in parts if isinstance(part, spaces.Box)]
    if not parts or 0 < len(boxes) < len(parts):
        what = "that mix choices and floats" if parts else "without entries"
        raise EnvError(f"{type(space).__name__} actions {what} are not supported; wrap the environment")
    if not boxes:
        sizes = choices(space)
        joint = math.prod(sizes)
        return Categorical(joint) if joint <= MAX_COMBINATIONS or len(sizes) == 1 else MultiCategorical(sizes)
    low, high = (
        np.concatenate([bound.ravel() for bound in bounds])
        for bounds in zip(*((box.low, box.high) for box in boxes), strict=True)
    )
    return Continuous(tuple(map(float, low)), tuple(map(float, high)))


def _action_leaves(space: spaces.Space) -> list[spaces.Space]:
    """The spaces in nested Dicts and Tuples, in order."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [space]
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
    return [leaf for part in parts for leaf in _action_leaves(part)]


def _check_action(space: spaces.Space) -> None:
    """Raises EnvError for a space of actions, no Dict or Tuple, that is not supported."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return
    if is_of_old_gym(space):
        raise EnvError(f"actions: {OF_OLD_GYM}")
    if not isinstance(space, spaces.Box):
        raise EnvError(
            f"{type(space).__name__} actions are not supported, only Discrete, MultiDiscrete, MultiBinary, Box, and Dict and "
            "Tuple of these; wrap the environment"
        )
    if space.dtype is None or space.dtype.kind != "f":
        raise EnvError(f"Box actions of {space.dtype} are not supported, only floats; wrap the environment")
    with np.errstate(over="ignore", invalid="ignore"):
        # not finite, if a bound is as large as a float can be
        width = space.high.astype(np.float32) - space.low.astype(np.float32)
    if not np.isfinite(width).all():
        raise EnvError(
            "the action space has no bounds that a policy can act between; wrap the environment with "
            f"gymnasium.wrappers.TransformAction(env, lambda action: action, Box(-1, 1, {space.shape}))"
        )


def choices(space: spaces.Space) -> tuple[int, ...]:
    """The number of values of each choice."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiBinary):
        return (2,) * math.prod(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(map(int, space.nvec.ravel()))
    return tuple(size for leaf in _action_leaves(space) for size in choices(leaf))


def to_env_action(space: spaces.Space, action: np.ndarray | np.integer) -> Any:
    """Turns a policy's action (an index, the indices of several choices, or a float32 vector) into an action of the environment's
    space. For all but Discrete a single index counts all combinations; the last choice changes fastest. A float32 vector is
    clipped to the bounds. Results have the space's shape and dtype, and those of a Dict or Tuple its structure."""
    if isinstance(space, spaces.Discrete):  # a number of numpy, as sample() gives it: some environments call action.item()
        return np.int64(action + space.start)
    if isinstance(space, spaces.Box):
        return np.clip(np.reshape(action, space.shape), space.low, space.high).astype(space.dtype)
    if np.ndim(action) == 0:
        action = np.array(np.unravel_index(int(action), choices(space)))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        chosen = np.reshape(action, space.shape).astype(space.dtype)
        return chosen + space.start if isinstance(space, spaces.MultiDiscrete) else chosen
    return _structured(space, np.asarray(action), to_env_action)


def to_env_actions(space: spaces.Space, actions: np.ndarray) -> Any:
    """to_env_action for K actions [K], [K, D] or [K, A] at once: arrays [K, *shape] of the space's dtype."""
    count = len(actions)
    if isinstance(space, spaces.Discrete):
        return actions + space.start
    if isinstance(space, spaces.Box):
        return np.clip(np.reshape(actions, (count, *space.shape)), space.low, space.high).astype(space.dtype)
    if actions.ndim == 1:
        actions = np.stack(np.unravel_index(actions, choices(space)), axis=-1)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        chosen = np.reshape(actions, (count, *space.shape)).astype(space.dtype)
        return chosen + space.start if isinstance(space, spaces.MultiDiscrete) else chosen
    return _structured(space, actions, to_env_actions)


def _structured(space: spaces.Space, action: np.ndarray, convert: Callable[[spaces.Space, np.ndarray], Any]) -> Any:
    """The entries [..., D] or [..., A], each part of a Dict or Tuple converted from its own."""
    assert isinstance(space, spaces.Dict | spaces.Tuple)
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else list(space.spaces)
    ends = np.cumsum([sum(math.prod(leaf.shape or ()) for leaf in _action_leaves(part)) for part in parts])
    taken = [
        convert(part, entries[..., 0] if isinstance(part, spaces.Discrete) else entries)
        for part, entries in zip(parts, np.split(action, ends[:-1], axis=-1), strict=True)
    ]
    return dict(zip(space.spaces, taken, strict=True)) if isinstance(space, spaces.Dict) else tuple(taken)


def plain_actions(space: spaces.Space, actions: np.ndarray) -> np.ndarray:
    """As to_env_actions, but one array for a Dict or Tuple, too: the entries of its parts, one after the other."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return np.asarray(to_env_actions(space, actions))
    if actions.dtype.kind == "f":
        return actions
    chosen = np.stack(np.unravel_index(actions, choices(space)), axis=-1) if actions.ndim == 1 else actions
    return chosen + firsts(space)  # type: ignore[no-any-return]


def firsts(space: spaces.Space) -> np.ndarray:
    """The first value of each choice, [choices]."""
    parts = [
        np.ravel(leaf.start) if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else np.zeros(len(choices(leaf)), int)
        for leaf in _action_leaves(space)
    ]
    return np.concatenate(parts)


def unbounded(action: Continuous, values: np.ndarray) -> np.ndarray:
    """The inverse of action.bounded(): [..., A] as replay stores it. What is at or beyond the bounds becomes finite."""
    low, high = np.array(action.low), np.array(action.high)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, np.finfo(np.float32).tiny)
    return np.arctanh(np.clip((values - middle) / half, -INNERMOST, INNERMOST)).astype(np.float32)  # type: ignore[no-any-return]


def stored_actions(space: spaces.Space, action: Action, plain: np.ndarray) -> np.ndarray:
    """The inverse of plain_actions() and of the bounds: [T, …] as the environment takes them -> as replay stores them. Real
    numbers at or beyond their bounds become finite. Raises ValueError for others than the space has."""
    flat = np.asarray(plain).reshape(len(plain), -1)
    if isinstance(action, Continuous):
        if flat.shape[1] != len(action.low):
            raise ValueError(f"an action has {flat.shape[1]} numbers, and the environment's {len(action.low)}")
        return unbounded(action, flat)
    if np.asarray(plain).dtype.kind not in "iub" and (flat != np.rint(flat)).any():
        raise ValueError("an action is no whole number, and the environment's are choices")
    sizes = choices(space)
    if flat.shape[1] != len(sizes):
        raise ValueError(f"an action has {flat.shape[1]} choices, and the environment's {len(sizes)}")
    chosen = flat.astype(np.int64) - firsts(space)
    if (chosen < 0).any() or (chosen >= sizes).any():
        raise ValueError("an action is none of the environment's")
    if isinstance(action, MultiCategorical):
        return chosen.astype(np.int32)
    return np.ravel_multi_index(tuple(chosen.T), sizes).astype(np.int32)
