"""Deep Q-learning's update in arrays: equal to DqnUpdate of update.py, whose loss has an automatic gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from learner.algorithms.arithmetic.masks import FORBIDDEN, allowed_actions
from learner.algorithms.dqn.config import LEAST_LOG_POLICY, TOLERANCE, DqnConfig
from learner.algorithms.dqn.known import INITIAL
from learner.algorithms.exploration import ladder_ends
from learner.description import PolicyDescription
from learner.engine.averages import average_into
from learner.engine.errors import quietly
from learner.engine.module import Module
from learner.engine.returns import importance_weights, td_error
from learner.engine.runtime import EngineRuntime
from learner.engine.scaling import SQUARES, TargetScale, squares
from learner.engine.transitions import STATISTICS_INTERVAL, Transition, observe_batch, transition
from learner.networks.known.initial import initial
from learner.program.inputs import Inputs
from learner.program.network import Network, trained
from learner.updates.base import Outcome, Transitions
from transport.experience import ExperienceSpec

ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


def weighted_huber(td: np.ndarray, weight: np.ndarray, scale: float) -> tuple[float, np.ndarray]:
    """The weighted mean Huber loss of td / scale, [b] each, and its gradient by the Q-values [b]."""
    error, share = td / np.float32(scale), 1 / len(td)
    size = np.abs(error)
    near = np.minimum(size, ONE)
    size -= HALF * near
    size *= near
    slope = np.copysign(near, error, out=near)
    slope *= weight
    slope *= np.float32(-share / scale)
    return float(weight @ size) * share, slope


def soft_value(values: np.ndarray, temperature: float) -> np.ndarray:
    """temperature * log sum exp(values / temperature), [b, n] -> [b]."""
    greatest = values.max(1)
    shares = np.exp((values - greatest[:, None]) / temperature)
    found: np.ndarray = greatest + temperature * np.log(shares.sum(1))
    return found


def best_values(selecting: np.ndarray, valuing: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    """valuing[argmax selecting], [b], over the allowed actions; all [b, n]. None: every action is allowed."""
    if allowed is not None:
        selecting = np.where(allowed, selecting, np.float32(FORBIDDEN))
    found: np.ndarray = valuing[np.arange(len(valuing)), selecting.argmax(1)]
    return found


class DqnArrayUpdate:
    """An online and a target network, which may have a running scale of rewards, and weights that are averaged for acting.

    All networks have the same statistics of observations and the same scale of outputs, at every moment: a target network with
    older ones would change its values when it gets the new ones.
    """

    def __init__(self, spec: ExperienceSpec, config: DqnConfig, description: PolicyDescription, runtime: EngineRuntime) -> None:
        program = description.program
        assert program is not None
        self.spec, self.config = spec, config
        self.policy = Module(initial(description, INITIAL, runtime.random), trained(program))
        self.target = self._follower()
        self.average = self._follower() if config.average_updates else None
        self.optimiser = runtime.optimiser("main", self.policy)
        self.modules: dict[str, Module] = {"policy": self.policy, "target": self.target}
        if self.average is not None:  # what actors get: the newest weights change too fast for a policy that stays good
            self.modules = {"policy": self.average, "online": self.policy, "target": self.target}
        self._scale = np.ones((), np.float32)
        self.scaling = None
        if config.normalize_reward:
            self._scale = self.policy.tensors[program[-1].tensors[0]]
            last = [op for op in program if op.kind == "linear"][-1].tensors
            layers = [module.tensors[name] for module in self.modules.values() for name in last]
            self.scaling = self.modules["scaling"] = TargetScale(self._scale, layers, tolerance=TOLERANCE)
        self.counters: dict[str, float] = {"updates": 0}
        self._ladder = ladder_ends(config)
        inputs = program[0]
        self._inputs = Inputs([self.policy.tensors[name] for name in inputs.tensors], **inputs.options)
        self._online = Network(program, self._inputs.places, self.policy.tensors, self.policy.gradients)
        self._valuing = Network(program, self._inputs.places, self.target.tensors)

    def _follower(self) -> Module:
        """A copy that has the policy's own statistics and scale."""
        copied = self.policy.copy()
        copied.tensors |= {name: value for name, value in self.policy.tensors.items() if name not in self.policy.trained}
        return copied

    @quietly
    def update(self, batch: Transitions[np.ndarray]) -> Outcome[Any]:
        """One step; now and then the target network becomes a copy of the online network."""
        config, observes = self.config, self.counters["updates"] % STATISTICS_INTERVAL == 0
        if observes:
            observe_batch(self._inputs, batch)
        metrics, priorities = self.learn(batch, importance_weights(batch.probability, config.importance_exponent))
        metrics["gradient_norm"] = float(self.optimiser.step(len(priorities)))
        self.counters["updates"] += 1
        updates = self.counters["updates"]
        if updates % config.target_update_interval == 0:
            self.target.flat[:] = self.policy.flat
        if observes and self.scaling is not None:
            self.scaling.observe(*(metrics[name] for name in SQUARES))
        if self.average is not None:
            average_into(self.average, self.policy, updates, config.average_updates)
        return Outcome(metrics | self._ladder, priorities)

    def learn(self, batch: Transitions[np.ndarray], weight: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
        """Writes the gradients. Returns the metrics and priorities of DqnUpdate.loss()."""
        step = self.transition(batch)
        items = len(weight)
        rows = self._inputs.read(step.observation)  # [2b, F]: of the observations, then of the next ones
        # Each network makes one pass, over what it is asked of both observations.
        munchausen = self.config.munchausen > 0
        double = self.config.double and not munchausen
        valuing = self._valuing.forward(rows if munchausen else rows[items:])
        outputs = self._online.forward(rows if double else rows[:items])
        if munchausen:
            target = self._munchausen(step, valuing)
        else:
            target = self._double_q(step, outputs[items:] if double else valuing, valuing)
        taken = np.arange(items), step.action
        q = outputs[taken]
        td, finite = td_error(target, q)
        ignored, return_, error = items - int(np.count_nonzero(finite)), step.return_, td
        if ignored:
            return_ = np.where(finite, return_, ZERO)
            error = td + (q - q)  # without a finite Q-value there is no finite gradient
        value, slope = weighted_huber(error, weight, float(self._scale))
        by_output = np.zeros((items, outputs.shape[1]), np.float32)
        if self.config.conservative:
            value += self._conservative(step, outputs[:items], weight, by_output)
        by_output[taken] += slope
        self._online.backward(by_output)
        priority = np.abs(td)
        metrics = {"loss": value, "td": _mean(priority), "q": _mean(q), "ignored": ignored / items}
        if self.scaling is not None:
            metrics |= squares(q + td, return_)
        return metrics, priority

    def transition(self, batch: Transitions[np.ndarray]) -> Transition:
        """n-step transitions, of rewards clipped and scaled as configured."""
        config, reward = self.config, batch.reward
        if config.clip_rewards:
            reward = reward.clip(-1.0, 1.0)
        if config.reward_scale != 1.0:
            reward = reward * np.float32(config.reward_scale)
        return transition(batch._replace(reward=reward), config.gamma)

    def _double_q(self, step: Transition, selecting: np.ndarray, valuing: np.ndarray) -> np.ndarray:
        """double_q_target() of loss.py."""
        allowed = allowed_actions(self.spec, step.observation)
        bootstrap = best_values(selecting, valuing, None if allowed is None else allowed[len(valuing) :])
        return _bootstrapped(step, bootstrap)

    def _conservative(self, step: Transition, values: np.ndarray, weight: np.ndarray, by_output: np.ndarray) -> float:
        """The weighted conservative() of loss.py; writes its gradient by the Q-values [b, n]."""
        scale, taken = self._scale, (np.arange(len(values)), step.action)
        q = values[taken]
        allowed = allowed_actions(self.spec, step.observation)
        if allowed is not None:
            values = np.where(allowed[: len(values)], values, np.float32(FORBIDDEN))
        soft = soft_value(values, float(scale))
        share = weight * np.float32(self.config.conservative / len(values)) / scale
        np.exp((values - soft[:, None]) / scale, out=by_output)
        by_output[taken] -= ONE
        by_output *= share[:, None]
        return float(share @ (soft - q))

    def _munchausen(self, step: Transition, values: np.ndarray) -> np.ndarray:
        """munchausen_target() of loss.py. values: [2b, n], of both observations."""
        allowed, items = allowed_actions(self.spec, step.observation), len(step.action)
        if allowed is not None:
            values = np.where(allowed, values, np.float32(FORBIDDEN))
        soft = soft_value(values, self.config.entropy_temperature * float(self._scale))
        log_policy = values[np.arange(items), step.action] - soft[:items]
        log_policy = np.minimum(np.maximum(log_policy, np.float32(LEAST_LOG_POLICY) * self._scale), ZERO)
        target: np.ndarray = np.float32(self.config.munchausen) * log_policy + _bootstrapped(step, soft[items:])
        return target


def _bootstrapped(step: Transition, value: np.ndarray) -> np.ndarray:
    """return_ + discount * value, [b]; values are ignored where the discount is 0."""
    value[step.discount == 0] = ZERO
    target: np.ndarray = step.return_ + step.discount * value
    return target


def _mean(values: np.ndarray) -> float:
    return float(np.add.reduce(values)) / len(values)
