"""Deep Q-learning's update: n-step, double, prioritised (after Rainbow, arXiv:1710.02298). The network may be dueling."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.copies import average_into, copy_into, frozen_copy
from learner.algorithms.arithmetic.returns import importance_weights, td_error
from learner.algorithms.arithmetic.scaling import SQUARES, TargetScale, squares
from learner.algorithms.arithmetic.transitions import Transition, observe, transition
from learner.algorithms.base import Algorithm
from learner.algorithms.dqn.config import LEAST_LOG_POLICY, TOLERANCE, DqnConfig
from learner.algorithms.dqn.loss import TdLoss, conservative, double_q_target, munchausen_target, weighted_huber
from learner.algorithms.dqn.networks import last_rescale
from learner.algorithms.exploration import ladder_ends
from learner.devices.capabilities import capabilities
from learner.engine.transitions import STATISTICS_INTERVAL
from learner.networks.base import PolicyModule
from learner.networks.modes import evaluating
from learner.updates.base import Chunks, Loss, Outcome, Runtime, Transitions
from transport.experience import ExperienceSpec

BatchT = TypeVar("BatchT", bound=Transitions | Chunks)


class Weighted(NamedTuple, Generic[BatchT]):
    """Transitions or sequences, and their importance weights [B], at most 1."""

    batch: BatchT
    weight: Tensor


class QUpdate:
    """The common part of DQN and R2D2: an online and a target network, and importance weights. A subclass has loss()."""

    config: Any

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        self.spec, self.group, self.config = spec, runtime.group, algorithm.config
        self.policy: PolicyModule = runtime.to_device(algorithm.policy(spec))  # type: ignore[assignment]
        self.target = frozen_copy(self.policy)
        self.optimiser = runtime.optimiser("main", self.policy, recordable=True)
        self.modules: dict[str, nn.Module] = {"policy": self.policy, "target": self.target}
        self.counters: dict[str, float] = {"updates": 0}
        self._ladder = {name: torch.tensor(value, device=runtime.device) for name, value in ladder_ends(self.config).items()}

    def loss(self, items: Weighted) -> Loss:
        raise NotImplementedError

    def learn(self, batch: Transitions | Chunks) -> Outcome:
        """One step; now and then the target network becomes a copy of the online network."""
        weight = importance_weights(batch.probability, self.config.importance_exponent)
        weight = weight / self.group.greatest(weight.max())  # over the whole batch, before it is split
        outcome = self.optimiser.step(self.loss, Weighted(batch, weight))
        self.counters["updates"] += 1
        if self.counters["updates"] % self.config.target_update_interval == 0:
            copy_into(self.target, self.policy)
        return outcome._replace(metrics=outcome.metrics | self._ladder)


class DqnUpdate(QUpdate):
    """The loss of single transitions. Networks may have a running scale of rewards, and weights that are averaged for acting.

    Only the forward pass with gradients uses (and updates) batch statistics; all other passes use running statistics. Both
    networks have the same statistics of observations and the same scale of outputs, at every moment: a target network with older
    ones would change its values when it gets the new ones.
    """

    config: DqnConfig

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        super().__init__(algorithm, spec, runtime)
        # What actors get: the newest weights change too fast for a policy that stays good.
        self.average = frozen_copy(self.policy) if self.config.average_updates else None
        for copied in self._copies():
            copied.body.inputs = self.policy.body.inputs
        self.scaling = self._scaling()
        if self.average is not None:
            self.modules = {"policy": self.average, "online": self.policy, "target": self.target}
        if self.scaling is not None:
            self.modules["scaling"] = self.scaling
        self._lerps = capabilities(runtime.device).lerp
        self._scale = None if self.scaling is None else self.scaling.scale
        self._normalises = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.policy.modules())

    def _copies(self) -> list[PolicyModule]:
        return [self.target] if self.average is None else [self.target, self.average]

    def _scaling(self) -> TargetScale | None:
        """The running scale of all networks' outputs, where their heads end in one."""
        heads = [network.head for network in (self.policy, *self._copies())]
        if (rescale := last_rescale(self.policy)) is None:
            return None
        for head in heads[1:]:
            head[-1] = rescale  # type: ignore[index, operator]
        layers = [parameter for head in heads for parameter in head[0].parameters()]  # type: ignore[index, union-attr]
        return TargetScale(rescale.scale, layers, tolerance=TOLERANCE)

    def update(self, batch: Transitions) -> Outcome:
        observes = self.counters["updates"] % STATISTICS_INTERVAL == 0
        if observes:
            observe(self.policy.body.inputs, batch, self.group)
        outcome = self.learn(batch)
        if observes and self.scaling is not None:
            self.scaling.observe(*(self.group.mean(outcome.metrics[name]) for name in SQUARES))
        if self.average is not None:
            average_into(self.average, self.policy, self.counters["updates"], self.config.average_updates, self._lerps)
        return outcome

    def loss(self, items: Weighted[Transitions]) -> Loss:
        """The weighted mean Huber loss, |td| [b] as priorities, and the metrics loss, td (mean |td|), q (mean Q), ignored.

        An item whose td is not finite (for example by an infinite reward) has no gradient, and gets priority 0, so that it is not
        sampled again; `ignored` is the fraction of such items.
        """
        step = self.transition(items.batch)
        loss, q, td, finite = self.td_loss(step, items.weight)
        with torch.no_grad():
            priority = td.abs()
            metrics = {"loss": loss.detach(), "td": priority.mean(), "q": q.mean(), "ignored": 1 - finite.float().mean()}
            if self.scaling is not None:
                metrics |= squares(q + td, torch.where(finite, step.return_, 0.0))
        return Loss(loss, metrics, priority)

    def transition(self, batch: Transitions) -> Transition:
        """n-step transitions, of rewards clipped and scaled as configured."""
        reward = batch.reward.clamp(-1.0, 1.0) if self.config.clip_rewards else batch.reward
        if self.config.reward_scale != 1.0:
            reward = reward * self.config.reward_scale
        return transition(batch._replace(reward=reward), self.config.gamma, self.policy.body.stacked)

    def td_loss(self, step: Transition, weight: Tensor) -> TdLoss:
        # The pass with gradients comes first: autocast caches converted parameters, and those converted under no_grad have none.
        values = self.policy(step.observation)
        q = values.gather(1, step.action[:, None]).squeeze(1)  # [b]
        with torch.no_grad():
            td, finite = td_error(self.munchausen(step) if self.config.munchausen else self.double_q(step), q)
        loss = weighted_huber(q, td, weight, self._scale)
        if self.config.conservative:
            loss = loss + self.config.conservative * conservative(self.spec, step, values, q, weight, self._scale)
        return TdLoss(loss, q, td, finite)

    def double_q(self, step: Transition) -> Tensor:
        """Targets [b]."""
        following = self.policy.body.preprocess(step.next_observation)
        valuing = self.target.head_output(self.target.body.torso_output(following))  # [b, n]
        selecting = valuing
        if self.config.double:
            with evaluating(self.policy) if self._normalises else nullcontext():
                selecting = self.policy.head_output(self.policy.body.torso_output(following))
        return double_q_target(self.spec, step, selecting, valuing)

    def munchausen(self, step: Transition) -> Tensor:
        """Targets [b]. The temperature is in units of the scale, if there is one."""
        now, following = self.target(step.observation), self.target(step.next_observation)
        scale = torch.ones((), device=now.device) if self._scale is None else self._scale
        temperature, least = self.config.entropy_temperature * scale, LEAST_LOG_POLICY * scale
        return munchausen_target(self.spec, step, now, following, self.config.munchausen, temperature, least)
