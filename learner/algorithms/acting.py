"""What actors run: a network's choice among actions, on arrays. learner/inference/forward.py has the network's part of it."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

import numpy as np

from learner.algorithms.arithmetic.gaussian import GREATEST_LOG_STD, HALF_LOG_2_PI, LEAST_LOG_STD
from learner.algorithms.dqn.priorities import BEST_VALUE, TAKEN_VALUE
from learner.algorithms.ppo.config import LOG_PROB
from learner.algorithms.ppo.networks import ActorCritic
from learner.algorithms.sac.networks import SoftPolicy
from learner.inference.forward import forward
from learner.networks.q_network import QNetwork
from transport.experience import Columns

Mode = Literal["explore", "greedy", "random"]  # as in training, what the policy thinks best, without any policy
NEAR_ONE = 1 - 1e-6  # a tanh of 1 would come of an infinite action


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
        self._forward = forward(network, requested)
        self._epsilon: np.ndarray | float = 0.0
        self._random = np.random.default_rng()

    def explore_with(self, epsilon: np.ndarray | float) -> None:
        """The probability of a random action in mode explore: one, or one per row [K]."""
        self._epsilon = epsilon

    def refresh(self) -> None:
        """The network has other weights now."""
        self._forward.refresh()

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
        return self._forward(observation)


class StochasticPolicy:
    """Draws from an actor-critic's policy. Remembers LOG_PROB, of the action under what it was drawn from; of a greedy one,
    under the policy."""

    def __init__(self, network: ActorCritic, requested: str = "float32") -> None:
        """Takes the network whose weights are followed; puts it into evaluation mode.

        `requested` is the precision of convolutions; auto is float32. In another, another policy acts than the one that is
        learned: its log-probabilities are told as they were, so learning stays right, but a learner of the same weights finds
        ratios some hundredths away from 1. Raises DeviceError for one that there is not.
        """
        self._forward = forward(network, requested)
        self._log_std = None if network.log_std is None else network.log_std.detach().numpy()
        self._random = np.random.default_rng()

    def refresh(self) -> None:
        """The network has other weights now."""
        self._forward.refresh()

    def seed(self, seed: int) -> None:
        """Begins the stream of random choices anew."""
        self._random = np.random.default_rng(seed)

    def act(self, observation: Columns, mode: Mode) -> Acted:
        """Acts on observation[name] [K, stack, *shape] as stored."""
        parameters = self._forward(observation)  # logits [K, n] or means [K, A]
        action, log_prob = self._choose(parameters, mode) if self._log_std is None else self._draw(parameters, mode)
        return Acted(action, {LOG_PROB: log_prob.astype(np.float32)})

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
        """Unbounded actions [K, A], and the log-density [K] of what their tanh is: as
        learner/algorithms/arithmetic/gaussian.py computes it."""
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
        self._forward, self._actions = forward(network), network.actions
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
        answer = self._forward(observation)  # [K, 2A]
        mean, log_std = answer[:, : self._actions], answer[:, self._actions :]
        if mode == "greedy":
            return Acted(mean.copy(), {})
        noise = self._random.standard_normal(mean.shape, np.float32)
        return Acted(mean + np.exp(log_std.clip(LEAST_LOG_STD, GREATEST_LOG_STD)) * noise, {})


def _anything(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Unbounded actions [K, A] float32 of which the bounded ones are uniform."""
    return np.arctanh(random.uniform(-NEAR_ONE, NEAR_ONE, shape)).astype(np.float32)
