"""What actors run: a network's choice among actions, on arrays.

A network without convolutions is small beside what it costs to dispatch its layers one by one, so numpy applies them: for the
few rows of an actor's step that takes a tenth of the time. The arrays are the parameters' own memory, so that weights which
are adopted are acted on at once. Large convolutions run in bfloat16 where the processor multiplies it, in half the time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from learner.actor_critic import ACHIEVED, CLIP, DESIRED, EPSILON, NEAR, ActorCritic
from learner.config import LOG_PROB
from learner.devices import precision
from learner.gaussian import GREATEST_LOG_STD, HALF_LOG_2_PI, LEAST_LOG_STD
from learner.networks import QNetwork, Torso, large_convolutions
from learner.priorities import BEST_VALUE, TAKEN_VALUE
from learner.soft_networks import SoftPolicy
from transport.experience import Columns

Layers = Callable[[np.ndarray], np.ndarray]
Mode = Literal["explore", "greedy", "random"]  # as in training, what the policy thinks best, without any policy
CPU = torch.device("cpu")
NEAR_ONE = 1 - 1e-6  # a tanh of 1 would come of an infinite action
NetworkT = TypeVar("NetworkT", QNetwork, ActorCritic)


class Acted(NamedTuple):
    """What was decided for K observations: action [K] int64, or [K, A] float32 unbounded; and what the algorithm remembers of
    it, {name: [K] float32}."""

    action: np.ndarray
    remembered: Columns


class Policy(Protocol):
    """Acts by a network on the CPU. Whoever changes the network's weights says so by refresh()."""

    def refresh(self) -> None:
        """The network has other weights now."""

    def seed(self, seed: int) -> None:
        """Begins the stream of random choices anew."""

    def act(self, observation: Columns, mode: Mode) -> Acted:
        """Acts on observation[name] [K, stack, *shape] as stored."""


class QPolicy:
    """Acts by Q-values: greedily, or at random with a probability of each environment's own. Remembers TAKEN_VALUE and
    BEST_VALUE."""

    def __init__(self, network: QNetwork, requested: str = "float32") -> None:
        """Takes the network whose weights are followed; puts it into evaluation mode. Does not explore until it is told to.

        `requested` is the precision of convolutions, or auto. Raises DeviceError for one that there is not.
        """
        self._network = self._acting = network.eval()
        self._dense = None if any(torso.image for torso in network.torsos) else _Dense(network)
        chosen = precision(requested, CPU, large_convolutions(network.parameters()))
        if chosen == "bfloat16" and self._dense is None:
            self._acting = _halved(network)
        self._epsilon: np.ndarray | float = 0.0
        self._random = np.random.default_rng()

    def explore_with(self, epsilon: np.ndarray | float) -> None:
        """The probability of a random action in mode explore: one, or one per row [K]."""
        self._epsilon = epsilon

    def refresh(self) -> None:
        """The network has other weights now."""
        _copy_weights(self._network, self._acting)

    def seed(self, seed: int) -> None:
        """Begins the stream of random choices anew."""
        self._random = np.random.default_rng(seed)

    def act(self, observation: Columns, mode: Mode) -> Acted:
        """Acts on observation[name] [K, stack, *shape] as stored."""
        q = self.q_values(observation)  # [K, n]
        action, best_value = q.argmax(1), q.max(1)
        epsilon = {"explore": self._epsilon, "greedy": 0.0, "random": 1.0}[mode]
        explore = np.flatnonzero(self._random.random(len(q), np.float32) < epsilon)
        value = best_value
        if len(explore):
            action[explore] = self._random.integers(q.shape[1], size=len(explore))
            value = best_value.copy()
            value[explore] = q[explore, action[explore]]
        return Acted(action, {TAKEN_VALUE: value, BEST_VALUE: best_value})

    def q_values(self, observation: Columns) -> np.ndarray:
        """[K, n] float32."""
        if self._dense is not None:
            return self._dense(observation)
        with torch.inference_mode():
            q: np.ndarray = self._acting({name: torch.from_numpy(rows) for name, rows in observation.items()}).numpy()
        return q


class StochasticPolicy:
    """Draws from an actor-critic's policy. Remembers LOG_PROB, of the action under what it was drawn from; of a greedy one,
    under the policy."""

    def __init__(self, network: ActorCritic, requested: str = "float32") -> None:
        """Takes the network whose weights are followed; puts it into evaluation mode.

        `requested` is the precision of convolutions; auto is float32. In bfloat16 another policy acts than the one that is
        learned: its log-probabilities are told as they were, so learning stays right, but a learner of the same weights finds
        ratios some hundredths away from 1. Raises DeviceError for one that there is not.
        """
        self._network = self._acting = network.eval()
        self._dense = None if network.names else _DenseActor(network)
        chosen = "float32" if requested == "auto" else precision(requested, CPU)
        if chosen == "bfloat16" and self._dense is None:
            self._acting = _halved(network)
        self._log_std = None if network.log_std is None else network.log_std.detach().numpy()
        self._random = np.random.default_rng()

    def refresh(self) -> None:
        """The network has other weights now."""
        _copy_weights(self._network, self._acting)

    def seed(self, seed: int) -> None:
        """Begins the stream of random choices anew."""
        self._random = np.random.default_rng(seed)

    def act(self, observation: Columns, mode: Mode) -> Acted:
        """Acts on observation[name] [K, stack, *shape] as stored."""
        parameters = self._parameters(observation)
        action, log_prob = self._choose(parameters, mode) if self._log_std is None else self._draw(parameters, mode)
        return Acted(action, {LOG_PROB: log_prob.astype(np.float32)})

    def _parameters(self, observation: Columns) -> np.ndarray:
        """Logits [K, n] or means [K, A], float32."""
        if self._dense is not None:
            return self._dense(observation)
        with torch.inference_mode():
            parameters, _ = self._acting({name: torch.from_numpy(rows) for name, rows in observation.items()})
            return parameters.numpy()  # type: ignore[no-any-return]

    def _choose(self, logits: np.ndarray, mode: Mode) -> tuple[np.ndarray, np.ndarray]:
        """One of n actions [K], and its log-probability [K]."""
        count, n = logits.shape
        if mode == "random":
            return self._random.integers(n, size=(count,)), np.full(count, -math.log(n))
        shifted = logits - logits.max(1, keepdims=True)
        cumulative = np.exp(shifted).cumsum(1)  # [K, n]; the last is the sum
        if mode == "greedy":
            action = logits.argmax(1)
        else:  # how many are passed on the way to a uniform share of the sum; the minimum is for rounding
            share = self._random.random((count, 1)) * cumulative[:, -1:]
            action = np.minimum((cumulative <= share).sum(1), n - 1)
        return action, shifted[np.arange(count), action] - np.log(cumulative[:, -1])

    def _draw(self, mean: np.ndarray, mode: Mode) -> tuple[np.ndarray, np.ndarray]:
        """Unbounded actions [K, A], and the log-density [K] of what their tanh is: as learner/gaussian.py computes it."""
        assert self._log_std is not None
        if mode == "random":
            return _anything(self._random, mean.shape), np.full(len(mean), -math.log(2 * NEAR_ONE) * mean.shape[1])
        log_std = self._log_std.clip(LEAST_LOG_STD, GREATEST_LOG_STD)
        action = mean
        if mode == "explore":
            action = mean + np.exp(log_std) * self._random.standard_normal(mean.shape, np.float32)  # what rests is float32
        exact = action.astype(np.float64)
        density = -0.5 * ((exact - mean) * np.exp(-log_std)) ** 2 - log_std - HALF_LOG_2_PI
        slope = 2 * (math.log(2) - exact - np.logaddexp(0, -2 * exact))
        return action, (density - slope).sum(1)


class SoftActing:
    """Draws from a soft actor-critic's policy; greedily it does the mean. Remembers nothing."""

    def __init__(self, network: SoftPolicy) -> None:
        """Takes the network whose weights are followed."""
        self._dense, self._actions = _DenseActor(network), network.actions
        self._random = np.random.default_rng()

    def refresh(self) -> None:
        """Weights are read where the network has them."""

    def seed(self, seed: int) -> None:
        """Begins the stream of random choices anew."""
        self._random = np.random.default_rng(seed)

    def act(self, observation: Columns, mode: Mode) -> Acted:
        """Acts on observation[name] [K, stack, *shape] as stored."""
        if mode == "random":
            count = len(next(iter(observation.values())))
            return Acted(_anything(self._random, (count, self._actions)), {})
        answer = self._dense(observation)  # [K, 2A]
        mean, log_std = answer[:, : self._actions], answer[:, self._actions :]
        if mode == "greedy":
            return Acted(mean.copy(), {})
        noise = self._random.standard_normal(mean.shape, np.float32)
        return Acted(mean + np.exp(log_std.clip(LEAST_LOG_STD, GREATEST_LOG_STD)) * noise, {})


def _anything(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Unbounded actions [K, A] float32 of which the bounded ones are uniform."""
    return np.arctanh(random.uniform(-NEAR_ONE, NEAR_ONE, shape)).astype(np.float32)


def _copy_weights(network: nn.Module, copy_: nn.Module) -> None:
    """Makes a copy in another precision follow the network; the network itself needs nothing."""
    if copy_ is not network:
        with torch.no_grad():
            for mine, theirs in zip(_tensors(copy_), _tensors(network), strict=True):
                mine.copy_(theirs)


def _halved(network: NetworkT) -> NetworkT:
    """A copy in bfloat16, but for the heads: Q-values of actions lie closer to each other than bfloat16 can tell."""
    half: NetworkT = copy.deepcopy(network)
    for module in [*half.torsos.modules(), *half.trunk.modules()]:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.to(torch.bfloat16)
    return half


def _tensors(network: nn.Module) -> Iterator[torch.Tensor]:
    yield from network.parameters()
    yield from network.buffers()


class _Dense:
    """QNetwork's forward pass in numpy, for networks of linear layers alone. Within it rows are columns, [features, K]:
    W x needs no transposed copy of W."""

    def __init__(self, network: QNetwork) -> None:
        torsos = [torso for torso in network.torsos if isinstance(torso, Torso)]
        self._torsos = [(name, torso, _layers(torso.layers)) for name, torso in zip(network.names, torsos, strict=True)]
        self._trunk = _layers(nn.Sequential(*network.trunk, network.head))
        self._dueling = network.dueling

    def __call__(self, observation: Columns) -> np.ndarray:
        features = [layers(_dequantised(torso, observation[name])) for name, torso, layers in self._torsos]
        output = self._trunk(features[0] if len(features) == 1 else np.concatenate(features))  # [n or n + 1, K]
        if not self._dueling:
            return output.T
        value, advantage = output[0], output[1:]
        q: np.ndarray = value + advantage - advantage.mean(0)
        return q.T


class _DenseActor:
    """The policy's half of an ActorCritic's forward pass in numpy, for networks without images; or a SoftPolicy's."""

    def __init__(self, network: ActorCritic | SoftPolicy) -> None:
        self._fields, self._goal, self._features = network.inputs.fields, network.inputs.goal, network.inputs.features
        self._way, normaliser = network.inputs.way, network.inputs.normaliser
        self._statistics = None
        if normaliser is not None:
            self._statistics = (normaliser.count.numpy(), normaliser.mean.numpy(), normaliser.variance.numpy())
        self._layers = _layers(network.policy)

    def __call__(self, observation: Columns) -> np.ndarray:
        parts = {}
        for field in self._fields:
            stored = observation[field.name]
            parts[field.name] = field.decode(stored.reshape(*stored.shape[:2], -1)).astype(np.float32, copy=False)
        if self._goal:
            values = np.concatenate([*parts.values(), parts[DESIRED] - parts[ACHIEVED]], 2)
        else:
            values = np.concatenate(list(parts.values()), 2)  # [K, stack, features of a row]
        near = self._near(values)
        if self._statistics is not None and self._statistics[0] > 0:
            _, mean, variance = self._statistics
            values -= mean
            values /= np.sqrt(variance + np.float32(EPSILON))
            values.clip(-CLIP, CLIP, out=values)
        if near is not None:
            values = np.concatenate([values, near], 2)
        return self._layers(values.reshape(len(values), self._features).T).T

    def _near(self, values: np.ndarray) -> np.ndarray | None:
        """The way to the goal, squeezed, [K, stack, way]; as learner/actor_critic.py has it."""
        if not self._way or self._statistics is None:
            return None
        count, _, variance = self._statistics
        size = np.sqrt(variance[-self._way :].mean()) if count > 0 else np.float32(1.0)
        way = values[..., -self._way :]
        near: np.ndarray = way / (np.linalg.norm(way, axis=2, keepdims=True) + np.float32(NEAR) * size + np.float32(EPSILON))
        return near


def _dequantised(torso: Torso, stored: np.ndarray) -> np.ndarray:
    """[features, K] float32."""
    values = stored.reshape(len(stored), -1).astype(np.float32, copy=torso.scale != 1.0 or torso.offset != 0.0)
    if torso.scale != 1.0:
        values *= np.float32(torso.scale)
    if torso.offset != 0.0:
        values += np.float32(torso.offset)
    return values.T


def _layers(layers: nn.Sequential) -> Layers:
    """Applies linear layers, ReLUs and tanh, one after the other, to [features, K]."""
    steps: list[tuple[np.ndarray, np.ndarray] | Layers] = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            steps.append((layer.weight.detach().numpy(), layer.bias.detach().numpy()[:, None]))
        else:
            steps.append(_IN_PLACE[type(layer)])

    def apply(values: np.ndarray) -> np.ndarray:
        for step in steps:
            if callable(step):
                values = step(values)
            else:
                values = step[0] @ values
                values += step[1]
        return values

    return apply


_IN_PLACE: dict[type[nn.Module], Layers] = {
    nn.ReLU: lambda values: np.maximum(values, 0, out=values),
    nn.Tanh: lambda values: np.tanh(values, out=values),
}
