"""The inputs of all figures: specs, streams of steps and weights, as plain numbers that no code of the product makes."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]


class Observed(NamedTuple):
    """A field of an observation as it rests."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "<f4"
    scale: float = 1.0
    offset: float = 0.0
    codec: str = "none"


class Case(NamedTuple):
    """What an experience spec and an algorithm are made from. `actions`: n, or (low, high) of a vector."""

    fields: tuple[Observed, ...]
    actions: int | tuple[tuple[float, ...], tuple[float, ...]]
    algorithm: str = "dqn"
    options: dict[str, Any] = {}  # noqa: RUF012  # of the algorithm
    learner: dict[str, Any] = {}  # noqa: RUF012
    chunk_length: int = 16
    stack: int = 1
    goals: int = 0
    items: int = 32  # of a batch; chunks for rollouts
    updates: int = 6  # batches that are learned from
    streams: int = 3
    steps: int = 120  # of each stream
    precision: str = "float32"  # of the convolutions that act


def image(name: str = "image", side: int = 36) -> Observed:
    return Observed(name, (side, side), "|u1", 1 / 255, codec="lz4")


VECTOR = (Observed("observation", (5,)),)
DICT = (Observed("position", (3,)), Observed("joints", (2,), "|u1", 0.05, -3.0), Observed("place", ()))
ARM = ((-1.0, -2.0, 0.0), (1.0, 2.0, 5.0))
GOALS = (Observed("observation", (4,)), Observed("achieved_goal", (3,)), Observed("desired_goal", (3,)))

REPLAY = {
    "image": Case((image(),), 4, options={"n_step": 3}, stack=4),
    "vector": Case(VECTOR, 3, options={"n_step": 1}),
    "dict": Case(DICT, 6, options={"n_step": 5}, stack=2),
    "continuous": Case(VECTOR, ARM, "sac"),
    "goals": Case(GOALS, ARM, "sac", goals=4),
}
ROLLOUTS = {
    "image": Case((image(),), 4, "ppo", stack=4),
    "vector": Case(VECTOR, 3, "ppo"),
    "dict-continuous": Case(DICT, ARM, "ppo", stack=2),
}
SMALL: dict[str, Any] = {"hidden": 32}
IMAGES: dict[str, Any] = {"items": 8, "updates": 3, "streams": 2, "steps": 40}
LEARNING = {
    "dqn-plain": Case(DICT, 4, options={**SMALL, "n_step": 3, "target_update_interval": 4}, stack=2),
    "dqn-accumulated": Case(
        DICT,
        4,
        options={**SMALL, "n_step": 2, "double": False, "dueling": False, "clip_rewards": True},
        learner={"accumulation": 4},
    ),
    "dqn-mlp": Case(VECTOR, 4, options={**SMALL, "n_step": 3, "target_update_interval": 4, "reward_scale": 0.5}, stack=2),
    "dqn-image": Case((image(),), 4, options={**SMALL, "n_step": 3, "target_update_interval": 2}, stack=4, **IMAGES),
    "dqn-batchnorm": Case(
        (image(),),
        4,
        options={**SMALL, "n_step": 1, "network": "nature_batchnorm", "target_update_interval": 2},
        stack=2,
        **IMAGES,
    ),
    "ppo-vector": Case(
        VECTOR, 4, "ppo", options={**SMALL, "n_epochs": 3, "minibatches": 4, "ent_coef": 0.01}, items=6, updates=3
    ),
    "ppo-late": Case(  # chunks of several policies
        VECTOR,
        4,
        "ppo",
        options={**SMALL, "n_epochs": 2, "clip_range_vf": 0.2},
        items=6,
        updates=2,
        learner={"max_policy_lag": 4},
    ),
    "ppo-schedules": Case(
        VECTOR,
        3,
        "ppo",
        options={**SMALL, "n_epochs": 6, "target_kl": 0.2, "adaptive_kl": 0.05, "anneal_steps": 400, "ent_coef": 0.02}
        | {"learning_rate_end": 0.1, "ent_coef_end": 0.2},
        items=6,
        updates=3,
        learner={"learning_rate": 1e-3},
    ),
    "ppo-continuous": Case(DICT, ARM, "ppo", options={**SMALL, "n_epochs": 2, "normalize_advantage": False}, items=6, updates=2),
    "ppo-image": Case((image(),), 4, "ppo", options={**SMALL, "n_epochs": 2}, stack=4, **IMAGES | {"items": 4, "updates": 1}),
    "sac": Case(VECTOR, ARM, "sac", options={**SMALL, "tau": 0.05, "reward_scale": 0.3}),
    "sac-goals": Case(GOALS, ARM, "sac", options={**SMALL, "clip_targets": True}, goals=4),
}
ACTING = {
    "dqn-vector": Case(VECTOR, 4, options={**SMALL, "n_step": 3}, stack=2, streams=4, steps=60),
    "dqn-dict": Case(DICT, 4, options={**SMALL, "n_step": 2, "clip_rewards": True}, streams=4, steps=60),
    "dqn-image": Case((image(),), 4, options={**SMALL, "n_step": 3}, stack=4, streams=4, steps=20),
    "dqn-image-int8": Case((image(),), 4, options=SMALL, stack=4, streams=4, steps=20, precision="int8"),
    "dqn-image-bfloat16": Case((image(),), 4, options=SMALL, stack=4, streams=4, steps=20, precision="bfloat16"),
    "ppo-vector": Case(VECTOR, 4, "ppo", options=SMALL, streams=4, steps=60),
    "ppo-continuous": Case(VECTOR, ARM, "ppo", options=SMALL, streams=4, steps=60),
    "ppo-image": Case((image(),), 4, "ppo", options=SMALL, stack=4, streams=4, steps=20),
    "sac": Case(VECTOR, ARM, "sac", options={**SMALL, "noise_exponent": 1.0}, streams=4, steps=60),
    "sac-goals": Case(GOALS, ARM, "sac", options={**SMALL, "noise_exponent": 1.0}, goals=4, streams=4, steps=60),
}
MODES = ("explore", "greedy", "random")


class Step(NamedTuple):
    """What follows an action: [K, …] each. `final` is the observation that an ended episode ended with."""

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: Arrays
    observation: Arrays


class World:
    """Streams of random observations and rewards; episodes end by chance, half of them truncated. Actions change nothing."""

    def __init__(self, case: Case, seed: int) -> None:
        self._case, self._random = case, np.random.default_rng(seed)

    def observe(self) -> Arrays:
        """[K, *shape] as they rest."""
        count = self._case.streams
        return {
            field.name: self._random.integers(256, size=(count, *field.shape), dtype=np.uint8)
            if field.dtype == "|u1"
            else self._random.normal(0.5, 1.5, (count, *field.shape)).astype(np.float32)
            for field in self._case.fields
        }

    def step(self) -> Step:
        count = self._case.streams
        ended = self._random.random(count) < 0.12
        terminated = ended & (self._random.random(count) < 0.5)
        reward = self._random.normal(size=count).astype(np.float32)
        final, following = self.observe(), self.observe()
        observation = {
            name: np.where(ended.reshape(-1, *[1] * (rows.ndim - 1)), following[name], rows) for name, rows in final.items()
        }
        return Step(reward, terminated, ended & ~terminated, final, observation)


def draw_actions(case: Case, random: np.random.Generator) -> np.ndarray:
    """[K] int64, or [K, A] float32."""
    if isinstance(case.actions, int):
        return random.integers(case.actions, size=case.streams)
    return random.normal(size=(case.streams, len(case.actions[0]))).astype(np.float32)


def weights(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """A value for each parameter, by its name and shape alone."""
    values = {}
    for name, shape in shapes.items():
        fan_in = max(int(np.prod(shape[1:])), 1) if len(shape) > 1 else 100
        drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape) / np.sqrt(fan_in)
        values[name] = np.asarray(drawn, np.float32)
    return values
