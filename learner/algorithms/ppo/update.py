"""Proximal policy optimisation, Schulman et al. 2017 (arXiv:1707.06347), on whole chunks that several policies may have made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from learner.algorithms.arithmetic.returns import gae, vtrace
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.ppo.networks import ValueFunction, actor_critic, log_prob_entropy, policy_and_value
from learner.algorithms.ppo.rollouts import Items, Rollout, stack_index, stack_rows
from learner.devices.capabilities import capabilities
from learner.networks.base import PolicyModule
from learner.parallel.group import ALONE, Group
from transport.experience import ExperienceSpec

PORTION_BYTES = 64 << 20  # of observations as float32 that are valued at a time
PORTION_ROWS = 8_192
ADAPTATION, SMALLEST_RATE, GREATEST_RATE = 1.3, 0.01, 10.0
GREATEST_LOG_RATIO = 20.0  # beyond, a ratio says nothing but may overflow


class Steps(NamedTuple):
    """What gae and vtrace begin with, here [B, L]."""

    reward: Tensor
    discount: Tensor
    value: Tensor
    next_value: Tensor
    cut: Tensor


class Ppo:
    """A policy and its value function. A rollout is prepared once, gone through in minibatches a few times, then finished:

    items, metrics = prepare(rollout, …); passes times: for each of minibatches(items, …) the optimiser's update; finish(items).
    """

    def __init__(self, spec: ExperienceSpec, config: PpoConfig, device: torch.device) -> None:
        """Builds the network on the device. Raises ValueError with one line for a spec that cannot be served."""
        self.spec, self.config = spec, config
        memory_format = torch.channels_last if capabilities(device).channels_last else torch.contiguous_format
        policy, value = actor_critic(spec, config)
        self.network: PolicyModule = policy.to(device, memory_format=memory_format)  # type: ignore[call-overload]
        self.value: ValueFunction = value.to(device, memory_format=memory_format)  # type: ignore[call-overload]
        self._parameters = [*self.network.parameters(), *self.value.parameters()]
        self.updates = 0
        self.rate = 1.0  # by which the learning rate has been adapted
        self.steps = 0  # learned from so far, those before a resume included
        stacked = 4 * spec.stack * sum(math.prod(field.shape) for field in spec.fields)  # bytes as float32
        self._portion = max(1, min(PORTION_ROWS, PORTION_BYTES // stacked))

    def parameters(self) -> list[Parameter]:
        """The network's parameters."""
        return self._parameters

    def rates(self) -> dict[Parameter, float]:
        """All learn at the configured rate."""
        return {}

    def policy(self) -> PolicyModule:
        """The policy's network."""
        return self.network

    def modules(self) -> dict[str, Module]:
        """The policy, running statistics included, and the value function."""
        return {"policy": self.network, "value": self.value}

    def counters(self) -> dict[str, float]:
        """What a resume needs beside modules(): the schedules go by it."""
        return {"updates": self.updates, "steps": self.steps, "rate": self.rate}

    def load_counters(self, counters: dict[str, float]) -> None:
        """Takes up what counters() gave. Raises KeyError if something is missing."""
        self.updates, self.steps, self.rate = int(counters["updates"]), int(counters["steps"]), counters["rate"]

    @torch.no_grad()
    def prepare(self, rollout: Rollout, vtrace: bool) -> tuple[Items, dict[str, Tensor]]:
        """The rollout's items with advantages and returns by the values of now; metrics: explained_variance and ratio_first.

        ratio_first is the mean of |probability now / probability when acting - 1|: about 0 for fresh weights. Without `vtrace`
        the loss takes its ratios to the policies that acted. With it advantages are corrected for those (V-trace), and ratios
        are taken to the policy of now: the decoupled objective of Hilton et al. 2022 (arXiv:2110.00641), its weights truncated.
        Call it under the optimiser's autocast, so that the ratio of the first update is that of one precision.
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
        value, log_prob = self._look(rows, index.flatten(0, 1), action.flatten(0, 1))
        value, log_prob = value.reshape(index.shape[:2]), log_prob.reshape(index.shape[:2])[:, :-1]  # [B, L + 1], [B, L]

        reward = rollout.reward[:, here].clamp(-1.0, 1.0) if config.clip_rewards else rollout.reward[:, here]
        terminated = rollout.terminated[:, here]
        discount = torch.where(terminated, 0.0, config.gamma)
        following = torch.cat([item[:, 1:], torch.zeros_like(item[:, :1])], 1)  # whether the next row is an item
        cut = terminated | rollout.truncated[:, here] | ~following
        log_ratio = (log_prob - rollout.log_prob[:, here]).clamp(-GREATEST_LOG_RATIO, GREATEST_LOG_RATIO)
        ratio = log_ratio.exp()
        steps = Steps(config.reward_scale * reward, discount, value[:, :-1], value[:, 1:], cut)
        return_, advantage = self._targets(steps, ratio if vtrace else None)  # [B, L]

        which = item.flatten().nonzero().squeeze(1)  # [N]; the one wait for the device
        old = log_prob if vtrace else rollout.log_prob[:, here]
        columns = (index[:, :-1], action[:, :-1], old, value[:, :-1], advantage, return_)
        items = Items(rows, *(column.flatten(0, 1).index_select(0, which) for column in columns))
        ratio_first = (ratio.flatten().index_select(0, which) - 1).abs().mean()
        unexplained = (items.return_ - items.value).var(correction=0) / items.return_.var(correction=0)
        return items, {"explained_variance": 1 - unexplained, "ratio_first": ratio_first}

    def _targets(self, steps: Steps, ratio: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns and advantages [B, L]; corrected by the ratio [B, L] if there is one."""
        time_major, trace = Steps(*(column.T for column in steps)), self.config.trace
        if ratio is None:
            advantage = gae(*time_major, trace)
            return_ = advantage + time_major.value
        else:
            return_, advantage = vtrace(*time_major, ratio.T, trace)
        return return_.T, advantage.T

    def _look(self, rows: dict[str, Tensor], index: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Values [R] and log-probabilities [R] of actions, a portion at a time: images are stacked only where they are used."""
        values, log_probs = [], []
        for where, chosen in zip(index.split(self._portion), action.split(self._portion), strict=True):
            parameters, value = policy_and_value(self.network, self.value, stack_rows(rows, where))
            values.append(value)
            log_probs.append(log_prob_entropy(parameters, chosen)[0])
        return torch.cat(values), torch.cat(log_probs)

    def minibatches(self, items: Items, generator: torch.Generator | None = None, group: Group = ALONE) -> Iterator[Items]:
        """One pass: all items, shuffled, in config.minibatches parts as equal as can be. The generator lives on the CPU.

        Each process of the group makes as many minibatches. Advantages are normalised over a minibatch of all of them, before the
        optimiser splits it.
        """
        order = torch.randperm(items.size, generator=generator).to(items.advantage.device)
        for which in order.tensor_split(min(self.config.minibatches, group.least(items.size))):
            part = items.take(which)
            if self.config.normalise_advantage:
                deviation, mean = group.std_mean(part.advantage)
                part = part._replace(advantage=(part.advantage - mean) / (deviation + 1e-8))
            yield part

    def importance(self, batch: Items) -> Tensor:
        """All items count the same: [N] ones."""
        return torch.ones_like(batch.advantage)

    def loss(self, micro_batch: Items, weight: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Clipped surrogate (eq. 7 of the paper), squared error of values, entropy bonus; the ratios [b]; and metrics.

        kl estimates KL(old | new) by the mean of (r - 1) - log r, which is never negative; clip_fraction is how often the ratio
        has left the clip range.
        """
        config = self.config
        parameters, value = policy_and_value(self.network, self.value, micro_batch.stacked())
        log_prob, entropy = log_prob_entropy(parameters, micro_batch.action)
        log_ratio = (log_prob - micro_batch.log_prob).clamp(-GREATEST_LOG_RATIO, GREATEST_LOG_RATIO)
        ratio, advantage = log_ratio.exp(), micro_batch.advantage
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage)
        policy_loss = -(weight * surrogate).mean()
        error = (value - micro_batch.return_).square()
        if config.value_clip:
            moved = (value - micro_batch.value).clamp(-config.value_clip, config.value_clip)
            error = torch.maximum(error, (micro_batch.value + moved - micro_batch.return_).square())
        value_loss, bonus = (weight * error).mean(), (weight * entropy).mean()
        loss = policy_loss + config.value_coefficient * value_loss - self.entropy_coefficient() * bonus
        with torch.no_grad():
            metrics = {
                "loss": loss.detach(),
                "policy_loss": policy_loss.detach(),
                "value_loss": value_loss.detach(),
                "entropy": entropy.mean(),
                "kl": (ratio - 1 - log_ratio).mean(),
                "clip_fraction": ((ratio - 1).abs() > config.clip).float().mean(),
            }
        return loss, ratio.detach(), metrics

    def after_update(self) -> None:
        """Counts the update."""
        self.updates += 1

    def stop(self, kl: float) -> bool:
        """Whether a policy that has moved so far is to see no further pass over the rollout."""
        return 0 < self.config.max_kl < kl

    def finish(self, items: Items, group: Group = ALONE) -> None:
        """Ends a rollout after its last pass: its observations, and those of the other processes' rollouts, go into the running
        statistics; its items and theirs are counted."""
        newest = items.observation_index[:, -1]  # each item's own row, once: chunks share the rows of their history
        self.network.body.inputs.observe(items.rows, newest, group)
        self.steps += group.total(items.size)

    def adapt(self, kl: float) -> None:
        """Takes larger steps from now on if a rollout has moved the policy by less than half of target_kl, and smaller ones if it
        was more than twice that."""
        if kl > 2 * self.config.target_kl:
            self.rate = max(self.rate / ADAPTATION, SMALLEST_RATE)
        elif kl < self.config.target_kl / 2:
            self.rate = min(self.rate * ADAPTATION, GREATEST_RATE)

    def learning_rate_share(self) -> float:
        """The share of the learning rate that schedule and adaptation leave now."""
        return self.rate * self._annealed(self.config.learning_rate_end)

    def entropy_coefficient(self) -> float:
        """What the schedule makes of it now."""
        return self.config.entropy_coefficient * self._annealed(self.config.entropy_end)

    def _annealed(self, end: float) -> float:
        """From 1 to `end`, straight, over anneal_steps."""
        done = min(self.steps / self.config.anneal_steps, 1.0) if self.config.anneal_steps else 0.0
        return 1.0 - done * (1.0 - end)
