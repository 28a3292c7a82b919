"""PPO's update for a policy with memory: chunks stay whole, and the memory is unrolled over each from the recorded state.

The state before a chunk is the one that the actor had, in every epoch. So the first ratios are 1, as without memory; in later
epochs it is that of slightly older weights. Policy and value function share the memory: docs/explanation/decisions.md says why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.algorithms.arithmetic.masks import masked
from learner.algorithms.arithmetic.rollouts import Rollout
from learner.algorithms.arithmetic.sequences import ending_at, zero_without
from learner.algorithms.ppo.networks import log_prob_entropy, unrolled_policy_and_value
from learner.algorithms.ppo.update import ChunkMemory, Items, PpoUpdate
from learner.networks.stacks import stack_rows
from learner.updates.base import Chunks, Loss, Tensors
from learner.updates.trees import mapped

LEAST_CHUNKS = 8  # of a minibatch: the steps of a chunk are much alike, and an update costs the time that its longest chunk takes


class RecurrentPpoUpdate(PpoUpdate):
    """Minibatches are sets of whole chunks. Every mean is over the items in them, of which chunks may have different numbers."""

    def minibatches(self, items: int) -> int:
        return max(1, min(self.config.minibatches, self.runtime.group.least(items) // LEAST_CHUNKS))

    def evaluate(self, rollout: Rollout, action: Tensor) -> tuple[Tensor, Tensor]:
        index, first = ending_at(rollout.index, rollout.batch.length), self._first(rollout.batch)
        state = self._state(rollout.batch)
        chunks = max(1, self.portion // index.shape[1])
        values, log_probs = [], []
        for start in range(0, len(index), chunks):
            where = slice(start, start + chunks)
            before = {name: value[where] for name, value in state.items()}
            output, value = self._unrolled(rollout.rows, index[where], first[where], before)
            values.append(value)
            log_probs.append(log_prob_entropy(output, action[where].flatten(0, 1), self.choices)[0])
        return torch.cat(values).reshape(first.shape), torch.cat(log_probs).reshape(first.shape)

    def minibatch_source(self, rollout: Rollout, columns: Items, items: Items) -> Items:
        whole = mapped(lambda column: zero_without(rollout.item, column), columns)  # the rest may hold anything, also NaN
        index = ending_at(columns.observation_index, rollout.batch.length)
        memory = ChunkMemory(self._first(rollout.batch)[:, :-1], rollout.item.float(), self._state(rollout.batch))
        return whole._replace(observation_index=index, memory=memory)

    def normalised(self, items: Items) -> Items:
        """Also weighs the items, so that a mean over all rows is one over the items of all processes. No device is read."""
        assert items.memory is not None
        item, advantage = items.memory.weight, items.advantage
        _, _, (share, total) = self._means(item, item * advantage)
        items = items._replace(memory=items.memory._replace(weight=item / share))
        if not self.config.normalize_advantage:
            return items
        centred = item * (advantage - total / share)
        _, _, (square,) = self._means(centred.square())
        return items._replace(advantage=centred / ((square / share).sqrt() + 1e-8))

    def loss(self, items: Items, rows: Tensors, ent_coef: Tensor) -> Loss:
        assert items.memory is not None
        first, weight, state = items.memory
        output, value = self._unrolled(rows, items.observation_index, first, state)
        flat = mapped(lambda column: column.flatten(0, 1), items._replace(memory=None))
        return self.objective(output, value, flat, ent_coef, lambda each: (weight.flatten() * each).mean())

    def _unrolled(self, rows: Tensors, index: Tensor, first: Tensor, state: Tensors) -> tuple[Tensor, Tensor]:
        """Outputs [B * T, …], with forbidden actions masked, and values [B * T], chunk by chunk; index: [B, T, stack]."""
        time_major = first.T.shape
        observation = self.policy.body.stacked(rows, index.transpose(0, 1).flatten(0, 1), stack_rows)
        unrolled = {name: column.unflatten(0, time_major) for name, column in observation.items()}
        output, value = unrolled_policy_and_value(self.policy, self.value, unrolled, first.T, state)
        output = masked(self.spec, output.flatten(0, 1), observation).unflatten(0, time_major)
        return output.transpose(0, 1).flatten(0, 1), value.T.flatten()

    def _first(self, rollout: Chunks) -> Tensor:
        """[B, L + 1] bool: an episode begins with this row."""
        return rollout.episode_step[:, self.spec.history :] == 0

    def _state(self, rollout: Chunks) -> Tensors:
        return {name: rollout.extras[name] for name in self.policy.body.state}

    def _means(self, *columns: Tensor) -> tuple[int | Tensor, Tensor, Tensor]:
        """Count, variances and means of columns [N, L] over the rows of all processes."""
        return self.runtime.group.var_mean(torch.stack([column.flatten() for column in columns], 1))
