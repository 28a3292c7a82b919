"""Compares an exported policy with the policy itself, on random observations, before it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from gymnasium import spaces

from actors.agent import Agent
from actors.envs.foreign.actions import plain_actions
from actors.envs.spec import flatten_leaf
from actors.exports.policy import PortablePolicy, normaliser
from learner.algorithms.arithmetic.masks import allowed_actions
from learner.algorithms.base import ActingPolicy, make_algorithm, read_algorithm
from learner.inference.base import Inference
from learner.inference.open import open_inference
from learner.weights.checkpoint import CheckpointError
from transport.experience import ACTION_MASK, Columns, Continuous, MultiCategorical, bounded
from transport.files.documents import Damaged, decode
from transport.names import UnknownName

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
    actions: int  # how many choices differ where the policy's best two are not equal within TOLERANCE
    action: float | None  # greatest difference of continuous actions, relative to the greatest; None: actions are choices

    @property
    def exact(self) -> bool:
        return self.output <= TOLERANCE and (self.action or 0.0) <= TOLERANCE and not self.actions  # False for NaN, too

    def __str__(self) -> str:
        named = f"{self.actions:,} other actions" if self.actions else "the same greedy actions"
        what = named if self.action is None else f"greedy actions differ by {self.action:.1g} at most"
        return f"{self.observations:,} random observations: {what}, outputs by {self.output:.1g} of the greatest"


def compare(policy: PortablePolicy, runner: Runner, seed: int = 0) -> Agreement:
    """Plays random observations to both. Raises CheckpointError."""
    if odd := [name for name, values in policy.weights.items() if not np.isfinite(values).all()]:
        raise CheckpointError(f"the weights are not finite: {odd[0]}")
    acting, inference = _original(policy)
    agent = Agent(policy.spec, acting, STREAMS)
    random = np.random.default_rng(seed)
    observe, scale, output, wrong = sampler(policy, random), 1e-12, 0.0, 0
    continuous = isinstance(policy.spec.action, Continuous)
    difference = 0.0
    for step in range(STEPS):
        plain = observe()
        stored = _stored(policy, plain)
        began = np.ones(STREAMS, bool) if step == 0 else random.random(STREAMS) < ENDS
        (agent.push(stored, began) if step else agent.reset(stored))
        expected = plain_actions(policy.action_space, bounded(policy.spec, agent.act("greedy")[0]))
        action, outputs = runner(plain, began)
        scale = max(scale, float(np.abs(inference.outputs).max()))
        output = np.maximum(output, np.abs(outputs - inference.outputs).max())  # NaN stays
        if continuous:
            error = np.abs(action.astype(expected.dtype).astype(np.float64) - expected)
            difference = np.maximum(difference, error.max() / max(float(np.abs(expected).max()), 1.0))
        else:
            wrong += _wrong(policy, agent.stacked, inference.outputs, action, expected)
    return Agreement(STREAMS * STEPS, float(output) / scale, wrong, float(difference) if continuous else None)


def _original(policy: PortablePolicy) -> tuple[ActingPolicy, _Recorder]:
    """The policy as it acts, and what keeps the outputs of its network. Raises CheckpointError."""
    try:
        config = decode(policy.metadata["config"], dict[str, Any])
        algorithm = make_algorithm(read_algorithm(config["algorithm"]))
    except (KeyError, msgspec.ValidationError, Damaged, UnknownName) as error:
        raise CheckpointError(f"the policy was exported by another version of Headrace ({error}): export it again") from error
    inference = _Recorder(open_inference(algorithm, policy.spec, policy.description))
    inference.load(policy.weights)
    return algorithm.acting(policy.spec, inference), inference


def sampler(policy: PortablePolicy, random: np.random.Generator) -> Callable[[], dict[str, np.ndarray]]:
    """Plain parts of STREAMS observations at each call: as spread as training's were, where that is known."""
    statistics, spreads = normaliser(policy), dict[str, tuple[np.ndarray, np.ndarray]]()
    start = 0
    for field in policy.program[0].options["fields"] if statistics else ():
        place = slice(start, start := start + int(np.prod(field["shape"])))
        spreads[field["name"]] = statistics["mean"][place], np.sqrt(statistics["variance"][place])  # type: ignore[index]

    def part(name: str, space: Any) -> np.ndarray:
        if name == ACTION_MASK:
            return random.integers(0, 2, (STREAMS, *space.shape))
        return _draw(space, random, spreads.get(name))

    def observe() -> dict[str, np.ndarray]:
        return {name: part(name, space) for name, space in policy.observations.items()}

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
    low = np.where(np.isfinite(low), low, np.minimum(high, 0) - REACH)  # a side without a bound begins at the other, or at 0
    high = np.where(np.isfinite(high), high, np.maximum(low, 0) + REACH)
    return random.uniform(low, high, shape).astype(np.float32)


def _stored(policy: PortablePolicy, plain: Mapping[str, np.ndarray]) -> Columns:
    spec, found = policy.spec, policy.observations
    return {name: spec.field(name).encode(flatten_leaf(found[name], values)) for name, values in plain.items()}


def _wrong(policy: PortablePolicy, stacked: Columns, outputs: np.ndarray, action: np.ndarray, expected: np.ndarray) -> int:
    """How many of K actions differ where rounding does not decide: where the best two outputs of a choice are not equal within
    the tolerance."""
    other = (action != expected).reshape(len(outputs), -1)  # [K, choices]
    near = TOLERANCE * np.abs(outputs).max()
    allowed = allowed_actions(policy.spec, stacked)
    values = outputs if allowed is None else np.where(allowed, outputs, -np.inf)
    if not isinstance(policy.spec.action, MultiCategorical):
        return int((other.any(1) & ~_tied(values, near)).sum())
    parts = np.split(values, np.cumsum(policy.spec.action.sizes)[:-1], axis=1)
    ties = np.stack([_tied(part, near) for part in parts], 1)
    return int((other & ~ties).any(1).sum())


def _tied(values: np.ndarray, near: float) -> np.ndarray:
    """[K] bool where the best two of values [K, n] are equal."""
    if values.shape[1] == 1:
        return np.zeros(len(values), bool)
    ordered = np.sort(values, axis=1)
    tied: np.ndarray = ordered[:, -1] - ordered[:, -2] <= near
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
