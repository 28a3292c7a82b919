"""REPPO's update in arrays: equal to ReppoUpdate of update.py, whose losses have automatic gradients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, LEAST_LOG_STD, halves
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.reppo.critic_outputs import BinnedOutputs
from learner.algorithms.reppo.scale import ReturnScale, value_square
from learner.algorithms.sac.draws import Draws, by_output, draw
from learner.algorithms.sac.known import ACTION, INITIAL
from learner.description import Op, PolicyDescription
from learner.engine.errors import quietly
from learner.engine.module import Module
from learner.engine.returns import lambda_return
from learner.engine.rollouts import Metrics, Rollout, RolloutUpdate, portions
from learner.engine.runtime import EngineRuntime
from learner.networks.known.initial import initial
from learner.program.buffers import Buffer
from learner.program.inputs import Inputs
from learner.program.network import Network, trained
from learner.updates.base import Chunks, Outcome
from transport.experience import Continuous, ExperienceSpec

ZERO, ONE = np.float32(0), np.float32(1)


class SoftItems(NamedTuple):
    """N items of a rollout or of a minibatch."""

    inputs: np.ndarray  # [N, F] of the policy
    action: np.ndarray  # [N, A] that was taken, after the tanh
    target: np.ndarray  # [N] lambda returns of soft values, divided by the scale
    before: np.ndarray  # [N, 2A] means and log-stds of the policy before the first step of this rollout


class ReppoArrayUpdate(RolloutUpdate):
    """A policy, one or two critics without target network, the temperature, and the weight of the KL divergence."""

    config: ReppoConfig

    def __init__(
        self,
        spec: ExperienceSpec,
        config: ReppoConfig,
        policy: PolicyDescription,
        critics: PolicyDescription,
        runtime: EngineRuntime,
    ) -> None:
        super().__init__(spec, runtime, config)
        assert policy.program is not None and critics.program is not None and isinstance(spec.action, Continuous)
        self._actions = len(spec.action.low)
        self.policy, self.critics = (
            Module(initial(each, INITIAL, runtime.random), trained(each.program or ())) for each in (policy, critics)
        )
        self.temperature, self.kl_coef = (
            Module({"log": np.array(math.log(first), np.float32)}, ["log"]) for first in (config.temperature, config.kl_coef)
        )
        rates = {self.temperature: config.temperature_rate, self.kl_coef: config.kl_coef_rate}
        self.optimiser = runtime.optimiser("main", self.policy, self.temperature, self.kl_coef, rates=rates)
        self.critic_optimiser = runtime.optimiser("critics", self.critics)
        self.scaling = ReturnScale()
        self.modules: dict[str, Any] = {
            "policy": self.policy,
            "critics": self.critics,
            "temperature": self.temperature,
            "kl_coef": self.kl_coef,
            "scaling": self.scaling,
        }
        self.counters: dict[str, float] = {}
        self.target_entropy = np.float32(config.target_entropy * self._actions)
        self._networks(policy.program, critics.program)

    def _networks(self, policy: tuple[Op, ...], critics: tuple[Op, ...]) -> None:
        first = policy[0]
        self._inputs = Inputs([self.policy.tensors[name] for name in first.tensors], **first.options)
        places = dict(self._inputs.places)
        self._features = max(place.stop for place in places.values())
        self._policy = Network(policy, places, self.policy.tensors, self.policy.gradients)
        places[ACTION] = slice(self._features, self._features + self._actions)
        self._critics = Network(critics, places, self.critics.tensors, self.critics.gradients)
        self._outputs, self._rows, self._by_outputs = BinnedOutputs(), Buffer(), Buffer()

    @quietly
    def update(self, batch: Chunks[np.ndarray]) -> Outcome[Any]:
        """Several passes over one rollout batch; then its observations update the running statistics."""
        rollout = Rollout(batch, self.spec, self.config)
        metrics, last = self.passes(self.prepare(rollout))
        if last is not None:
            rollout.observe(self._inputs)
        return Outcome(metrics)

    def prepare(self, rollout: Rollout) -> SoftItems:
        """The rollout's items with their targets by the current critics and policy."""
        inputs, output, value, log_prob = self.evaluate(rollout)
        ratio = self.scaling.observe(value_square(rollout, self.config.gamma))
        temperature = np.exp(self.temperature.tensors["log"])
        entropy = np.where(rollout.discount == 0, ZERO, -temperature * rollout.discount * log_prob[:, 1:])
        reward = rollout.reward / self.scaling.scale + entropy
        target = lambda_return(reward.T, rollout.discount.T, (value[:, 1:] * ratio).T, rollout.cut.T, self.config.q_lambda).T
        action = np.tanh(rollout.of_items(rollout.batch.action[:, self.spec.history : -1]))
        among = rollout.among_read
        return SoftItems(inputs.take(among, 0), action, rollout.of_items(target), output.take(among, 0))

    def evaluate(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """For the R = B * (L + 1) steps of read(): inputs [R, F], the policy's means and log-stds [R, 2A], and values and
        log-densities [B, L + 1] of actions that it draws."""
        inputs, found = rollout.read(self._inputs), []
        for here in portions(len(inputs)):
            output = self._policy.forward(inputs[here])
            draws = self._draw(output)
            value = self._outputs.value(self._critics.forward(np.concatenate([inputs[here], draws.bounded], 1))).min(0)
            found.append((np.concatenate(halves(output), 1), value, draws.log_prob))
        output, value, log_prob = map(np.concatenate, zip(*found, strict=True))
        shape = rollout.index.shape[:2]
        return inputs, output, value.reshape(shape), log_prob.reshape(shape)

    def _draw(self, output: np.ndarray) -> Draws:
        return draw(output, self.runtime.random.standard_normal((len(output), self._actions), np.float32))

    def step(self, minibatch: SoftItems) -> Metrics:
        """A step of the policy and of both weights, and one of the critics."""
        items, metrics = len(minibatch.target), self.learn(minibatch)
        metrics["gradient_norm"] = float(self.optimiser.step(items))
        metrics["critic_gradient_norm"] = float(self.critic_optimiser.step(items))
        return metrics

    def learn(self, minibatch: SoftItems) -> Metrics:
        """Writes all gradients. The critics evaluate the actions taken, and those that the policy draws, in one pass."""
        items, features = len(minibatch.target), self._features
        output = self._policy.forward(minibatch.inputs)
        draws = self._draw(output)
        rows = self._rows((2 * items, features + self._actions))
        rows[:items, :features] = rows[items:, :features] = minibatch.inputs
        rows[:items, features:], rows[items:, features:] = minibatch.action, draws.bounded
        outputs = self._critics.forward(rows)
        value, slopes = self._outputs.value(outputs), self._by_outputs(outputs.shape)  # [critics, 2b], [critics, 2b, BINS]
        metrics = self._criticise(outputs, value[:, :items], minibatch.target, slopes)
        kl, by_kl = divergence(output, minibatch.before)
        within = (kl < np.float32(self.config.kl_bound)).astype(np.float32)
        share = np.float32(1 / items)
        self._outputs.by_value(by_smallest(value[:, items:]) * (within * -share), slopes[:, items:])
        by_rows = self._critics.backward(slopes, rows=items, by_input=slice(features, None))
        assert by_rows is not None
        by_action = np.add.reduce(by_rows.reshape(-1, 2 * items, self._actions)[:, items:])
        temperature, kl_coef = (np.exp(each.tensors["log"]) for each in (self.temperature, self.kl_coef))
        by_kl *= (kl_coef * share * (ONE - within))[:, None]
        by_kl += by_output(draws, by_action, (temperature * share * within)[:, None])
        self._policy.backward(by_kl)
        entropy, mean_kl = -mean(draws.log_prob), mean(kl)
        self.temperature.gradients["log"][...] = temperature * (entropy - self.target_entropy)
        self.kl_coef.gradients["log"][...] = kl_coef * np.float32(self.config.kl_bound - mean_kl)
        gain = value[:, items:].min(0) - temperature * draws.log_prob
        return metrics | {
            "policy_loss": mean((ONE - within) * kl_coef * kl - within * gain),
            "kl": mean_kl,
            "clip_fraction": 1 - mean(within),
            "entropy": entropy,
            "temperature": float(temperature),
            "kl_coef": float(kl_coef),
        }

    def _criticise(self, outputs: np.ndarray, q: np.ndarray, target: np.ndarray, slopes: np.ndarray) -> Metrics:
        """Writes the gradients by the critics' outputs for the b actions taken into the first of `slopes`. q: [critics, b]."""
        td = target - q
        finite = np.logical_and.reduce(np.isfinite(td))
        td = np.where(finite, td, ZERO)
        loss = self._outputs.loss(outputs, target, finite, slopes[:, : len(target)])
        scale = float(self.scaling.scale)
        return {
            "loss": float(loss),
            "td": float(np.abs(td).mean()) * scale,
            "q": float(q.mean()) * scale,
            "ignored": 1 - np.count_nonzero(finite) / len(target),
        }


def divergence(output: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """KL(before | output) [N] of Gaussians given by mean and log-std [N, 2A], and its derivatives [N, 2A] by the output.

    The tanh of both leaves it unchanged. `before` has log-stds within their bounds.
    """
    actions = output.shape[1] // 2
    raw = output[:, actions:]
    log_std = np.clip(raw, LEAST_LOG_STD, GREATEST_LOG_STD)
    old_log_std = before[:, actions:]
    precision = np.exp(-2 * log_std)
    moved = output[:, :actions] - before[:, :actions]
    by_mean = moved * precision
    quotient = np.exp(2 * old_log_std) * precision + moved * by_mean
    kl = (log_std - old_log_std + np.float32(0.5) * quotient - np.float32(0.5)).sum(1)
    return kl, np.concatenate([by_mean, (ONE - quotient) * (raw == log_std)], 1)


def by_smallest(value: np.ndarray) -> np.ndarray:
    """The derivatives [critics, N] of the smallest of the critics' values [critics, N]; equal ones share it."""
    least = (value == value.min(0)).astype(np.float32)
    least /= least.sum(0)
    return least


def mean(values: np.ndarray) -> float:
    return float(np.add.reduce(values)) / len(values)
