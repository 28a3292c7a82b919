"""PPO's update, Schulman et al. 2017 (arXiv:1707.06347), on whole chunks whose steps may come from several policy versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from learner.algorithms.arithmetic.masks import masked
from learner.algorithms.arithmetic.returns import gae, vtrace
from learner.algorithms.arithmetic.rollouts import Rollout, RolloutUpdate
from learner.algorithms.arithmetic.scaling import MAGNITUDE, TargetScale
from learner.algorithms.arithmetic.sequences import zero_without
from learner.algorithms.base import Algorithm
from learner.algorithms.ppo.config import GREATEST_LOG_RATIO, LEAST_SHARE, LOG_PROB, SMALL_MAGNITUDE, PpoConfig
from learner.algorithms.ppo.networks import actor_critic, choices, keep_log_std_in_bounds, log_prob_entropy, policy_and_value
from learner.algorithms.ppo.schedules import Schedules
from learner.devices.capabilities import begin_to_fetch
from learner.networks.stacks import stack_rows
from learner.updates.base import Chunks, Loss, Outcome, Runtime, Tensors
from learner.updates.trees import mapped
from transport.experience import ExperienceSpec


class ChunkMemory(NamedTuple):
    """Further arguments for unrolling a memory over N whole chunks."""

    first: Tensor  # [N, L] bool: an episode begins with this row
    weight: Tensor  # [N, L] of each step in a mean over all L of all N: 0 where there is no item
    state: Tensors  # {name: [N, width]} that the actor had before the first row


class Items(NamedTuple):
    """N items of a rollout or of a minibatch; with memory those of N whole chunks, [N, L, …], and 0 where there is no item.

    They index the rollout's rows, which are stacked only where they are needed.
    """

    observation_index: Tensor  # [N, stack] int64 into the rows: the stack of each item's observation, oldest first
    action: Tensor  # [N] int64, or [N, A] float32
    log_prob: Tensor  # [N] under the policy in the ratio's denominator
    value: Tensor  # [N] before the first step of this rollout
    advantage: Tensor  # [N]
    return_: Tensor  # [N] targets of the value function
    memory: ChunkMemory | None = None


class Prepared(NamedTuple):
    """A rollout that is ready to be learned from."""

    items: Items
    rows: Tensors  # {name: [R, *shape]}: all rows of the rollout
    figures: Tensors  # 0-d metrics
    newest: Tensor  # [N] each item's own row


class PpoUpdate(RolloutUpdate):
    """A policy and its value function."""

    config: PpoConfig

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        super().__init__(algorithm, spec, runtime)
        self.choices = choices(spec)
        policy, value = actor_critic(spec, self.config)
        self.policy, self.value = runtime.to_device(policy), runtime.to_device(value)
        self.optimiser = runtime.optimiser("main", self.policy, self.value, recordable=True)
        self.modules = {"policy": self.policy, "value": self.value}
        rescale = self.value.rescale
        self.scaling: TargetScale | None = None
        if rescale is not None:
            magnitude = MAGNITUDE if self.config.adaptive_kl else SMALL_MAGNITUDE
            self.scaling = TargetScale(rescale.scale, self.value.head.parameters(), LEAST_SHARE, magnitude)
            self.modules["scaling"] = self.scaling
        self.schedules = Schedules(self.config)
        self._kl: Tensor | None = None  # of the last rollout, where the rate does not follow it yet
        self._ent_coef = torch.zeros((), device=runtime.device)  # of this rollout; a tensor, which a recorded graph reads anew

    @property
    def counters(self) -> dict[str, float]:
        """Those of the next update: where the last one's KL divergence has not been read, this waits for the device."""
        if self._kl is not None:
            self._follow(self._kl)
        return self.schedules.counters

    def update(self, batch: Chunks) -> Outcome:
        """Several passes over one rollout batch; then its observations update the running statistics.

        The host waits for the device once, in prepare(); with target_kl also after each pass, because what comes next depends on
        it. The KL divergence that adaptive_kl follows is read with the next rollout.
        """
        group = self.runtime.group
        kl = None if self._kl is None else begin_to_fetch(self._kl)
        # Under autocast as in the loss, so that the ratios of the first step are 1.
        with self.optimiser.autocast():
            items, rows, figures, newest = self.prepare(batch, self.runtime.max_policy_lag > 1)
        if kl is not None:
            self._follow(kl)
        self.optimiser.scale_learning_rate(self.schedules.learning_rate_share())
        self._ent_coef = torch.full((), self.schedules.ent_coef(), device=self.runtime.device)
        metrics, last = self.passes(items, rows, asks=self.config.target_kl > 0)
        if last is not None:
            if self.config.adaptive_kl:
                self._kl = group.mean(last["kl"]).clone()
            self.policy.body.inputs.observe(rows, newest, group)
            self.schedules.counters["steps"] += group.total(len(newest))
        return Outcome(metrics | figures)

    def step(self, minibatch: Items, rows: Tensors) -> Tensors:
        outcome = self.optimiser.step(self.loss, self.normalised(minibatch), rows, self._ent_coef)
        keep_log_std_in_bounds(self.policy)
        return outcome.metrics

    def is_enough(self, metrics: Tensors) -> bool:
        return self.schedules.is_enough(float(self.runtime.group.mean(metrics["kl"])))  # waits for the device

    @torch.no_grad()
    def prepare(self, batch: Chunks, corrected: bool) -> Prepared:
        """The rollout's items with advantages and returns by the current values.

        Without `corrected`, advantages are GAE's and the loss takes ratios to the policies that acted. With `corrected`,
        advantages are V-trace's and ratios are taken to the current policy: the decoupled objective of Hilton et al. 2022
        (arXiv:2110.00641), with truncated weights. The metric ratio_first is the mean of |probability now / probability when
        acting - 1|: about 0 where the policies that acted are recent.
        """
        rollout, history = Rollout(batch, self.spec, self.config), self.spec.history
        reward_square = self.reward_square(rollout) if self.scaling is not None else None
        if self.scaling is not None and reward_square is not None:
            self.scaling.begin(reward_square)
        acted = torch.cat([rollout.item, torch.zeros_like(rollout.item[:, :1])], 1)  # [B, L + 1]
        action = zero_without(acted, batch.action[:, history:])  # rows without action may hold an invalid one
        value, log_prob = self.evaluate(rollout, action)  # [B, L + 1] each
        log_prob, acting_log_prob = log_prob[:, :-1], batch.extras[LOG_PROB][:, history:-1]
        ratio = (log_prob - acting_log_prob).clamp(-GREATEST_LOG_RATIO, GREATEST_LOG_RATIO).exp()
        return_, advantage = self._targets(rollout, value, ratio if corrected else None)  # [B, L]

        if self.scaling is not None and reward_square is not None:
            square = self.runtime.group.mean(rollout.of_items(return_).square().mean())
            self.scaling.observe(square, reward_square)
            advantage = advantage / self.scaling.scale
        old_log_prob = log_prob if corrected else acting_log_prob
        columns = Items(rollout.index[:, :-1], action[:, :-1], old_log_prob, value[:, :-1], advantage, return_)
        items = mapped(rollout.of_items, columns)
        ratio_first = (rollout.of_items(ratio) - 1).abs().mean()
        unexplained = (items.return_ - items.value).var(correction=0) / items.return_.var(correction=0)
        figures = {"explained_variance": 1 - unexplained, "ratio_first": ratio_first}
        return Prepared(self.minibatch_source(rollout, columns, items), rollout.rows, figures, rollout.newest)

    def minibatch_source(self, rollout: Rollout, columns: Items, items: Items) -> Items:
        """The items that minibatches are parts of: here `items`, not the columns [B, L, …] that they are from."""
        return items

    def _targets(self, rollout: Rollout, value: Tensor, ratio: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns and advantages [B, L]: by V-trace with the ratio [B, L], or by GAE where it is None. value: [B, L + 1]."""
        now = value[:, :-1].T
        steps = {"reward": rollout.reward.T, "discount": rollout.discount.T, "cut": rollout.cut.T}
        steps |= {"value": now, "next_value": value[:, 1:].T}
        if ratio is None:
            advantage = gae(**steps, gae_lambda=self.config.gae_lambda)
            return_ = advantage + now
        else:
            return_, advantage = vtrace(**steps, ratio=ratio.T, gae_lambda=self.config.gae_lambda)
        return return_.T, advantage.T

    def reward_square(self, rollout: Rollout) -> Tensor:
        """The mean square of the rewards of a rollout's items in all processes, 0-d."""
        item = rollout.item
        return self.runtime.group.mean(torch.where(item, rollout.reward, 0.0).square().sum() / item.sum())

    def evaluate(self, rollout: Rollout, action: Tensor) -> tuple[Tensor, Tensor]:
        """Values and log-probabilities of actions [B, L + 1], a portion at a time to bound the memory of stacked images.

        action: [B, L + 1, …]."""
        values, log_probs = [], []
        for where, chosen in zip(*(rows.flatten(0, 1).split(self.portion) for rows in (rollout.index, action)), strict=True):
            output, value = self._outputs(self.policy.body.stacked(rollout.rows, where, stack_rows))
            values.append(value)
            log_probs.append(log_prob_entropy(output, chosen, self.choices)[0])
        shape = rollout.index.shape[:2]
        return torch.cat(values).reshape(shape), torch.cat(log_probs).reshape(shape)

    def _outputs(self, observation: Tensors) -> tuple[Tensor, Tensor]:
        """The policy's outputs, with forbidden actions masked, and values."""
        output, value = policy_and_value(self.policy, self.value, observation)
        return masked(self.spec, output, observation), value

    def normalised(self, items: Items) -> Items:
        """Normalises advantages to mean 0 and deviation 1 over a minibatch of all processes, before the optimiser splits it."""
        if not self.config.normalize_advantage:
            return items
        deviation, mean = self.runtime.group.std_mean(items.advantage)
        return items._replace(advantage=(items.advantage - mean) / (deviation + 1e-8))

    def loss(self, items: Items, rows: Tensors, ent_coef: Tensor) -> Loss:
        """Clipped surrogate (eq. 7 of the paper), squared error of values, entropy bonus.

        The metric kl estimates KL(old | new) by the mean of (r - 1) - log r, which is never negative; clip_fraction is the
        fraction of items whose ratio is outside the clip range.
        """
        output, value = self._outputs(self.policy.body.stacked(rows, items.observation_index, stack_rows))
        return self.objective(output, value, items, ent_coef, Tensor.mean)

    def objective(self, output: Tensor, value: Tensor, items: Items, ent_coef: Tensor, mean: Callable[[Tensor], Tensor]) -> Loss:
        """The loss, given the present outputs [N, …] and values [N] of N items.

        `mean` is the mean over items, [N] -> []. Every term takes it, not Tensor.mean: chunks of a recurrent policy have rows
        that are no items.
        """
        config = self.config
        log_prob, entropy = log_prob_entropy(output, items.action, self.choices)
        log_ratio = (log_prob - items.log_prob).clamp(-GREATEST_LOG_RATIO, GREATEST_LOG_RATIO)
        ratio, advantage = log_ratio.exp(), items.advantage
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip_range, 1 + config.clip_range) * advantage)
        policy_loss = -mean(surrogate)
        before, return_ = items.value, items.return_
        if self.scaling is not None:
            value, before, return_ = (each / self.scaling.scale for each in (value, before, return_))
        error = (value - return_).square()
        if config.clip_range_vf:
            moved = (value - before).clamp(-config.clip_range_vf, config.clip_range_vf)
            error = torch.maximum(error, (before + moved - return_).square())
        value_loss, bonus = mean(error), mean(entropy)
        loss = policy_loss + config.vf_coef * value_loss - ent_coef * bonus
        with torch.no_grad():
            metrics = {
                "loss": loss.detach(),
                "policy_loss": policy_loss.detach(),
                "value_loss": value_loss.detach(),
                "entropy": bonus.detach(),
                "kl": mean(ratio - 1 - log_ratio),
                "clip_fraction": mean(((ratio - 1).abs() > config.clip_range).float()),
            }
        return Loss(loss, metrics)

    def _follow(self, kl: Tensor) -> None:
        self._kl = None
        self.schedules.adapt(float(kl))
