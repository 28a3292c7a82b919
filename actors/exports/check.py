"""Compares an exported policy with the policy itself, on random observations, before it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces

from actors.agent import Agent
from actors.envs.foreign.actions import plain_actions
from actors.envs.spec import flatten_leaf
from actors.exports.policy import PortablePolicy, normaliser
from learner.algorithms.base import make_algorithm, read_algorithm
from learner.inference.base import Inference
from learner.inference.open import open_inference
from learner.weights.checkpoint import CheckpointError
from transport.experience import Categorical, Columns, bounded
from transport.files.documents import decode

STREAMS, STEPS = 100, 100  # 10,000 observations
TOLERANCE = 1e-5  # of outputs and of continuous actions, relative to the greatest
ENDS = 0.1  # share of the steps after which an episode ends
REACH = 3.0  # of observations without bounds


class Runner(Protocol):
    """An exported policy as its runtime computes it."""

    def __call__(self, observation: Mapping[str, np.ndarray], reset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Plain parts of K observations [K, …], and where an episode begins [K] -> actions [K, …], outputs [K, outputs]."""


class Agreement(NamedTuple):
    """How an exported policy differs from the policy."""

    observations: int
    output: float  # greatest difference of outputs, relative to the greatest output
    actions: int  # how many differ where the policy's best two are not equal within TOLERANCE
    action: float  # greatest difference of continuous actions, relative to their range

    @property
    def exact(self) -> bool:
        return self.output <= TOLERANCE and self.action <= TOLERANCE and not self.actions

    def __str__(self) -> str:
        what = f"{self.actions:,} other actions" if self.actions else "the same greedy actions"
        return f"{self.observations:,} random observations: {what}, outputs differ by {self.output:.1g} at most"


def compare(policy: PortablePolicy, runner: Runner, seed: int = 0) -> Agreement:
    """Plays random observations to both."""
    config = decode(policy.metadata["config"], dict[str, Any])
    algorithm = make_algorithm(read_algorithm(config["algorithm"]))
    inference = _Recorder(open_inference(algorithm, policy.spec, policy.description))
    inference.load(policy.weights)
    agent = Agent(policy.spec, algorithm.acting(policy.spec, inference), STREAMS)
    random = np.random.default_rng(seed)
    observe, worst, scale = sampler(policy, random), np.zeros(2), 1e-12
    wrong = 0
    for step in range(STEPS):
        plain = observe()
        stored = _stored(policy, plain)
        began = np.ones(STREAMS, bool) if step == 0 else random.random(STREAMS) < ENDS
        (agent.push(stored, began) if step else agent.reset(stored))
        chosen = agent.act("greedy")[0]
        expected = plain_actions(policy.action_space, bounded(policy.spec, chosen))
        action, outputs = runner(plain, began)
        scale = max(scale, float(np.abs(inference.outputs).max()))
        worst[0] = max(worst[0], float(np.abs(outputs - inference.outputs).max()))
        if np.issubdtype(expected.dtype, np.floating):
            worst[1] = max(worst[1], float(np.abs(action - expected).max() / max(np.abs(expected).max(), 1.0)))
        else:
            other = (action != expected).reshape(STREAMS, -1).any(1)
            wrong += int((other & ~_tied(policy, inference.outputs)).sum())
    return Agreement(STREAMS * STEPS, worst[0] / scale, wrong, worst[1])


def sampler(policy: PortablePolicy, random: np.random.Generator) -> Callable[[], dict[str, np.ndarray]]:
    """Plain parts of STREAMS observations at each call: as spread as training's were, where that is known."""
    statistics, spreads = normaliser(policy), dict[str, tuple[np.ndarray, np.ndarray]]()
    start = 0
    for field in policy.program[0].options["fields"] if statistics else ():
        place = slice(start, start := start + int(np.prod(field["shape"])))
        spreads[field["name"]] = statistics["mean"][place], np.sqrt(statistics["variance"][place])  # type: ignore[index]

    def observe() -> dict[str, np.ndarray]:
        return {name: _draw(space, random, spreads.get(name)) for name, space in policy.observations.items()}

    return observe


def _draw(space: Any, random: np.random.Generator, spread: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """[STREAMS, *shape], within the bounds."""
    shape = (STREAMS, *(space.shape or ()))
    if isinstance(space, spaces.Discrete):
        return random.integers(space.start, space.start + space.n, shape)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start + random.integers(0, space.nvec, shape)
    if isinstance(space, spaces.MultiBinary):
        return random.integers(0, 2, shape)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if space.dtype.kind in "iu":
        return random.integers(space.low, space.high, shape, endpoint=True, dtype=space.dtype)  # type: ignore[no-any-return]
    if spread is not None and spread[0].size == np.prod(space.shape):
        mean, deviation = (values.reshape(space.shape) for values in spread)
        return np.clip(mean + 2 * deviation * random.normal(size=shape), low, high).astype(np.float32)
    low, high = np.maximum(low, -REACH), np.minimum(high, REACH)
    return random.uniform(np.minimum(low, high), np.maximum(low, high), shape).astype(np.float32)


def _stored(policy: PortablePolicy, plain: Mapping[str, np.ndarray]) -> Columns:
    spec, found = policy.spec, policy.observations
    return {name: spec.field(name).encode(flatten_leaf(found[name], values)) for name, values in plain.items()}


def _tied(policy: PortablePolicy, outputs: np.ndarray) -> np.ndarray:
    """[K] bool where the best outputs are equal within the tolerance, so that rounding decides."""
    gaps = np.diff(np.sort(outputs, axis=1), axis=1)
    best = gaps[:, -1:] if isinstance(policy.spec.action, Categorical) else gaps
    tied: np.ndarray = (best <= TOLERANCE * np.abs(outputs).max()).any(1)
    return tied


class _Recorder:
    """An inference that keeps its last outputs."""

    def __init__(self, inner: Inference) -> None:
        self._inner, self.state, self.outputs = inner, inner.state, np.empty((0, 0), np.float32)

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        return self._inner.weights

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        self._inner.load(weights)

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        self.outputs, after = self._inner(observation, state)
        return self.outputs, after


def refuse(agreement: Agreement, form: str) -> None:
    """Raises CheckpointError unless the policies agree."""
    if not agreement.exact:
        raise CheckpointError(
            f"nothing is written, because the policy as {form} is another one ({agreement}): an algorithm of one's own that does "
            "not act by its network's highest output, or by its mean, cannot be exported so"
        )
