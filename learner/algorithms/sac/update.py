"""Soft actor-critic with two critics and a temperature that finds itself, Haarnoja et al. 2018 (arXiv:1812.05905).

Critics, policy and temperature take their step at once, each by the gradient of its own loss at the parameters before the step.
As one scalar their losses would add up, each seen by its own parameters alone; the gradient of that sum is computed by hand here
(eq. 6, 10 and 18), which halves the time of an update of small networks.

Where rows tell other goals (hindsight, Andrychowicz et al. 2017, arXiv:1707.01495), an item that is learned from is after its
own goal with probability 1 / (1 + k), else after one of k that its episode achieved later. A row that ended its episode by
termination has no such goals but its own k times over, so an item with another goal never terminates: a goal that is reached can
be stayed at.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from learner.algorithms.arithmetic.gaussian import log_slope
from learner.algorithms.arithmetic.returns import n_step_return
from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, HALF_LOG_2_PI, LEAST_LOG_STD
from learner.algorithms.arithmetic.transitions import take_rows
from learner.algorithms.hindsight import HINDSIGHT_GOAL, HINDSIGHT_REWARD
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.networks import Temperature, layers, make_critics, soft_policy
from learner.devices.capabilities import capabilities
from learner.networks.base import PolicyModule
from learner.networks.modes import exact
from learner.updates import dense
from learner.updates.base import Batch
from transport.experience import DESIRED_GOAL, Continuous, ExperienceSpec


class Drawn(NamedTuple):
    """Actions drawn from the policy, and how they hang on its answer: [N, A] each, log_prob [N]."""

    bounded: Tensor  # tanh of the unbounded action
    log_prob: Tensor  # of the bounded action
    spread: Tensor  # deviation times noise: the derivative of the unbounded action by the logarithm of the deviation
    free: Tensor  # 1 where the logarithm of the deviation is within its bounds, else 0


class Sac:
    """A policy, two critics with a target that follows them, and a temperature."""

    def __init__(self, spec: ExperienceSpec, config: SacConfig, device: torch.device) -> None:
        """Builds everything on the device. Raises ValueError with one line for a spec that cannot be served."""
        self.spec, self.config = spec, config
        self.network: PolicyModule = soft_policy(spec, config)
        assert isinstance(spec.action, Continuous)
        self.critics = make_critics(spec, config, self.network).to(device)
        self.network.to(device)
        self._actions = len(spec.action.low)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.temperature = Temperature(config.temperature).to(device)
        self.target_entropy = config.target_entropy * len(spec.action.low)
        self._parameters = [*self.network.parameters(), *self.critics.parameters(), self.temperature.log]
        self.updates = 0
        self._lerps = capabilities(device).lerp
        # Views of the parameters, which never move: all arithmetic is on these.
        self._policy, self._judges, self._valuing = layers(self.network), self.critics.layers(), self.target.layers()

    def parameters(self) -> list[Parameter]:
        """The policy's, the critics' and the temperature's parameters."""
        return self._parameters

    def rates(self) -> dict[Parameter, float]:
        """The parameters that have a learning rate of their own."""
        return {self.temperature.log: self.config.temperature_rate}

    def policy(self) -> PolicyModule:
        """The policy's network."""
        return self.network

    def modules(self) -> dict[str, Module]:
        """Everything with weights."""
        return {"policy": self.network, "critics": self.critics, "target": self.target, "temperature": self.temperature}

    def counters(self) -> dict[str, float]:
        """What a resume needs beside modules()."""
        return {"updates": self.updates}

    def load_counters(self, counters: dict[str, float]) -> None:
        """Takes up what counters() gave. Raises KeyError if something is missing."""
        self.updates = int(counters["updates"])

    def importance(self, batch: Batch) -> Tensor:
        """All items count the same: [B] ones."""
        return torch.ones_like(batch.probability)

    @torch.no_grad()
    def relabelled(self, batch: Batch) -> Batch:
        """The batch with some items after another goal, by torch's global generator of the device."""
        if HINDSIGHT_GOAL not in batch.extras:
            return batch
        goals, rewards = batch.extras[HINDSIGHT_GOAL], batch.extras[HINDSIGHT_REWARD]  # [B, k, *shape], [B, k]
        drawn = torch.randint(-1, rewards.shape[1], (len(rewards), 1), device=rewards.device)  # -1: its own
        other, which = drawn >= 0, drawn.clamp(min=0)
        own = batch.observation[DESIRED_GOAL]  # [B, W, *shape]
        goal = torch.where(other.reshape(-1, *[1] * (own.dim() - 1)), take_rows(goals, which), own)
        reward = torch.where(other, rewards.gather(1, which), batch.reward)  # n_step is 1
        return batch._replace(observation=batch.observation | {DESIRED_GOAL: goal}, reward=reward)

    def loss(self, micro_batch: Batch, weight: Tensor) -> tuple[Tensor | dense.Known, Tensor, dict[str, Tensor]]:
        """The sum of the three losses, whose backward() gives gradients that are known already; |td| [b]; and metrics.

        An item whose td is not finite (an infinite reward, say) teaches the critics nothing; `ignored` is the fraction of such.
        """
        with torch.no_grad(), exact(weight.device.type):
            return self._learn(self.relabelled(micro_batch), weight)

    def after_update(self) -> None:
        """Counts the update and moves the target a little towards the critics."""
        self.updates += 1
        for target, critics in zip(self._valuing, self._judges, strict=True):
            for theirs, ours in zip(target, critics, strict=True):
                if self._lerps:
                    theirs.lerp_(ours, self.config.tau)
                else:
                    theirs.mul_(1 - self.config.tau).add_(ours, alpha=self.config.tau)

    def _learn(self, batch: Batch, weight: Tensor) -> tuple[dense.Known | Tensor, Tensor, dict[str, Tensor]]:
        """As loss()."""
        items = len(weight)
        now, following = slice(0, items), slice(items, None)
        rows = self._rows(batch)  # [2b, F]: observation_t of all items, then what they saw next
        temperature = self.temperature.log.exp()
        seen = dense.forward(self._policy, rows[None])
        drawn = self._draw(seen[-1][0])
        next_value = self._values(self._valuing, rows[following], drawn.bounded[following])[-1][..., 0].amin(0)
        goal = self._goal(batch, next_value - temperature * drawn.log_prob[following])
        # One pass judges what was done, which teaches the critics, and what the policy would do, which teaches the policy.
        actions = torch.cat([torch.tanh(batch.action), drawn.bounded[now]])
        judged = self._values(self._judges, torch.cat([rows[now], rows[now]]), actions)
        value = judged[-1][..., 0]  # [2, 2b]
        td = goal - value[:, now]
        sound = td.isfinite().all(0)
        td = torch.where(sound, td, 0.0)

        share = weight / items
        least = value[:, following].argmin(0)
        believed = torch.stack([least == 0, least == 1]).float() / items
        by_value = torch.cat([-share * td, -believed], 1)[..., None]  # [2, 2b, 1]
        errors = dense.errors(self._judges, judged, by_value)
        by_critics = dense.gradients(errors, judged, now)
        by_action = torch.bmm(errors[0][:, following], self._judges[0][0][..., rows.shape[1] :]).sum(0)  # [b, A]
        by_policy = self._policy_gradients(seen, drawn, by_action, temperature / items)
        log_prob = drawn.log_prob[now].mean()
        spare = -(log_prob + self.target_entropy)  # entropy above the target lowers the temperature
        gradients = [*by_policy, *(part for part, _ in by_critics), *(part for _, part in by_critics), spare]

        critic_loss = 0.5 * (share * td.square()).sum()
        policy_loss = temperature * log_prob - value[:, following].amin(0).mean()
        priority = td.abs().amax(0)
        metrics = {"loss": critic_loss, "policy_loss": policy_loss, "td": priority.mean(), "q": value[:, now].mean()}
        metrics |= {"temperature": temperature, "entropy": -log_prob, "ignored": 1 - sound.float().mean()}
        loss = critic_loss + policy_loss + self.temperature.log * spare
        return dense.known(loss, gradients, self.parameters(), [*seen, *judged]), priority, metrics

    def _rows(self, batch: Batch) -> Tensor:
        """What the networks are given: observation_t of all items, then their next observations, [2b, F]."""
        index = torch.cat([batch.observation_index, batch.next_index], 1)  # [b, 2 * stack]
        inputs = self.network.body.inputs
        stacked = take_rows(inputs.raw(batch.observation), index)  # [b, 2 * stack, features of a row]
        return inputs.flat(stacked.unflatten(1, (2, -1)).transpose(0, 1).flatten(0, 1))

    def _draw(self, answer: Tensor) -> Drawn:
        """Actions of the policy's raw answer [N, 2A]. The paper's eq. 26; logarithms as in
        learner/algorithms/arithmetic/gaussian.py."""
        mean, raw = answer.split(self._actions, 1)
        log_std = raw.clamp(LEAST_LOG_STD, GREATEST_LOG_STD)
        noise = torch.randn_like(log_std)
        spread = log_std.exp() * noise
        action = mean + spread
        log_prob = (-0.5 * noise.square() - log_std - log_slope(action)).sum(1) - HALF_LOG_2_PI * self._actions
        return Drawn(torch.tanh(action), log_prob, spread, (raw == log_std).float())

    def _values(self, layers: list[dense.Layer], rows: Tensor, action: Tensor) -> list[Tensor]:
        """learner/updates/dense.py's forward() of critics: rows [N, F], bounded actions [N, A]; its last is [2, N, 1]."""
        inputs = torch.cat([rows, action], 1)
        return dense.forward(layers, inputs.expand(len(layers[0][0]), *inputs.shape))

    def _goal(self, batch: Batch, next_value: Tensor) -> Tensor:
        """Eq. 2 and 3 of the paper: what critics are to say, [b]. Next values are ignored where the episode terminated."""
        return_, discount = n_step_return(
            batch.reward * self.config.reward_scale, batch.steps, batch.terminated, self.config.gamma
        )
        goal = return_ + torch.where(discount == 0, 0.0, discount * next_value)
        if self.config.clip_targets:
            goal = goal.clamp(-self.config.reward_scale / (1 - self.config.gamma), 0.0)
        return goal

    def _policy_gradients(self, seen: list[Tensor], drawn: Drawn, by_action: Tensor, worth: Tensor) -> list[Tensor]:
        """Of the mean of temperature * log_prob - value (eq. 9 and 10), by the policy's parameters in their order.

        by_action: [b, A], how the negative mean value hangs on each bounded action. worth: the temperature / b, 0-d.
        """
        items = len(by_action)
        bounded, spread, free = drawn.bounded[:items], drawn.spread[:items], drawn.free[:items]
        by_unbounded = by_action * (1 - bounded.square()) + 2 * worth * bounded  # d log_prob / d action = 2 tanh(action)
        by_log_std = (by_unbounded * spread - worth) * free
        error = torch.cat([by_unbounded, by_log_std], 1)[None]
        begin = [values[:, :items] for values in seen]
        found = dense.gradients(dense.errors(self._policy, begin, error), begin, slice(None))
        return [part for weight, bias in found for part in (weight[0], bias[0, 0])]
