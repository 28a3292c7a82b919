"""REPPO's update in arrays, Voelcker et al. 2025 (arXiv:2507.11019)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, LEAST_LOG_STD
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.reppo.scale import ReturnScale, value_square
from learner.algorithms.sac.critic_outputs import BinnedOutputs
from learner.algorithms.sac.draws import by_output, draw
from learner.algorithms.sac.known import ACTION, INITIAL
from learner.description import PolicyDescription
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
    before: np.ndarray  # [N, 2A] mean and log-std of the policy before the first step of this rollout


class ReppoArrayUpdate(RolloutUpdate):
    """A policy, one or two critics without target network, the temperature, and the multiplier of the KL divergence."""

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
        self.temperature, self.multiplier = (
            Module({"log": np.array(math.log(first), np.float32)}, ["log"]) for first in (config.temperature, config.multiplier)
        )
        rates = {self.temperature: config.temperature_rate, self.multiplier: config.multiplier_rate}
        self.optimiser = runtime.optimiser("main", self.policy, self.temperature, self.multiplier, rates=rates)
        self.critic_optimiser = runtime.optimiser("critics", self.critics)
        self.scaling = ReturnScale()
        self.modules: dict[str, Any] = {
            "policy": self.policy,
            "critics": self.critics,
            "temperature": self.temperature,
            "multiplier": self.multiplier,
            "scaling": self.scaling,
        }
        self.counters: dict[str, float] = {}
        self.target_entropy = np.float32(config.target_entropy * self._actions)
        first = policy.program[0]
        self._inputs = Inputs([self.policy.tensors[name] for name in first.tensors], **first.options)
        places = dict(self._inputs.places)
        self._features = max(place.stop for place in places.values())
        self._policy = Network(policy.program, places, self.policy.tensors, self.policy.gradients)
        places[ACTION] = slice(self._features, self._features + self._actions)
        self._critics = Network(critics.program, places, self.critics.tensors, self.critics.gradients)
        self._outputs, self._rows, self._by_outputs = BinnedOutputs(), Buffer(), Buffer()

    @quietly
    def update(self, batch: Chunks[np.ndarray]) -> Outcome[Any]:
        """Several passes over one rollout batch; then its observations update the running statistics."""
        rollout = Rollout(batch, self.spec, self.config)
        items = self.prepare(rollout)
        metrics, last = self.passes(items)
        if last is not None:
            rollout.observe(self._inputs)
            metrics["kl_last"] = last["kl"]
        target = items.target
        figures = {"scale": float(self.scaling.scale), "target": float(target.mean()), "target_deviation": float(target.std())}
        return Outcome(metrics | figures)

    def prepare(self, rollout: Rollout) -> SoftItems:
        """The rollout's items with their targets by the current critics and policy."""
        inputs = rollout.read(self._inputs)  # [B * (L + 1), F]
        output = np.concatenate([self._policy.forward(inputs[here]).copy() for here in portions(len(inputs))])
        value, log_prob = (each.reshape(len(rollout.item), -1)[:, 1:] for each in self._soft_values(inputs, output))  # [B, L]
        ratio = self.scaling.observe(value_square(rollout, self.config.gamma))
        temperature = np.exp(self.temperature.tensors["log"])
        entropy = np.where(rollout.discount == 0, ZERO, -temperature * rollout.discount * log_prob)
        reward = rollout.reward / self.scaling.scale + entropy
        target = lambda_return(reward.T, rollout.discount.T, (value * ratio).T, rollout.cut.T, self.config.q_lambda).T
        np.clip(output[:, self._actions :], LEAST_LOG_STD, GREATEST_LOG_STD, out=output[:, self._actions :])
        action = np.tanh(rollout.of_items(rollout.batch.action[:, self.spec.history : -1]))
        among = rollout.among_read
        return SoftItems(inputs.take(among, 0), action, rollout.of_items(target), output.take(among, 0))

    def _soft_values(self, inputs: np.ndarray, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and log-densities [R] of actions that the policy draws, means over value_samples."""
        total = np.zeros((2, len(inputs)), np.float32)
        for _ in range(self.config.value_samples):
            for here in portions(len(inputs)):
                draws = self._draw(output[here])
                rows = np.concatenate([inputs[here], draws.bounded], 1)
                total[0, here] += self._outputs.value(self._critics.forward(rows)).min(0)
                total[1, here] += draws.log_prob
        total /= np.float32(self.config.value_samples)
        return total[0], total[1]

    def _draw(self, output: np.ndarray) -> Any:
        return draw(output, self.runtime.random.standard_normal((len(output), self._actions), np.float32))

    def step(self, minibatch: SoftItems) -> Metrics:
        """A step of the critics, and one of the policy and both weights. Critics evaluate both kinds of action in one pass."""
        metrics = self.learn(minibatch)
        items = len(minibatch.target)
        metrics["gradient_norm"] = float(self.optimiser.step(items))
        metrics["critic_gradient_norm"] = float(self.critic_optimiser.step(items))
        return metrics

    def learn(self, minibatch: SoftItems) -> Metrics:
        """Writes all gradients."""
        items, features = len(minibatch.target), self._features
        output = self._policy.forward(minibatch.inputs)
        draws = self._draw(output)
        rows = self._rows((2 * items, features + self._actions))
        rows[:items, :features] = rows[items:, :features] = minibatch.inputs
        rows[:items, features:], rows[items:, features:] = minibatch.action, draws.bounded
        outputs = self._critics.forward(rows)
        value = self._outputs.value(outputs)  # [critics, 2b]
        q, own = value[:, :items], value[:, items:]
        td = minibatch.target - q
        finite = np.isfinite(td).all(0)
        if not finite.all():
            td = np.where(finite, td, ZERO)
        slopes = self._by_outputs(outputs.shape)
        critic_loss = self._outputs.loss(outputs, minibatch.target, td, finite, slopes[:, :items])
        share = np.float32(1 / items)
        temperature, multiplier = (np.exp(each.tensors["log"]) for each in (self.temperature, self.multiplier))
        kl, by_kl = divergence(output, minibatch.before)
        improves, pulls = self._parts(kl)
        self._outputs.by_value(by_smallest(own) * (improves * -share), slopes[:, items:])
        by_rows = self._critics.backward(slopes, rows=items, by_input=slice(features, None))
        assert by_rows is not None
        by_action = by_rows[0, items:] if len(own) == 1 else by_rows[:, items:].sum(0)
        slope = by_output(draws, by_action, (temperature * share * improves)[:, None])
        by_kl *= (multiplier * share * pulls)[:, None]
        slope += by_kl
        self._policy.backward(slope)
        entropy, mean_kl = -mean(draws.log_prob), mean(kl)
        self.temperature.gradients["log"][...] = temperature * (np.float32(entropy) - self.target_entropy)
        self.multiplier.gradients["log"][...] = -multiplier * np.float32(mean_kl - self.config.kl_bound)
        scale = float(self.scaling.scale)
        gain = own.min(0) - temperature * draws.log_prob
        spread = float(minibatch.target.var())
        return {
            "loss": float(critic_loss),
            "policy_loss": mean(multiplier * pulls * kl - improves * gain),
            "kl": mean_kl,
            "entropy": entropy,
            "temperature": float(temperature),
            "multiplier": float(multiplier),
            "held": 1.0 - mean(improves) if self.config.kl_mode == "clipped" else mean(kl >= self.config.kl_bound),
            "q": float(q.mean()) * scale,
            "td": float(np.abs(td).mean()) * scale,
            "explained_variance": 1.0 - float(td[0].var()) / spread if spread else 0.0,
            "ignored": 1.0 - np.count_nonzero(finite) / items,
        }

    def _parts(self, kl: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether each item improves the policy, and whether it pulls it back: [b] float32 each."""
        if self.config.kl_mode == "full":
            both = np.ones_like(kl)
            return both, both
        improves = (kl < np.float32(self.config.kl_bound)).astype(np.float32)
        return improves, ONE - improves


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
