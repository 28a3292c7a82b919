"""Fast path: SAC's losses with hand-written gradients (eq. 6, 10, 18 of the paper). Equals `SacUpdate.plain`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.gaussian import log_slope
from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, HALF_LOG_2_PI, LEAST_LOG_STD
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.losses import Losses, soft_target
from learner.algorithms.sac.networks import Critics, Networks
from learner.networks.base import PolicyModule
from learner.networks.stacks import take_rows
from learner.updates import dense
from learner.updates.base import Transitions


class Actions(NamedTuple):
    """Actions drawn from the policy, and their derivatives by its output: [N, A] each, log_prob [N]."""

    bounded: Tensor  # tanh of the unbounded action
    log_prob: Tensor  # of the bounded action
    spread: Tensor  # deviation times noise: the derivative of the unbounded action by the log-std
    free: Tensor  # 1 where the log-std is within its bounds, 0 elsewhere


class LossByHand:
    """Called as `SacUpdate.plain`."""

    @classmethod
    def of(cls, networks: Networks, config: SacConfig, target_entropy: float) -> LossByHand | None:
        """None for networks that have other parts than linear layers and ReLUs."""
        possible = policy_layers(networks.policy) and critic_layers(networks.critics)
        return cls(networks, config, target_entropy) if possible else None

    def __init__(self, networks: Networks, config: SacConfig, target_entropy: float) -> None:
        policy, critics, target, temperature, self._scale = networks
        self.config, self._inputs, self._log, self._target_entropy = config, policy.body.inputs, temperature.log, target_entropy
        self._parameters = [*policy.parameters(), *critics.parameters(), temperature.log]
        # Views of the parameters, whose memory never moves.
        self._policy, self._critics, self._target = policy_layers(policy), critic_layers(critics), critic_layers(target)

    @torch.no_grad()
    def __call__(self, batch: Transitions) -> Losses:
        items = len(batch.reward)
        now, following = slice(0, items), slice(items, None)
        rows = self._rows(batch)  # [2b, F]: observation_t of all items, then the next observations
        temperature = self._log.exp()
        seen = dense.forward(self._policy, rows[None])
        drawn = self._draw(seen[-1][0])
        next_value = self._values(self._target, rows[following], drawn.bounded[following])[-1][..., 0].amin(0)
        target = soft_target(batch, next_value - temperature * drawn.log_prob[following], self.config, self._scale)
        # One pass of the critics for both losses: theirs, of the actions taken, and the policy's, of its own actions.
        actions = torch.cat([torch.tanh(batch.action), drawn.bounded[now]])
        judged = self._values(self._critics, torch.cat([rows[now], rows[now]]), actions)
        value = judged[-1][..., 0]  # [2, 2b]
        td = target - value[:, now]
        finite = td.isfinite().all(0)
        td = torch.where(finite, td, 0.0)

        least = value[:, following].argmin(0)
        believed = torch.stack([least == 0, least == 1]).float() / items
        by_value = torch.cat([-(1 / items) * td, -believed], 1)[..., None]  # [2, 2b, 1]
        errors = dense.errors(self._critics, judged, by_value)
        by_critics = dense.gradients(errors, judged, now)
        by_action = torch.bmm(errors[0][:, following], self._critics[0][0][..., rows.shape[1] :]).sum(0)  # [b, A]
        by_policy = self._policy_gradients(seen, drawn, by_action, temperature / items)
        log_prob = drawn.log_prob[now].mean()
        by_log = -(log_prob + self._target_entropy)  # entropy above the target lowers the temperature
        gradients = [*by_policy, *(part for part, _ in by_critics), *(part for _, part in by_critics), by_log]

        critic_loss = 0.5 * ((1 / items) * td.square()).sum()
        policy_loss = temperature * log_prob - value[:, following].amin(0).mean()
        loss = critic_loss + policy_loss + self._log * by_log
        known = dense.known_gradients(loss, gradients, self._parameters, [*seen, *judged])
        return Losses(known, critic_loss, policy_loss, td, finite, value[:, now], log_prob)

    def _rows(self, batch: Transitions) -> Tensor:
        """The inputs of the networks, [2b, F]: observation_t of all items, then their next observations."""
        index = torch.cat([batch.observation_index, batch.next_index], 1)  # [b, 2 * stack]
        stacked = take_rows(self._inputs.rows(batch.observation), index)  # [b, 2 * stack, features of a row]
        return self._inputs.flat(stacked.unflatten(1, (2, -1)).transpose(0, 1).flatten(0, 1))

    def _draw(self, output: Tensor) -> Actions:
        """Draws actions from the policy's output [N, 2A]. log_prob is eq. 26 of the paper, as in gaussian.py."""
        mean, raw = output.chunk(2, 1)
        log_std = raw.clamp(LEAST_LOG_STD, GREATEST_LOG_STD)
        noise = torch.randn_like(log_std)
        spread = log_std.exp() * noise
        action = mean + spread
        log_prob = (-0.5 * noise.square() - log_std - log_slope(action)).sum(1) - HALF_LOG_2_PI * mean.shape[1]
        return Actions(torch.tanh(action), log_prob, spread, (raw == log_std).float())

    def _values(self, layers: list[dense.Layer], rows: Tensor, action: Tensor) -> list[Tensor]:
        """dense.forward() of two critics by rows [N, F] and bounded actions [N, A]; the last entry is their values [2, N, 1]."""
        inputs = torch.cat([rows, action], 1)
        return dense.forward(layers, inputs.expand(len(layers[0][0]), *inputs.shape))

    def _policy_gradients(self, seen: list[Tensor], drawn: Actions, by_action: Tensor, scale: Tensor) -> list[Tensor]:
        """Gradients of the mean of temperature * log_prob - value (eq. 9 and 10) by the policy's parameters, in their order.

        by_action: [b, A], the gradient of the negative mean value by the bounded actions. scale: temperature / b, 0-d.
        """
        items = len(by_action)
        bounded, spread, free = drawn.bounded[:items], drawn.spread[:items], drawn.free[:items]
        by_unbounded = by_action * (1 - bounded.square()) + 2 * scale * bounded  # d log_prob / d action = 2 tanh(action)
        by_log_std = (by_unbounded * spread - scale) * free
        error = torch.cat([by_unbounded, by_log_std], 1)[None]
        now = [values[:, :items] for values in seen]
        by_layer = dense.gradients(dense.errors(self._policy, now, error), now, slice(None))
        return [part for weight, bias in by_layer for part in (weight[0], bias[0, 0])]


def policy_layers(policy: PolicyModule) -> list[dense.Layer]:
    """The layers of a policy of only linear layers and ReLUs; empty for other policies."""
    assert isinstance(policy.head, nn.Sequential)
    return dense.layers([policy.body.torso, *policy.head])


def critic_layers(critics: Critics) -> list[dense.Layer]:
    """The layers of both critics, as views of the parameters; empty where they have torsos."""
    if len(critics.torsos):
        return []
    return [(weight.detach(), bias.detach()) for weight, bias in zip(critics.weights, critics.biases, strict=True)]
