"""R2D2's network and update, Kapturowski et al. 2019 (openreview.net/forum?id=r1lyTjAqYX): stored state and burn-in (section 3),
n-step double Q-learning on rescaled values, sequences prioritised by their errors (section 2.3).

Torso and head are initialised as DQN's, the memory as learner/networks/recurrent.py says.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from learner.algorithms.arithmetic.masks import masked
from learner.algorithms.arithmetic.returns import td_error
from learner.algorithms.arithmetic.sequences import UnrollRows, item_rows, n_step_returns, unrolled_rows
from learner.algorithms.dqn.networks import require_categorical, with_q_head
from learner.algorithms.dqn.update import QUpdate, Weighted
from learner.algorithms.r2d2.acting import EPSILON, GREATEST_SHARE
from learner.algorithms.r2d2.config import R2d2Config
from learner.networks.base import PolicyModule, make_body
from learner.updates.base import Chunks, Loss, Outcome, Tensors
from transport.experience import ExperienceSpec


def recurrent_q_network(spec: ExperienceSpec, config: R2d2Config) -> PolicyModule:
    """A module that computes Q-values [N, n]; in float32 on the CPU, in training mode. Raises ValueError, in one line."""
    require_categorical(spec, "r2d2", "choose an algorithm for continuous actions, such as ppo with --algorithm.memory lstm")
    return with_q_head(spec, config.network, make_body(spec, **config.body._asdict()), config.dueling)


class R2d2Update(QUpdate):
    """The online network, the target network, and the loss."""

    config: R2d2Config

    def update(self, batch: Chunks) -> Outcome:
        return self.learn(batch)

    def loss(self, items: Weighted[Chunks]) -> Loss:
        """The weighted mean of the sequences' mean Huber losses, and the sequences' priorities [b].

        Metrics: loss, td (mean |td|) and q (mean Q) on the scale of the Q-values, ignored (the share of items whose td is not
        finite: they have no gradient and no priority).
        """
        batch, length = items.batch, self.spec.chunk_length
        rows = self.rows(batch)
        q = self.values(self.policy, rows, batch.extras)  # [L + n, B, actions]; with gradients, so before those without
        action = batch.action[:, self.spec.history :][:, :length].T  # [L, B]
        item = item_rows(batch, self.spec).T
        taken = q[:length].gather(2, torch.where(item, action, 0)[..., None]).squeeze(2)
        with torch.no_grad():
            target = self.targets(batch, rows, q)
            td, finite = td_error(target, taken)
            td = torch.where(item, td, 0.0)
            count = item.sum(0).clamp(min=1)
        error = huber_loss(taken, taken.detach() + td, reduction="none")  # 0 where there is no item
        loss = (items.weight * (error.sum(0) / count)).mean()
        with torch.no_grad():
            mean, greatest = td.abs().sum(0) / count, td.abs().amax(0)
            q_mean = torch.where(item, taken, 0.0).sum(0) / count
            ignored = (item & ~finite).sum(0) / count
            metrics = {"loss": loss.detach(), "td": mean.mean(), "q": q_mean.mean(), "ignored": ignored.mean()}
        return Loss(loss, metrics, GREATEST_SHARE * greatest + (1 - GREATEST_SHARE) * mean)

    def rows(self, batch: Chunks) -> UnrollRows:
        return unrolled_rows(batch, self.spec, self.policy.body.stacked)

    def values(self, module: PolicyModule, rows: UnrollRows, state: Tensors) -> Tensor:
        """Q-values [L + n, B, actions] from the first item on; `state` is the recorded one, before the burn-in."""
        before = {name: state[name] for name in module.body.state}
        features = module.body.unroll(rows.observation, rows.first, before, self.spec.burn_in)
        return module.head_output(features.flatten(0, 1)).unflatten(0, features.shape[:2])

    def targets(self, batch: Chunks, rows: UnrollRows, q: Tensor) -> Tensor:
        """The regression targets [L, B] of the items, given the online network's Q-values [L + n, B, actions]."""
        spec, config = self.spec, self.config
        reward, terminated, valid = (
            column[:, spec.history :].T for column in (batch.reward, batch.terminated, batch.valid)
        )  # [L + n, B]
        if config.clip_rewards:
            reward = reward.clamp(-1.0, 1.0)
        returns = n_step_returns(config.reward_scale * reward, terminated, valid, spec.n_step, config.gamma)
        valuing = self.values(self.target, rows, batch.extras)
        observation = {name: column[spec.burn_in :].flatten(0, 1) for name, column in rows.observation.items()}
        selecting = masked(spec, (q if config.double else valuing).flatten(0, 1), observation).unflatten(0, q.shape[:2])
        following = valuing.gather(2, selecting.argmax(2, keepdim=True)).squeeze(2)  # [L + n, B]
        place = torch.arange(spec.chunk_length, device=q.device)[:, None]
        following = following.gather(0, place + returns.steps)  # [L, B]
        if config.value_rescaling:
            following = restore(following)
        target = returns.return_ + torch.where(returns.discount == 0, 0.0, returns.discount * following)
        return rescale(target) if config.value_rescaling else target


def rescale(values: Tensor) -> Tensor:
    """As rescale() of acting.py."""
    return values.sign() * ((values.abs() + 1).sqrt() - 1) + EPSILON * values


def restore(values: Tensor) -> Tensor:
    """As restore() of acting.py: the inverse of rescale()."""
    sum_ = 1 + EPSILON + values.abs()
    root = 2 * sum_ / (1 + (1 + 4 * EPSILON * sum_).sqrt())
    return values.sign() * (root.square() - 1)
