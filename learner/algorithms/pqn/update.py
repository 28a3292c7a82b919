"""PQN's update, Gallici et al. 2024 (arXiv:2407.04811, algorithm 1), on whole chunks whose steps may come from several policy
versions: Q-learning bootstraps from the best action, so that none of them has to be the present policy's."""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.masked import masked
from learner.algorithms.arithmetic.minibatches import Mean, portion, shuffled, take
from learner.algorithms.arithmetic.returns import lambda_return, td_error
from learner.algorithms.arithmetic.sequences import discounts_and_cuts, item_rows, stack_index
from learner.algorithms.base import Algorithm
from learner.algorithms.exploration import ladder_ends
from learner.algorithms.pqn.config import PqnConfig
from learner.devices.capabilities import capabilities
from learner.networks.base import PolicyModule
from learner.networks.modes import evaluating, exact
from learner.networks.stacks import stack_rows
from learner.updates.base import Chunks, Loss, Outcome, Runtime, Tensors
from transport.experience import ExperienceSpec


class Items(NamedTuple):
    """N items of a rollout or of a minibatch. They index the rollout's rows, which are stacked only where they are needed."""

    observation_index: Tensor  # [N, stack] int64 into the rows: the stack of each item's observation, oldest first
    action: Tensor  # [N] int64
    target: Tensor  # [N] lambda returns by the Q-values before the first step of this rollout


class PqnUpdate:
    """A Q-network and its loss. There is no target network: targets are computed once per rollout batch."""

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        self.spec, self.runtime = spec, runtime
        self.config: PqnConfig = algorithm.config
        self.policy: PolicyModule = runtime.to_device(algorithm.policy(spec))  # type: ignore[assignment]
        self.optimiser = runtime.optimiser("main", self.policy, recordable=True)
        self.modules: dict[str, nn.Module] = {"policy": self.policy}
        self.counters: dict[str, float] = {}
        self.few_shapes, self.portion = capabilities(runtime.device).few_shapes, portion(spec)
        self._ladder = {name: torch.tensor(value, device=runtime.device) for name, value in ladder_ends(self.config).items()}

    def update(self, batch: Chunks) -> Outcome:
        """Several epochs over one rollout batch; then its observations update the running statistics."""
        config, group = self.config, self.runtime.group
        with self.optimiser.autocast():
            items, rows = self.prepare(batch)
        mean = Mean()
        number, device = len(items.action), self.runtime.device
        for minibatches in shuffled(number, [config.n_epochs], config.minibatches, group, device, self.few_shapes):
            for which in minibatches:
                mean.add(self.optimiser.step(self.loss, take(items, which), rows).metrics)
                if self.runtime.interrupted():  # half of the steps taken are valid, too
                    return Outcome(mean.mean() | self._ladder)
        newest = items.observation_index[:, -1]  # the item's own row: rows of the history belong to other chunks, too
        self.policy.body.inputs.observe(rows, newest, group)
        return Outcome(mean.mean() | self._ladder)

    @torch.no_grad()
    def prepare(self, rollout: Chunks) -> tuple[Items, Tensors]:
        """The rollout's items with their targets by the current Q-values, and all its rows {name: [R, *shape]}."""
        history, config = self.spec.history, self.config
        rows = {name: column.flatten(0, 1) for name, column in rollout.observation.items()}  # [B * rows, *shape]
        index = stack_index(rollout.episode_step, self.spec.stack)  # [B, L + 1, stack]
        here, item = slice(history, -1), item_rows(rollout, self.spec)  # rows that may be items; [B, L] whether they are
        best = self._best_values(rows, index.flatten(0, 1)).reshape(index.shape[:2])  # [B, L + 1]

        reward = rollout.reward[:, here].clamp(-1.0, 1.0) if config.clip_rewards else rollout.reward[:, here]
        discount, cut = discounts_and_cuts(rollout, item, self.spec, config.gamma)
        reward, discount, following_best, cut = (
            column.T for column in (config.reward_scale * reward, discount, best[:, 1:], cut)
        )
        target = lambda_return(reward, discount, following_best, cut, config.q_lambda).T  # [B, L]

        which = item.flatten().nonzero().squeeze(1)  # [N]; waits for the device
        columns = (index[:, :-1], rollout.action[:, here], target)
        items = Items(*(column.flatten(0, 1).index_select(0, which) for column in columns))
        return items, rows

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

    def loss(self, items: Items, rows: Tensors) -> Loss:
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
