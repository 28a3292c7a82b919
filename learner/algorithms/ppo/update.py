"""PPO's update, Schulman et al. 2017 (arXiv:1707.06347), on whole chunks whose steps may come from several policy versions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.masked import masked
from learner.algorithms.arithmetic.minibatches import Mean, portion, shuffled, take
from learner.algorithms.arithmetic.returns import gae, vtrace
from learner.algorithms.arithmetic.scaling import MAGNITUDE, TargetScale
from learner.algorithms.arithmetic.sequences import discounts_and_cuts, item_rows, stack_index, zero_without
from learner.algorithms.base import Algorithm
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.ppo.networks import actor_critic, choices, keep_log_std_in_bounds, log_prob_entropy, policy_and_value
from learner.algorithms.ppo.rollouts import Batchable, Items, Steps
from learner.devices.capabilities import begin_to_fetch, capabilities
from learner.networks.stacks import stack_rows
from learner.updates.base import Chunks, Loss, Outcome, Runtime, Tensors
from learner.updates.trees import count
from transport.experience import ExperienceSpec

ADAPTATION, SMALLEST_RATE, GREATEST_RATE = 1.3, 0.01, 10.0
LEAST_SHARE = 0.1  # of a rollout in the running scale of values: there are few rollouts
# Root mean square of scaled values where the learning rate is fixed. Gradients of policy and value function are clipped together,
# so larger values would leave the policy a gradient of almost 0. adaptive_kl makes up for that by a higher learning rate.
SMALL_MAGNITUDE = 1.0
GREATEST_LOG_RATIO = 20.0  # clips log-ratios, so that ratios cannot overflow


class PpoUpdate:
    """A policy and its value function."""

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        self.spec, self.runtime, self.choices = spec, runtime, choices(spec)
        self.config: PpoConfig = algorithm.config
        policy, value = actor_critic(spec, self.config)
        self.policy, self.value = runtime.to_device(policy), runtime.to_device(value)
        self.optimiser = runtime.optimiser("main", self.policy, self.value, recordable=True)
        self.modules: dict[str, nn.Module] = {"policy": self.policy, "value": self.value}
        rescale = self.value.rescale
        self.scaling: TargetScale | None = None
        if rescale is not None:
            magnitude = MAGNITUDE if self.config.adaptive_kl else SMALL_MAGNITUDE
            self.scaling = TargetScale(rescale.scale, self.value.head.parameters(), LEAST_SHARE, magnitude)
            self.modules["scaling"] = self.scaling
        # steps: learned from so far, for the schedules. rate: the factor by which adaptive_kl has changed the learning rate.
        self._counters: dict[str, float] = {"steps": 0, "rate": 1.0}
        self._kl: Tensor | None = None  # of the last rollout, where the rate does not follow it yet
        self.few_shapes, self.portion = capabilities(runtime.device).few_shapes, portion(spec)

    @property
    def counters(self) -> dict[str, float]:
        """Of the next update: where the last one's KL divergence has not been read, this waits for the device."""
        if self._kl is not None:
            self._follow(self._kl)
        return self._counters

    def update(self, batch: Chunks) -> Outcome:
        """Several epochs over one rollout batch; then its observations update the running statistics.

        The host waits for the device once, in prepare(); with target_kl also after each epoch, because what comes next depends on
        it. The KL divergence that adaptive_kl follows is read with the next rollout.
        """
        config, group, device = self.config, self.runtime.group, self.runtime.device
        kl = None if self._kl is None else begin_to_fetch(self._kl)
        if self.scaling is not None:
            self.scaling.begin(self.reward_square(batch))
        # Under autocast as in the loss, so that the ratios of the first step are 1.
        with self.optimiser.autocast():
            items, rows, figures, newest = self.prepare(batch, self.runtime.max_policy_lag > 1)
        if kl is not None:
            self._follow(kl)
        self.optimiser.scale_learning_rate(self.learning_rate_share())
        ent_coef = torch.full((), self.ent_coef(), device=device)
        mean = Mean()
        # With target_kl the epochs that follow may not be wanted: then no random numbers are drawn for them.
        draws = [1] * config.n_epochs if config.target_kl else [config.n_epochs]
        for minibatches in shuffled(count(items), draws, config.minibatches, group, device, self.few_shapes):
            for which in minibatches:
                outcome = self.optimiser.step(self.loss, self.normalised(take(items, which)), rows, ent_coef)
                keep_log_std_in_bounds(self.policy)
                mean.add(outcome.metrics)
                if self.runtime.interrupted():  # half of the steps taken are valid, too
                    return Outcome(mean.mean() | figures)
            if config.target_kl and self.stop(float(group.mean(outcome.metrics["kl"]))):  # waits for the device
                break
        if config.adaptive_kl:
            self._kl = group.mean(outcome.metrics["kl"]).clone()
        self.policy.body.inputs.observe(rows, newest, group)
        self._counters["steps"] += group.total(len(newest))
        return Outcome(mean.mean() | figures)

    @torch.no_grad()
    def prepare(self, rollout: Chunks, corrected: bool) -> tuple[Batchable, Tensors, Tensors, Tensor]:
        """The rollout's items with advantages and returns by the current values; all its rows {name: [R, *shape]}; metrics; which
        rows are the items' own [N], since rows of the history belong to other chunks, too.

        Without `corrected`, advantages are GAE's and the loss takes ratios to the policies that acted. With `corrected`,
        advantages are V-trace's and ratios are taken to the current policy: the decoupled objective of Hilton et al. 2022
        (arXiv:2110.00641), with truncated weights. The metric ratio_first is the mean of |probability now / probability when
        acting - 1|: about 0 where the policies that acted are recent.
        """
        history, config = self.spec.history, self.config
        rows = {name: column.flatten(0, 1) for name, column in rollout.observation.items()}  # [B * rows, *shape]
        index = stack_index(rollout.episode_step, self.spec.stack)  # [B, L + 1, stack]
        here, item = slice(history, -1), item_rows(rollout, self.spec)  # rows that may be items; [B, L] whether they are
        acted = torch.cat([item, torch.zeros_like(item[:, :1])], 1)  # [B, L + 1]
        action = zero_without(acted, rollout.action[:, history:])  # rows without action may hold an invalid one
        value, log_prob = self.evaluate(rollout, rows, index, action)  # [B, L + 1] each
        log_prob = log_prob[:, :-1]

        discount, cut = discounts_and_cuts(rollout, item, self.spec, config.gamma)
        acting_log_prob = rollout.extras[LOG_PROB][:, here]
        log_ratio = (log_prob - acting_log_prob).clamp(-GREATEST_LOG_RATIO, GREATEST_LOG_RATIO)
        ratio = log_ratio.exp()
        steps = Steps(self.rewards(rollout)[:, here], discount, value[:, :-1], value[:, 1:], cut)
        return_, advantage = self._targets(steps, ratio if corrected else None)  # [B, L]

        which = item.flatten().nonzero().squeeze(1)  # [N]; waits for the device
        old_log_prob = log_prob if corrected else acting_log_prob
        columns = Items(index[:, :-1], action[:, :-1], old_log_prob, value[:, :-1], advantage, return_)
        if self.scaling is not None:
            columns = self.rescaled(columns, which, self.reward_square(rollout), self.scaling)
        items = Items(*(column.flatten(0, 1).index_select(0, which) for column in columns))
        ratio_first = (ratio.flatten().index_select(0, which) - 1).abs().mean()
        newest = index[:, :-1, -1].flatten().index_select(0, which)
        unexplained = (items.return_ - items.value).var(correction=0) / items.return_.var(correction=0)
        return (
            self.minibatch_source(rollout, columns, item, items),
            rows,
            {"explained_variance": 1 - unexplained, "ratio_first": ratio_first},
            newest,
        )

    def minibatch_source(self, rollout: Chunks, columns: Items, item: Tensor, items: Items) -> Batchable:
        """What minibatches are made of: here the items themselves, not the columns [B, L] that they are from."""
        return items

    def _targets(self, steps: Steps, ratio: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns and advantages [B, L]: by V-trace with the ratio [B, L], or by GAE where it is None."""
        time_major, gae_lambda = Steps(*(column.T for column in steps)), self.config.gae_lambda
        if ratio is None:
            advantage = gae(*time_major, gae_lambda)
            return_ = advantage + time_major.value
        else:
            return_, advantage = vtrace(*time_major, ratio.T, gae_lambda)
        return return_.T, advantage.T

    def reward_square(self, rollout: Chunks) -> Tensor:
        """The mean square of the rewards of a rollout's items in all processes, 0-d."""
        item, reward = item_rows(rollout, self.spec), self.rewards(rollout)[:, self.spec.history : -1]
        return self.runtime.group.mean(torch.where(item, reward, 0.0).square().sum() / item.sum())

    def rewards(self, rollout: Chunks) -> Tensor:
        """The rewards [B, rows], clipped and scaled as configured."""
        reward = rollout.reward.clamp(-1.0, 1.0) if self.config.clip_rewards else rollout.reward
        return self.config.reward_scale * reward

    def rescaled(self, columns: Items, which: Tensor, reward_square: Tensor, scaling: TargetScale) -> Items:
        """Takes the returns [B, L] of the items `which` [N] into the running scale, and divides the advantages by it."""
        return_ = columns.return_.flatten().index_select(0, which)
        scaling.observe(self.runtime.group.mean(return_.square().mean()), reward_square)
        return columns._replace(advantage=columns.advantage / scaling.scale)

    def evaluate(self, rollout: Chunks, rows: Tensors, index: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Values and log-probabilities of actions [B, L + 1], a portion at a time to bound the memory of stacked images.

        index: [B, L + 1, stack] into the rows; action: [B, L + 1, …]."""
        values, log_probs = [], []
        for where, chosen in zip(*(column.flatten(0, 1).split(self.portion) for column in (index, action)), strict=True):
            output, value = self._outputs(self.policy.body.stacked(rows, where, stack_rows))
            values.append(value)
            log_probs.append(log_prob_entropy(output, chosen, self.choices)[0])
        shape = index.shape[:2]
        return torch.cat(values).reshape(shape), torch.cat(log_probs).reshape(shape)

    def _outputs(self, observation: Tensors) -> tuple[Tensor, Tensor]:
        """The policy's outputs, with forbidden actions masked, and values."""
        output, value = policy_and_value(self.policy, self.value, observation)
        return masked(self.spec, output, observation), value

    def normalised(self, items: Batchable) -> Batchable:
        """Normalises advantages to mean 0 and deviation 1 over a minibatch of all processes, before the optimiser splits it."""
        if not self.config.normalize_advantage:
            return items
        deviation, mean = self.runtime.group.std_mean(items.advantage)
        return items._replace(advantage=(items.advantage - mean) / (deviation + 1e-8))

    def loss(self, items: Batchable, rows: Tensors, ent_coef: Tensor) -> Loss:
        """Clipped surrogate (eq. 7 of the paper), squared error of values, entropy bonus.

        The metric kl estimates KL(old | new) by the mean of (r - 1) - log r, which is never negative; clip_fraction is the
        fraction of items whose ratio is outside the clip range.
        """
        output, value = self._outputs(self.policy.body.stacked(rows, items.observation_index, stack_rows))
        return self.objective(output, value, items, ent_coef, Tensor.mean)

    def objective(self, output: Tensor, value: Tensor, items: Items, ent_coef: Tensor, mean: Callable[[Tensor], Tensor]) -> Loss:
        """The loss, given the present outputs [N, …] and values [N] of N items. `mean` is that over the items."""
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
        self.adapt(float(kl))

    def stop(self, kl: float) -> bool:
        """Whether the epochs over this rollout end at this KL divergence."""
        return 0 < self.config.target_kl < kl

    def adapt(self, kl: float) -> None:
        """Raises the learning rate if the KL divergence of a rollout was less than half of adaptive_kl, and lowers it if it was
        more than twice that."""
        if kl > 2 * self.config.adaptive_kl:
            self._counters["rate"] = max(self._counters["rate"] / ADAPTATION, SMALLEST_RATE)
        elif kl < self.config.adaptive_kl / 2:
            self._counters["rate"] = min(self._counters["rate"] * ADAPTATION, GREATEST_RATE)

    def learning_rate_share(self) -> float:
        """The current learning rate, as a share of the configured one: schedule times adaptation."""
        return self.counters["rate"] * self._annealed(self.config.learning_rate_end)

    def ent_coef(self) -> float:
        """The current entropy coefficient, by the schedule."""
        return self.config.ent_coef * self._annealed(self.config.ent_coef_end)

    def _annealed(self, end: float) -> float:
        """Falls linearly from 1 to `end` over anneal_steps."""
        done = min(self.counters["steps"] / self.config.anneal_steps, 1.0) if self.config.anneal_steps else 0.0
        return 1.0 - done * (1.0 - end)
