"""PQN's update in arrays: equal to PqnUpdate of update.py, whose loss has an automatic gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from learner.algorithms.arithmetic.masks import FORBIDDEN, allowed_actions
from learner.algorithms.dqn.known import INITIAL
from learner.algorithms.exploration import ladder_ends
from learner.algorithms.pqn.config import PqnConfig
from learner.description import PolicyDescription
from learner.engine.errors import quietly
from learner.engine.module import Module
from learner.engine.returns import lambda_return, td_error
from learner.engine.rollouts import Metrics, Rollout, RolloutUpdate, portions
from learner.engine.runtime import EngineRuntime
from learner.networks.known.initial import initial
from learner.program.inputs import Inputs
from learner.program.network import Network, trained
from learner.updates.base import Chunks, Outcome
from transport.experience import ACTION_MASK, ExperienceSpec


class QItems(NamedTuple):
    """N items of a rollout or of a minibatch."""

    inputs: np.ndarray  # [N, F] of the network
    action: np.ndarray  # [N] int64
    target: np.ndarray  # [N] lambda returns by the Q-values before the first step of this rollout


class PqnArrayUpdate(RolloutUpdate):
    """A Q-network and its loss. There is no target network: targets are computed once per rollout batch."""

    config: PqnConfig

    def __init__(self, spec: ExperienceSpec, config: PqnConfig, description: PolicyDescription, runtime: EngineRuntime) -> None:
        super().__init__(spec, runtime, config)
        program = description.program
        assert program is not None
        self.policy = Module(initial(description, INITIAL, runtime.random), trained(program))
        self.optimiser = runtime.optimiser("main", self.policy)
        self.modules = {"policy": self.policy}
        self.counters: dict[str, float] = {}
        self._ladder = ladder_ends(config)
        inputs = program[0]
        self._inputs = Inputs([self.policy.tensors[name] for name in inputs.tensors], **inputs.options)
        self._network = Network(program, self._inputs.places, self.policy.tensors, self.policy.gradients)

    @quietly
    def update(self, batch: Chunks[np.ndarray]) -> Outcome[Any]:
        """Several passes over one rollout batch; then its observations update the running statistics."""
        rollout = Rollout(batch, self.spec, self.config)
        metrics, last = self.passes(self.prepare(rollout))
        if last is not None:
            rollout.observe(self._inputs)
        return Outcome(metrics | self._ladder)

    def prepare(self, rollout: Rollout) -> QItems:
        """The rollout's items with their targets by the current Q-values."""
        inputs = rollout.read(self._inputs)
        masked = ACTION_MASK in rollout.rows
        allowed = allowed_actions(self.spec, {ACTION_MASK: rollout.newest_of_all(ACTION_MASK)}) if masked else None
        best = self._best_values(inputs, allowed).reshape(rollout.index.shape[:2])  # [B, L + 1]
        time_major = rollout.reward.T, rollout.discount.T, best[:, 1:].T, rollout.cut.T
        target = lambda_return(*time_major, self.config.q_lambda).T  # [B, L]
        action = rollout.batch.action[:, self.spec.history : -1]
        return QItems(inputs.take(rollout.among_read, 0), rollout.of_items(action), rollout.of_items(target))

    def _best_values(self, inputs: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
        """The greatest Q-value of an allowed action [R]."""
        best = np.empty(len(inputs), np.float32)
        for here in portions(len(inputs)):
            q = self._network.forward(inputs[here])
            (q if allowed is None else np.where(allowed[here], q, np.float32(FORBIDDEN))).max(1, out=best[here])
        return best

    def step(self, minibatch: QItems) -> Metrics:
        """Half the mean squared error of the Q-values of the actions taken, and the metrics of PqnUpdate.loss()."""
        items = len(minibatch.action)
        outputs = self._network.forward(minibatch.inputs)
        taken = np.arange(items), minibatch.action
        q = outputs[taken]
        td, finite = td_error(minibatch.target, q)
        ignored = items - int(np.count_nonzero(finite))
        error = td + (q - q) if ignored else td  # without a finite Q-value there is no finite gradient
        by_output = np.zeros(outputs.shape, np.float32)
        by_output[taken] = error * np.float32(-1 / items)
        self._network.backward(by_output)
        return {
            "loss": 0.5 * float(error @ error) / items,
            "td": float(np.add.reduce(np.abs(td))) / items,
            "q": float(np.add.reduce(q)) / items,
            "ignored": ignored / items,
            "gradient_norm": float(self.optimiser.step(items)),
        }
