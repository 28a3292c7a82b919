"""Proximal policy optimisation as one writes it by hand, going through one rollout for ever."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.by_hand.parts import Machine, Tensors, nature
from learner.config import LearnerConfig
from transport.experience import ExperienceSpec

PORTION = 2_048  # rows that are valued at a time


def tanh_mlp(inputs: int, hidden: int, layers: int, outputs: int) -> nn.Sequential:
    """As many hidden layers."""
    sizes = [inputs, *[hidden] * layers]
    made = chain.from_iterable((nn.Linear(before, after), nn.Tanh()) for before, after in zip(sizes[:-1], sizes[1:], strict=True))
    return nn.Sequential(nn.Flatten(), *made, nn.Linear(hidden, outputs))


class PpoLoop:
    """Values and advantages of the rollout by the network of now, then passes over it in minibatches, then all again."""

    def __init__(self, learner: LearnerConfig, config: Any, spec: ExperienceSpec, rollouts: list[dict[str, np.ndarray]]) -> None:
        self.spec, self.images = spec, spec.has_images
        self.machine = machine = Machine(learner, self.images)
        self.config, self.learner = config, learner
        torch.manual_seed(0)
        self.modules = [machine.place(module) for module in self.make()]
        self.parameters = [parameter for module in self.modules for parameter in module.parameters()]
        self.adam = machine.adam(self.parameters, self.learner.learning_rate, self.learner.adam_epsilon)
        self.rollouts = [
            {name: torch.tensor(array, device=machine.device) for name, array in rollout.items()} for rollout in rollouts
        ]
        self.mean, self.deviation = torch.zeros((), device=machine.device), torch.ones((), device=machine.device)
        self.updates = self.passed = 0

    def make(self) -> list[nn.Module]:
        """The body, which is of images, and the networks after it."""
        actions, config = int(self.spec.action.n), self.config  # type: ignore[union-attr]
        if self.images:
            return [nature(self.spec.stack, config.hidden), nn.Linear(config.hidden, actions), nn.Linear(config.hidden, 1)]
        return [nn.Identity(), *(tanh_mlp(self.inputs, config.hidden, config.layers, outputs) for outputs in (actions, 1))]

    @property
    def trace(self) -> float:
        """The lambda of its returns."""
        return float(self.config.gae_lambda)

    @property
    def inputs(self) -> int:
        return self.spec.stack * int(np.prod(self.spec.fields[0].shape))

    def look(self, rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, n] and values [N] of the stacks [N, stack]."""
        body, policy, value = self.modules
        observation = rows.index_select(0, index.reshape(-1)).reshape(*index.shape, *rows.shape[1:])
        if not self.images:
            features = body(((observation - self.mean) / self.deviation).clamp(-10.0, 10.0))
        else:
            with self.machine.autocast():
                features = body(self.machine.decode(observation)).float()
        return policy(features), value(features).squeeze(1)

    def loss(self, rows: Tensor, part: Tensors) -> Tensor:
        config, advantage = self.config, part["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        logits, value = self.look(rows, part["index"])
        log = torch.log_softmax(logits, 1)
        ratio = (log.gather(1, part["action"][:, None]).squeeze(1) - part["log_prob"]).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip_range, 1 + config.clip_range) * advantage).mean()
        error = (value - part["return"]).square().mean()
        entropy = -(log.exp() * log).sum(1).mean()
        return config.vf_coef * error - surrogate - config.ent_coef * entropy

    @torch.no_grad()
    def prepare(self, rollout: Tensors) -> tuple[Tensor, Tensors]:
        """Rows [R, *shape] of the whole rollout, and its N items."""
        history, config = self.spec.history, self.config
        observation = rollout["observation/observation"]
        rows, (chunks, length) = observation.flatten(0, 1), observation.shape[:2]
        row = torch.arange(chunks * length, device=rows.device).reshape(chunks, length)[:, history:]
        back = torch.arange(history, -1, -1, device=rows.device)
        index = row[..., None] - torch.minimum(back, rollout["episode_step"][:, history:, None].long())  # [B, L + 1, stack]
        seen = [self.look(rows, part)[1] for part in index.flatten(0, 1).split(PORTION)]
        value = torch.cat(seen).reshape(index.shape[:2])
        here = slice(history, -1)
        reward = rollout["reward"][:, here] * config.reward_scale
        terminated = rollout["terminated"][:, here] != 0
        item = rollout["valid"][:, here] != 0
        discount = torch.where(terminated, 0.0, config.gamma)
        following = torch.cat([item[:, 1:], torch.zeros_like(item[:, :1])], 1)
        going = (following & ~terminated & (rollout["truncated"][:, here] == 0)).float() * config.gamma * self.trace
        delta = reward + discount * value[:, 1:] - value[:, :-1]
        advantage, total = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
        for t in range(delta.shape[1] - 1, -1, -1):
            total = advantage[:, t] = delta[:, t] + going[:, t] * total
        which = item.flatten().nonzero().squeeze(1)
        columns = {
            "index": index[:, :-1],
            "action": rollout["action"][:, here].long(),
            "advantage": advantage,
            "return": advantage + value[:, :-1],
        }
        columns |= {"log_prob": rollout["log_prob"][:, here]} if "log_prob" in rollout else {}
        return rows, {name: column.flatten(0, 1).index_select(0, which) for name, column in columns.items()}

    def update(self) -> None:
        """All updates of a rollout."""
        rows, items = self.prepare(self.rollouts[self.passed % len(self.rollouts)])
        size = len(items["index"])
        for _ in range(self.config.n_epochs):
            for which in torch.randperm(size).to(rows.device).tensor_split(self.config.minibatches):
                part = {name: column.index_select(0, which) for name, column in items.items()}
                self.machine.backward(self.loss(rows, part))
                self.machine.step(self.adam, self.parameters, self.learner.max_grad_norm)
                self.updates += 1
        if not self.images:
            deviation, self.mean = torch.std_mean(rows, 0)
            self.deviation = deviation + 1e-8
        self.passed += 1
