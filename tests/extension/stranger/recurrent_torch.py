"""The network and the loss of R2D2."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from stranger.recurrent import GREATEST_SHARE  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from learner.algorithms.arithmetic.copies import copy_into, frozen_copy
from learner.algorithms.arithmetic.returns import importance_weights
from learner.algorithms.arithmetic.sequences import n_step_returns, unrolled_rows
from learner.networks.base import PolicyModule, make_body
from learner.networks.parts import Dueling
from learner.updates.base import Chunks, Loss, Outcome, Runtime


def policy(spec: Any, config: Any) -> PolicyModule:
    built_in = {"mlp": {"width": config.hidden, "layers": 1}, "nature": {"width": config.hidden}}
    memory = {"memory": config.memory, "memory_width": config.memory_width}
    body = make_body(spec, config.network, config.network_options, built_in, **memory)
    return PolicyModule(body, nn.Sequential(nn.Linear(body.features, 1 + spec.action.n), Dueling()))


class Weighted(NamedTuple):
    batch: Chunks
    weight: Tensor  # [B]


class R2d2Update:
    def __init__(self, algorithm: Any, spec: Any, runtime: Runtime) -> None:
        self.spec, self.config, self.group = spec, algorithm.config, runtime.group
        self.policy = runtime.to_device(algorithm.policy(spec))
        self.target = frozen_copy(self.policy)
        self.optimiser = runtime.optimiser("main", self.policy)
        self.modules: dict[str, nn.Module] = {"policy": self.policy, "target": self.target}
        self.counters: dict[str, float] = {"updates": 0}

    def update(self, batch: Chunks) -> Outcome:
        weight = importance_weights(batch.probability, self.config.importance_exponent)
        outcome = self.optimiser.step(self.loss, Weighted(batch, weight / self.group.greatest(weight.max())))
        self.counters["updates"] += 1
        if self.counters["updates"] % self.config.target_update_interval == 0:
            copy_into(self.target, self.policy)
        return outcome

    def values(self, module: Any, batch: Chunks) -> Tensor:
        """Q-values [L + n, B, actions] from the first item on."""
        state = {name: batch.extras[name] for name in module.body.state}
        rows = unrolled_rows(batch, self.spec)
        features = module.body.unroll(rows.observation, rows.first, state, self.spec.burn_in)
        answer: Tensor = module.head_output(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        return answer

    def loss(self, items: Weighted) -> Loss:
        batch, history, length = items.batch, self.spec.history, self.spec.chunk_length
        columns = (batch.reward, batch.terminated, batch.valid)
        reward, terminated, valid = (column[:, history:].T for column in columns)  # [L + n, B]
        action = batch.action[:, history : history + length].T  # [L, B]
        place = torch.arange(length, device=action.device)[:, None]
        item = valid[:length] & (place < batch.length)
        q = self.values(self.policy, batch)
        taken = q[:length].gather(2, action[..., None]).squeeze(2)
        with torch.no_grad():
            valuing = self.values(self.target, batch)
            best = (q if self.config.double else valuing).argmax(2, keepdim=True)
            following = valuing.gather(2, best).squeeze(2)  # [L + n, B]
            found = n_step_returns(reward, terminated, valid, self.spec.n_step, self.config.gamma)
            target = found.return_ + found.discount * following.gather(0, place + found.steps)
            td = torch.where(item, target - taken, 0.0)
            count = item.sum(0).clamp(min=1)
        error = huber_loss(taken, taken.detach() + td, reduction="none").sum(0) / count  # [B]
        loss = (items.weight * error).mean()
        with torch.no_grad():
            mean, greatest = td.abs().sum(0) / count, td.abs().amax(0)
            figures = {"loss": loss.detach(), "td": mean.mean(), "q": taken.mean()}
        return Loss(loss, figures, GREATEST_SHARE * greatest + (1 - GREATEST_SHARE) * mean)
