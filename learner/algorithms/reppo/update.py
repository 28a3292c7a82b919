"""REPPO's update, Voelcker et al. 2025 (arXiv:2507.11019), on whole chunks.

The critics learn lambda returns of soft values, which are computed once per rollout batch; layer normalisation takes the place of
a target network. They are categorical. The policy follows the gradient of their values by its actions at those
steps at which its KL divergence from the policy before the rollout batch is within the bound; at others it is pulled back. Two
weights are adapted: that of the entropy to the wanted entropy, and that of the divergence to its bound.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from learner.algorithms.arithmetic.returns import lambda_return
from learner.algorithms.arithmetic.rollouts import Rollout, RolloutUpdate
from learner.algorithms.base import Algorithm
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.reppo.losses import BinnedCritics, ReturnScale, bounded_log_std, divergence, loss_of_bins, value_square
from learner.algorithms.sac.losses import draw
from learner.algorithms.sac.networks import Temperature, make_critics
from learner.networks.modes import exact
from learner.networks.stacks import stack_rows
from learner.updates.base import Chunks, Loss, Outcome, Runtime, Tensors
from learner.updates.trees import mapped
from transport.experience import Continuous, ExperienceSpec


class SoftItems(NamedTuple):
    """N items of a rollout or of a minibatch. They index the rollout's rows, which are stacked only where they are needed."""

    observation_index: Tensor  # [N, stack] int64 into the rows: the stack of each item's observation, oldest first
    action: Tensor  # [N, A] that was taken, after the tanh
    target: Tensor  # [N] lambda returns of soft values, divided by the scale
    before: Tensor  # [N, 2A] means and log-stds of the policy before the first step of this rollout


class ReppoUpdate(RolloutUpdate):
    """A policy, one or two critics without target network, the temperature, and the weight of the KL divergence."""

    config: ReppoConfig

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        super().__init__(algorithm, spec, runtime)
        config = self.config
        assert isinstance(spec.action, Continuous)
        self.target_entropy = config.target_entropy * len(spec.action.low)
        self.policy = runtime.to_device(algorithm.policy(spec))  # type: ignore[assignment]
        self.critics = runtime.to_device(make_critics(spec, config, self.policy, BinnedCritics))
        self.temperature, self.kl_coef = (runtime.to_device(Temperature(first)) for first in (config.temperature, config.kl_coef))
        rates: dict[nn.Module, float] = {self.temperature: config.temperature_rate, self.kl_coef: config.kl_coef_rate}
        weights = self.temperature, self.kl_coef
        self.optimiser = runtime.optimiser("main", self.policy, *weights, rates=rates, recordable=True)
        self.critic_optimiser = runtime.optimiser("critics", self.critics, recordable=True)
        self.scaling = runtime.to_device(ReturnScale())
        self.modules = {
            "policy": self.policy,
            "critics": self.critics,
            "temperature": self.temperature,
            "kl_coef": self.kl_coef,
            "scaling": self.scaling,
        }
        self.counters: dict[str, float] = {}

    def update(self, batch: Chunks) -> Outcome:
        """Several passes over one rollout batch; then its observations update the running statistics."""
        items, rows = self.prepare(batch)
        metrics, last = self.passes(items, rows)
        if last is not None:
            self.policy.body.inputs.observe(rows, items.observation_index[:, -1], self.runtime.group)
        return Outcome(metrics)

    @torch.no_grad()
    def prepare(self, batch: Chunks) -> tuple[SoftItems, Tensors]:
        """The rollout's items with their targets by the current critics and policy, and all its rows {name: [R, *shape]}."""
        rollout = Rollout(batch, self.spec, self.config)
        output, value, log_prob = self.evaluate(rollout)  # [B, L + 1, …]
        ratio = self.scaling.observe(value_square(rollout, self.config.gamma, self.runtime.group))
        discount, following = rollout.discount, log_prob[:, 1:]
        entropy = torch.where(discount == 0, 0.0, -self.temperature.log.exp() * discount * following)
        reward = rollout.reward / self.scaling.scale + entropy
        target = lambda_return(reward.T, discount.T, (value[:, 1:] * ratio).T, rollout.cut.T, self.config.q_lambda).T
        action = batch.action[:, self.spec.history : -1].tanh()
        items = mapped(rollout.of_items, SoftItems(rollout.index[:, :-1], action, target, output[:, :-1]))
        return items, rollout.rows

    def evaluate(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """The policy's means and log-stds [B, L + 1, 2A], and values and log-densities [B, L + 1] of actions that it draws; a
        portion at a time to bound the memory of stacked images."""
        found = []
        for where in rollout.index.flatten(0, 1).split(self.portion):
            inputs, output = self._outputs(rollout.rows, where)
            bounded, log_prob = draw(output)
            found.append((bounded_log_std(output), self.critics(inputs, bounded).amin(0), log_prob))
        shape = rollout.index.shape[:2]
        output, value, log_prob = (torch.cat(each).unflatten(0, shape) for each in zip(*found, strict=True))
        return output, value, log_prob

    def _outputs(self, rows: Tensors, index: Tensor) -> tuple[Tensors, Tensor]:
        """The torsos' inputs, and the policy's output [N, 2A]."""
        inputs = self._inputs(rows, index)
        return inputs, self.policy.head_output(self.policy.body.torso_output(inputs))

    def _inputs(self, rows: Tensors, index: Tensor) -> Tensors:
        return self.policy.body.preprocess(self.policy.body.stacked(rows, index, stack_rows))

    def step(self, minibatch: SoftItems, rows: Tensors) -> Tensors:
        """A step of the policy and of both weights, and one of the critics, whose values before it the policy has followed."""
        metrics = self.optimiser.step(self.policy_loss, minibatch, rows).metrics
        of_critics = self.critic_optimiser.step(self.critic_loss, minibatch, rows).metrics
        return {**of_critics, **metrics, "critic_gradient_norm": of_critics["gradient_norm"]}

    def policy_loss(self, items: SoftItems, rows: Tensors) -> Loss:
        """The losses of the policy and of both weights. The metric clip_fraction is the fraction of items whose KL divergence is
        beyond the bound."""
        config = self.config
        with exact(items.target.device.type):
            inputs, output = self._outputs(rows, items.observation_index)
            bounded, log_prob = draw(output)
            frozen = {name: parameter.detach() for name, parameter in self.critics.named_parameters()}
            value = functional_call(self.critics, frozen, (inputs, bounded)).amin(0)
            kl = divergence(output, items.before)
        temperature, kl_coef = self.temperature.log.exp(), self.kl_coef.log.exp()
        within = (kl.detach() < config.kl_bound).float()
        gain = value - temperature.detach() * log_prob
        policy_loss = ((1 - within) * kl_coef.detach() * kl - within * gain).mean()
        entropy, mean_kl = -log_prob.detach().mean(), kl.detach().mean()
        loss = policy_loss + temperature * (entropy - self.target_entropy) + kl_coef * (config.kl_bound - mean_kl)
        metrics = {
            "policy_loss": policy_loss.detach(),
            "kl": mean_kl,
            "clip_fraction": 1 - within.mean(),
            "entropy": entropy,
            "temperature": temperature.detach(),
            "kl_coef": kl_coef.detach(),
        }
        return Loss(loss, metrics)

    def critic_loss(self, items: SoftItems, rows: Tensors) -> Loss:
        """The sum of the critics' cross-entropies. td and q are in units of the reward.

        An item whose td is not finite (for example by an infinite reward) has no gradient; the metric `ignored` is the fraction
        of such items.
        """
        with exact(items.target.device.type):
            outputs = self.critics.outputs(self._inputs(rows, items.observation_index), items.action)
            q = self.critics.value(outputs).detach()  # [critics, b]
            td = items.target - q
            finite = td.isfinite().all(0)
            loss = loss_of_bins(outputs, items.target, finite, self.critics.middles)
        scale = self.scaling.scale
        metrics = {
            "loss": loss.detach(),
            "td": torch.where(finite, td, 0.0).abs().mean() * scale,
            "q": q.mean() * scale,
            "ignored": 1 - finite.float().mean(),
        }
        return Loss(loss, metrics)
