"""PQN's network and update, Gallici et al. 2024 (arXiv:2407.04811, algorithm 1), on whole chunks whose steps may come from
several policy versions: Q-learning bootstraps from the best action, so that none of them has to be the present policy's.

Layer normalisation takes the place of a target network: it keeps Q-learning stable (section 3). Vectors are normalised by running
statistics that are published with the weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from learner.algorithms.arithmetic.masks import masked
from learner.algorithms.arithmetic.returns import lambda_return, td_error
from learner.algorithms.arithmetic.rollouts import Rollout, RolloutUpdate
from learner.algorithms.base import Algorithm
from learner.algorithms.dqn.networks import require_categorical, with_q_head
from learner.algorithms.exploration import ladder_ends
from learner.algorithms.pqn.config import PqnConfig
from learner.networks.base import PolicyModule, make_body
from learner.networks.modes import evaluating, exact
from learner.networks.stacks import stack_rows
from learner.updates.base import Chunks, Loss, Outcome, Runtime, Tensors
from learner.updates.trees import mapped
from transport.experience import ExperienceSpec


def q_network(spec: ExperienceSpec, config: PqnConfig) -> PolicyModule:
    """A module that computes Q-values [N, n]; in float32 on the CPU, in training mode, initialised as DQN's. Raises ValueError,
    in one line."""
    require_categorical(spec, "pqn", "choose an algorithm for continuous actions")
    return with_q_head(spec, config.network, make_body(spec, **config.body._asdict()))


class QItems(NamedTuple):
    """N items of a rollout or of a minibatch. They index the rollout's rows, which are stacked only where they are needed."""

    observation_index: Tensor  # [N, stack] int64 into the rows: the stack of each item's observation, oldest first
    action: Tensor  # [N] int64
    target: Tensor  # [N] lambda returns by the Q-values before the first step of this rollout


class PqnUpdate(RolloutUpdate):
    """A Q-network and its loss. There is no target network: targets are computed once per rollout batch."""

    config: PqnConfig

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        super().__init__(algorithm, spec, runtime)
        self.policy = runtime.to_device(algorithm.policy(spec))  # type: ignore[assignment]
        self.optimiser = runtime.optimiser("main", self.policy, recordable=True)
        self.modules = {"policy": self.policy}
        self.counters: dict[str, float] = {}
        self._ladder = {name: torch.tensor(value, device=runtime.device) for name, value in ladder_ends(self.config).items()}

    def update(self, batch: Chunks) -> Outcome:
        """Several passes over one rollout batch; then its observations update the running statistics."""
        with self.optimiser.autocast():
            items, rows = self.prepare(batch)
        metrics, last = self.passes(items, rows)
        if last is not None:
            self.policy.body.inputs.observe(rows, items.observation_index[:, -1], self.runtime.group)
        return Outcome(metrics | self._ladder)

    def step(self, minibatch: QItems, rows: Tensors) -> Tensors:
        return self.optimiser.step(self.loss, minibatch, rows).metrics

    @torch.no_grad()
    def prepare(self, batch: Chunks) -> tuple[QItems, Tensors]:
        """The rollout's items with their targets by the current Q-values, and all its rows {name: [R, *shape]}."""
        rollout = Rollout(batch, self.spec, self.config)
        best = self._best_values(rollout.rows, rollout.index.flatten(0, 1)).reshape(rollout.index.shape[:2])  # [B, L + 1]
        time_major = rollout.reward.T, rollout.discount.T, best[:, 1:].T, rollout.cut.T
        target = lambda_return(*time_major, self.config.q_lambda).T  # [B, L]
        columns = QItems(rollout.index[:, :-1], batch.action[:, self.spec.history : -1], target)
        return mapped(rollout.of_items, columns), rollout.rows

    def _best_values(self, rows: Tensors, index: Tensor) -> Tensor:
        """The greatest Q-value of an allowed action [R], a portion at a time to bound the memory of stacked images."""
        with evaluating(self.policy):
            return torch.cat([self._q(rows, where).max(1).values for where in index.split(self.portion)])

    def _q(self, rows: Tensors, index: Tensor) -> Tensor:
        """Q-values [N, n] float32, with forbidden actions masked. Under autocast only a body with images is less precise."""
        observation = self.policy.body.stacked(rows, index, stack_rows)
        with nullcontext() if self.policy.body.inputs.images else exact(index.device.type):
            features = self.policy.body(observation)
            with exact(index.device.type):
                return masked(self.spec, self.policy.head_output(features.float()), observation)

    def loss(self, items: QItems, rows: Tensors) -> Loss:
        """Half the mean squared error of the Q-values of the actions taken, and the metrics loss, td (mean |td|), q (mean Q),
        ignored.

        An item whose target is not finite (for example by an infinite reward) has no gradient; `ignored` is the fraction of such
        items.
        """
        q = self._q(rows, items.observation_index).gather(1, items.action[:, None]).squeeze(1)  # [N]
        with torch.no_grad():
            td, finite = td_error(items.target, q)
        loss = 0.5 * (q - (q.detach() + td)).square().mean()
        with torch.no_grad():
            metrics = {"loss": loss.detach(), "td": td.abs().mean(), "q": q.mean(), "ignored": 1 - finite.float().mean()}
        return Loss(loss, metrics)
