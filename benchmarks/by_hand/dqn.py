"""Deep Q-learning as one writes it by hand: double, dueling, n-step, prioritised."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from benchmarks.by_hand.parts import Host, Machine, Tensors, mlp, nature
from learner.algorithms.dqn.config import DqnConfig
from learner.config import LearnerConfig
from transport.experience import ExperienceSpec

TARGET_PERIOD = 1_000


class DqnLoop:
    """Double, dueling, n-step, prioritised."""

    def __init__(
        self, learner: LearnerConfig, config: DqnConfig, spec: ExperienceSpec, batches: list[dict[str, np.ndarray]]
    ) -> None:
        images = spec.has_images
        self.machine = machine = Machine(learner, images)
        self.config, self.learner, self.images = config, learner, images
        window = batches[0]["observation/observation"]
        stack = batches[0]["observation_index"].shape[1]
        torch.manual_seed(0)
        outputs = 1 + int(spec.action.n)  # type: ignore[union-attr]

        def make() -> nn.Sequential:
            body = nature(stack, config.hidden) if images else mlp(stack * window[0, 0].size, config.hidden)
            return body.append(nn.Linear(config.hidden, outputs))

        self.network, self.target = machine.place(make()), machine.place(make()).requires_grad_(False)
        self.parameters = list(self.network.parameters())
        self.adam = machine.adam(self.parameters, self.learner.learning_rate, self.learner.adam_epsilon)
        self.batches = [self.to_device(batch) for batch in batches]
        self.host = Host(machine.device, learner.batch_size)
        self.powers = torch.pow(config.gamma, torch.arange(config.n_step, device=machine.device))
        self.first_rows = torch.arange(0, learner.batch_size * window.shape[1], window.shape[1], device=machine.device)[:, None]
        self.updates = 0

    def to_device(self, batch: dict[str, np.ndarray]) -> Tensors:
        """A batch as replay gives it; on a CPU where it lies."""
        tensors = {name: torch.from_numpy(array) for name, array in batch.items() if name not in ("key", "policy_version")}
        tensors |= {"probability": tensors["probability"].float(), "action": tensors["action"].long()[:, None]}
        return {name: tensor.to(self.machine.device) for name, tensor in tensors.items()}

    def stacks(self, rows: Tensor, index: Tensor) -> Tensor:
        """The input of a network for the stacks [b, stack] that are rows of all windows in one."""
        observation = rows.index_select(0, index.reshape(-1)).reshape(*index.shape, *rows.shape[1:])
        return self.machine.decode(observation) if self.images else observation

    def q(self, network: nn.Module, values: Tensor) -> Tensor:
        """Q-values [b, n]."""
        with self.machine.autocast():
            out = network(values)
        out = out.float()
        return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)  # type: ignore[no-any-return]

    def loss(self, batch: Tensors, weight: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
        config, part = self.config, {name: values[start:stop] for name, values in batch.items()}
        rows, first = part["observation/observation"].flatten(0, 1), self.first_rows[: stop - start]
        q = self.q(self.network, self.stacks(rows, part["observation_index"] + first)).gather(1, part["action"]).squeeze(1)
        with torch.no_grad():
            following = self.stacks(rows, part["next_index"] + first)
            best = self.q(self.network, following).argmax(1, keepdim=True)
            value = self.q(self.target, following).gather(1, best).squeeze(1)
            taken = torch.arange(config.n_step, device=rows.device) < part["steps"][:, None]
            reward = torch.where(taken, part["reward"] * self.powers, 0.0).sum(1) * config.reward_scale
            discount = torch.where(part["terminated"], 0.0, torch.pow(config.gamma, part["steps"]))
            goal = reward + discount * value
        loss = (weight[start:stop] * huber_loss(q, goal, reduction="none")).mean()
        return loss, (goal - q.detach()).abs()

    def update(self) -> None:
        """By the next of the batches in memory."""
        self.learn(self.batches[self.updates % len(self.batches)])

    def learn(self, batch: Tensors) -> None:
        """An update."""
        probability = batch["probability"]
        weight = (probability.min() / probability) ** self.config.importance_exponent
        items, parts = self.learner.batch_size, self.learner.accumulation
        priorities = []
        for start in range(0, items, items // parts):
            loss, priority = self.loss(batch, weight, start, start + items // parts)
            self.machine.backward(loss / parts if parts > 1 else loss)
            priorities.append(priority)
        self.machine.step(self.adam, self.parameters, self.learner.max_grad_norm)
        self.host.take(torch.cat(priorities) if parts > 1 else priority)
        self.updates += 1
        if self.updates % TARGET_PERIOD == 0:
            self.target.load_state_dict(self.network.state_dict())
