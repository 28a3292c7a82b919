"""Soft actor-critic as one writes it by hand: two critics, automatic temperature, one Adam."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from benchmarks.by_hand.parts import Machine, Tensors, mlp
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from transport.experience import ExperienceSpec


class SacLoop:
    """Critics and policy take one step together, the former by a target that the latter has no part in."""

    def __init__(
        self, learner: LearnerConfig, config: SacConfig, spec: ExperienceSpec, batches: list[dict[str, np.ndarray]]
    ) -> None:
        self.machine, self.learner, self.config = Machine(learner, False), learner, config
        inputs, actions = int(np.prod(spec.fields[0].shape)), len(spec.action.low)  # type: ignore[union-attr]
        torch.manual_seed(0)
        self.policy = mlp(inputs, config.hidden).append(nn.Linear(config.hidden, 2 * actions))
        self.critics = nn.ModuleList(mlp(inputs + actions, config.hidden).append(nn.Linear(config.hidden, 1)) for _ in "12")
        self.target: Any = copy.deepcopy(self.critics).requires_grad_(False)
        self.temperature = nn.Parameter(torch.full((), math.log(config.temperature)))
        self.networks = [*self.policy.parameters(), *self.critics.parameters()]
        self.adam = self.machine.adam(self.networks, learner.learning_rate, learner.adam_epsilon)
        self.adam.add_param_group({"params": [self.temperature], "lr": config.temperature_rate})
        self.entropy = actions * config.target_entropy
        self.batches = [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in batches]
        self.updates = 0

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [b, A] within -1 and 1, and the logarithms [b] of their probability."""
        mean, log_std = self.policy(observation).chunk(2, 1)
        log_std = log_std.clamp(-5.0, 2.0)
        noise = torch.randn_like(mean)
        action = mean + log_std.exp() * noise
        normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return action.tanh(), (normal - 2 * (math.log(2.0) - action - softplus(-2 * action))).sum(1)

    def values(self, critics: Any, observation: Tensor, action: Tensor) -> Tensor:
        """[2, b]"""
        seen = torch.cat([observation, action], 1)
        return torch.cat([critic(seen) for critic in critics], 1).T

    def loss(self, batch: Tensors) -> Tensor:
        now, following = batch["observation/observation"].unbind(1)
        alpha = self.temperature.detach().exp()
        with torch.no_grad():
            action, log_prob = self.act(following)
            value = self.values(self.target, following, action).amin(0) - alpha * log_prob
            goal = batch["reward"][:, 0] * self.config.reward_scale
            goal = goal + torch.where(batch["terminated"] != 0, 0.0, self.config.gamma * value)
        critic_loss = 0.5 * (self.values(self.critics, now, batch["action"].tanh()) - goal).square().mean(1).sum()
        action, log_prob = self.act(now)
        self.critics.requires_grad_(False)
        policy_loss = (alpha * log_prob - self.values(self.critics, now, action).amin(0)).mean()
        self.critics.requires_grad_(True)
        return critic_loss + policy_loss - self.temperature * (log_prob.detach().mean() + self.entropy)

    def update(self) -> None:
        """By the next of the batches in memory."""
        self.machine.backward(self.loss(self.batches[self.updates % len(self.batches)]))
        self.machine.step(self.adam, [*self.networks, self.temperature], self.learner.max_grad_norm)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.critics.parameters()), self.config.tau)
        self.updates += 1
