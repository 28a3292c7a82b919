"""The network and the loss of QR-DQN."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from learner.algorithms.dqn.networks import q_body
from learner.algorithms.dqn.update import DqnUpdate, Weighted
from learner.networks.base import PolicyModule
from learner.networks.parts import MeanOverLast
from learner.updates.base import Loss


def policy(spec: Any, config: Any) -> PolicyModule:
    """Q-values [N, n] that are means over quantiles [N, n, M]."""
    body, shape = q_body(spec, config), (spec.action.n, config.quantiles)
    return PolicyModule(
        body, nn.Sequential(nn.Linear(body.features, shape[0] * shape[1]), nn.Unflatten(1, shape), MeanOverLast())
    )


def quantiles(module: Any, observation: dict[str, Tensor]) -> Tensor:
    """[N, n, M]: what the head takes the mean of."""
    found: Tensor = module.head[:-1](module.body(observation))
    return found


class QrUpdate(DqnUpdate):
    def loss(self, items: Weighted) -> Loss:
        step, item = self.transition(items.batch), torch.arange(len(items.weight), device=items.weight.device)
        now = quantiles(self.policy, step.observation)[item, step.action]  # [b, M]
        with torch.no_grad():
            following = quantiles(self.target, step.next_observation)  # [b, n, M]
            choosing = self.policy(step.next_observation) if self.config.double else following.mean(2)
            target = step.return_[:, None] + step.discount[:, None] * following[item, choosing.argmax(1)]  # [b, M]
            finite = target.isfinite().all(1)
            target = torch.where(finite[:, None], target, now)
            level = (torch.arange(now.shape[1], device=now.device) + 0.5) / now.shape[1]  # [M]
        pairs = now[:, :, None].expand(-1, -1, now.shape[1]), target[:, None].expand(-1, now.shape[1], -1)  # [b, M, M]
        slope = (level[:, None] - (pairs[1] < pairs[0].detach()).float()).abs()
        loss = (items.weight * (slope * huber_loss(*pairs, reduction="none")).mean(2).sum(1)).mean()
        with torch.no_grad():
            td = (target.mean(1) - now.mean(1)).abs()
            figures = {"loss": loss, "td": td.mean(), "q": now.mean(), "spread": now.std(1).mean()}
        return Loss(loss, {**figures, "loss": loss.detach(), "ignored": 1 - finite.float().mean()}, td)
