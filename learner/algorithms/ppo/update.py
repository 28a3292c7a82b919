"""Proximal policy optimisation, Schulman et al. 2017 (arXiv:1707.06347), on whole chunks that several policies may have made."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.minibatches import Mean, shuffled, take
from learner.algorithms.arithmetic.returns import gae, vtrace
from learner.algorithms.base import Algorithm
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.ppo.networks import actor_critic, log_prob_entropy, policy_and_value
from learner.algorithms.ppo.rollouts import Items, Steps, stack_index, stack_rows
from learner.updates.base import Chunks, Loss, Outcome, Runtime, Tensors
from transport.experience import ExperienceSpec

PORTION_BYTES = 64 << 20  # of observations as float32 that are valued at a time
PORTION_ROWS = 8_192
ADAPTATION, SMALLEST_RATE, GREATEST_RATE = 1.3, 0.01, 10.0
GREATEST_LOG_RATIO = 20.0  # beyond, a ratio says nothing but may overflow


class PpoUpdate:
    """A policy and its value function."""

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        self.spec, self.runtime = spec, runtime
        self.config: PpoConfig = algorithm.config
        policy, value = actor_critic(spec, self.config)
        self.policy, self.value = runtime.to_device(policy), runtime.to_device(value)
        self.optimiser = runtime.optimiser("main", self.policy, self.value)
        self.modules: dict[str, nn.Module] = {"policy": self.policy, "value": self.value}
        # Steps learned from so far, by which the schedules go; the factor by which the learning rate has been adapted.
        self.counters: dict[str, float] = {"steps": 0, "rate": 1.0}
        stacked = 4 * spec.stack * sum(math.prod(field.shape) for field in spec.fields)  # bytes as float32
        self.portion = max(1, min(PORTION_ROWS, PORTION_BYTES // stacked))

    def update(self, batch: Chunks) -> Outcome:
        """Some passes over one rollout batch; then its observations go into the running statistics."""
        config, group = self.config, self.runtime.group
        # Under autocast, so that the ratio of the first step is that of one precision.
        with self.optimiser.autocast():
            items, rows, figures = self.prepare(batch, self.runtime.max_policy_lag > 1)
        self.optimiser.scale_learning_rate(self.learning_rate_share())
        ent_coef = torch.tensor(self.ent_coef(), device=self.runtime.device)
        mean = Mean()
        for _ in range(config.n_epochs):
            for which in shuffled(len(items.action), config.minibatches, group, self.runtime.device):
                outcome = self.optimiser.step(self.loss, self.normalised(take(items, which)), rows, ent_coef)
                mean.add(outcome.metrics)
                if self.runtime.interrupted():  # what was learned from half a rollout is as good as half of the steps
                    return Outcome(mean.mean() | figures)
            if config.target_kl and self.stop(float(group.mean(outcome.metrics["kl"]))):  # waits for the device
                break
        if config.adaptive_kl:
            self.adapt(float(group.mean(outcome.metrics["kl"])))
        newest = items.observation_index[:, -1]  # each item's own row, once: chunks share the rows of their history
        self.policy.body.inputs.observe(rows, newest, group)
        self.counters["steps"] += group.total(len(items.action))
        return Outcome(mean.mean() | figures)

    @torch.no_grad()
    def prepare(self, rollout: Chunks, corrected: bool) -> tuple[Items, Tensors, Tensors]:
        """The rollout's items with advantages and returns by the values of now; all its rows {name: [R, *shape]}; metrics.

        ratio_first is the mean of |probability now / probability when acting - 1|: about 0 for fresh weights. Not `corrected`,
        the loss takes its ratios to the policies that acted. Corrected, advantages are V-trace's, and ratios are taken to the
        policy of now: the decoupled objective of Hilton et al. 2022 (arXiv:2110.00641), its weights truncated.
        """
        history, config = self.spec.history, self.config
        rows = {name: column.flatten(0, 1) for name, column in rollout.observation.items()}  # [B * rows, *shape]
        index = stack_index(rollout.episode_step, self.spec.stack)  # [B, L + 1, stack]
        here = slice(history, -1)  # the rows of items
        place = torch.arange(index.shape[1] - 1, device=index.device)  # [L]
        item = rollout.valid[:, here] & (place < rollout.length[:, None])  # [B, L]
        action = rollout.action[:, history:].clone()
        action[:, :-1][~item] = 0  # what rests where nobody acted may be no action at all
        action[:, -1] = 0
        value, log_prob = self._evaluate(rows, index.flatten(0, 1), action.flatten(0, 1))
        value, log_prob = value.reshape(index.shape[:2]), log_prob.reshape(index.shape[:2])[:, :-1]  # [B, L + 1], [B, L]

        reward = rollout.reward[:, here].clamp(-1.0, 1.0) if config.clip_rewards else rollout.reward[:, here]
        terminated = rollout.terminated[:, here]
        discount = torch.where(terminated, 0.0, config.gamma)
        following = torch.cat([item[:, 1:], torch.zeros_like(item[:, :1])], 1)  # whether the next row is an item
        cut = terminated | rollout.truncated[:, here] | ~following
        acted = rollout.extras[LOG_PROB][:, here]
        log_ratio = (log_prob - acted).clamp(-GREATEST_LOG_RATIO, GREATEST_LOG_RATIO)
        ratio = log_ratio.exp()
        steps = Steps(config.reward_scale * reward, discount, value[:, :-1], value[:, 1:], cut)
        return_, advantage = self._targets(steps, ratio if corrected else None)  # [B, L]

        which = item.flatten().nonzero().squeeze(1)  # [N]; the one wait for the device
        columns = (index[:, :-1], action[:, :-1], log_prob if corrected else acted, value[:, :-1], advantage, return_)
        items = Items(*(column.flatten(0, 1).index_select(0, which) for column in columns))
        ratio_first = (ratio.flatten().index_select(0, which) - 1).abs().mean()
        unexplained = (items.return_ - items.value).var(correction=0) / items.return_.var(correction=0)
        return items, rows, {"explained_variance": 1 - unexplained, "ratio_first": ratio_first}

    def _targets(self, steps: Steps, ratio: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns and advantages [B, L]; corrected by the ratio [B, L] if there is one."""
        time_major, gae_lambda = Steps(*(column.T for column in steps)), self.config.gae_lambda
        if ratio is None:
            advantage = gae(*time_major, gae_lambda)
            return_ = advantage + time_major.value
        else:
            return_, advantage = vtrace(*time_major, ratio.T, gae_lambda)
        return return_.T, advantage.T

    def _evaluate(self, rows: Tensors, index: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Values [R] and log-probabilities [R] of actions, a portion at a time: images are stacked only where they are used."""
        values, log_probs = [], []
        for where, chosen in zip(index.split(self.portion), action.split(self.portion), strict=True):
            answer, value = policy_and_value(self.policy, self.value, stack_rows(rows, where))
            values.append(value)
            log_probs.append(log_prob_entropy(answer, chosen)[0])
        return torch.cat(values), torch.cat(log_probs)

    def normalised(self, items: Items) -> Items:
        """Advantages with mean 0 and deviation 1 over a minibatch of all processes, before the optimiser splits it."""
        if not self.config.normalize_advantage:
            return items
        deviation, mean = self.runtime.group.std_mean(items.advantage)
        return items._replace(advantage=(items.advantage - mean) / (deviation + 1e-8))

    def loss(self, items: Items, rows: Tensors, ent_coef: Tensor) -> Loss:
        """Clipped surrogate (eq. 7 of the paper), squared error of values, entropy bonus.

        kl estimates KL(old | new) by the mean of (r - 1) - log r, which is never negative; clip_fraction is how often the ratio
        has left the clip range.
        """
        config = self.config
        answer, value = policy_and_value(self.policy, self.value, stack_rows(rows, items.observation_index))
        log_prob, entropy = log_prob_entropy(answer, items.action)
        log_ratio = (log_prob - items.log_prob).clamp(-GREATEST_LOG_RATIO, GREATEST_LOG_RATIO)
        ratio, advantage = log_ratio.exp(), items.advantage
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip_range, 1 + config.clip_range) * advantage)
        policy_loss = -surrogate.mean()
        error = (value - items.return_).square()
        if config.clip_range_vf:
            moved = (value - items.value).clamp(-config.clip_range_vf, config.clip_range_vf)
            error = torch.maximum(error, (items.value + moved - items.return_).square())
        value_loss, bonus = error.mean(), entropy.mean()
        loss = policy_loss + config.vf_coef * value_loss - ent_coef * bonus
        with torch.no_grad():
            metrics = {
                "loss": loss.detach(),
                "policy_loss": policy_loss.detach(),
                "value_loss": value_loss.detach(),
                "entropy": bonus.detach(),
                "kl": (ratio - 1 - log_ratio).mean(),
                "clip_fraction": ((ratio - 1).abs() > config.clip_range).float().mean(),
            }
        return Loss(loss, metrics)

    def stop(self, kl: float) -> bool:
        """Whether a policy that has moved so far is to see no further pass over the rollout."""
        return 0 < self.config.target_kl < kl

    def adapt(self, kl: float) -> None:
        """Takes larger steps from now on if a rollout has moved the policy by less than half of what the configuration asks for,
        and smaller ones if it was more than twice that."""
        if kl > 2 * self.config.adaptive_kl:
            self.counters["rate"] = max(self.counters["rate"] / ADAPTATION, SMALLEST_RATE)
        elif kl < self.config.adaptive_kl / 2:
            self.counters["rate"] = min(self.counters["rate"] * ADAPTATION, GREATEST_RATE)

    def learning_rate_share(self) -> float:
        """The share of the learning rate that schedule and adaptation leave now."""
        return self.counters["rate"] * self._annealed(self.config.learning_rate_end)

    def ent_coef(self) -> float:
        """What the schedule makes of it now."""
        return self.config.ent_coef * self._annealed(self.config.ent_coef_end)

    def _annealed(self, end: float) -> float:
        """From 1 to `end`, straight, over anneal_steps."""
        done = min(self.counters["steps"] / self.config.anneal_steps, 1.0) if self.config.anneal_steps else 0.0
        return 1.0 - done * (1.0 - end)
