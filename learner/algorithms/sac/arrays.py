"""SAC's update in arrays: equal to SacUpdate of update.py, whose losses have automatic gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from learner.algorithms.columns import HINDSIGHT_GOAL, HINDSIGHT_REWARD
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.draws import Draws, by_output, draw
from learner.algorithms.sac.known import ACTION, INITIAL
from learner.description import Op, PolicyDescription
from learner.engine.adam import CHUNK
from learner.engine.errors import quietly
from learner.engine.module import Module
from learner.engine.returns import n_step_return
from learner.engine.runtime import EngineRuntime
from learner.engine.scaling import SQUARES, TargetScale, squares
from learner.engine.transitions import STATISTICS_INTERVAL, observe_batch, stacked
from learner.networks.known.initial import initial
from learner.program.buffers import Buffer
from learner.program.inputs import Inputs
from learner.program.network import Network, trained
from learner.updates.base import Outcome, Transitions
from transport.experience import DESIRED_GOAL

ZERO, HALF = np.float32(0), np.float32(0.5)
Metrics = dict[str, Any]  # 0-d


class SacArrayUpdate:
    """The policy, two critics with their target network, and the temperature."""

    def __init__(
        self, config: SacConfig, actions: int, policy: PolicyDescription, critics: PolicyDescription, runtime: EngineRuntime
    ) -> None:
        assert policy.program is not None and critics.program is not None
        self.config, self._runtime = config, runtime
        self.policy, self.critics = (
            Module(initial(each, INITIAL, runtime.random), trained(each.program or ())) for each in (policy, critics)
        )
        self.target = self.critics.copy()
        self.temperature = Module({"log": np.array(math.log(config.temperature), np.float32)}, ["log"])
        rates = {self.temperature: config.temperature_rate}
        self.optimiser = runtime.optimiser("main", self.policy, self.critics, self.temperature, rates=rates)
        self.modules = {
            "policy": self.policy,
            "critics": self.critics,
            "target": self.target,
            "temperature": self.temperature,
        }
        self.counters: dict[str, float] = {"updates": 0}
        self.target_entropy = config.target_entropy * actions
        self._actions, self.scaling = actions, self._scaling(critics)
        first = policy.program[0]
        self._inputs = Inputs([self.policy.tensors[name] for name in first.tensors], **first.options)
        self._networks(policy.program, critics.program)

    def _networks(self, policy: tuple[Op, ...], critics: tuple[Op, ...]) -> None:
        places = dict(self._inputs.places)
        self._features = max(place.stop for place in places.values())
        self._policy = Network(policy, places, self.policy.tensors, self.policy.gradients)
        places[ACTION] = slice(self._features, self._features + self._actions)
        self._critics = Network(critics, places, self.critics.tensors, self.critics.gradients)
        self._target = Network(critics, places, self.target.tensors)
        self._rows, self._by_outputs, self._step = Buffer(), Buffer(), np.empty(CHUNK, np.float32)

    def _scaling(self, critics: PolicyDescription) -> TargetScale | None:
        """The running scale by which the critics' values are smaller than their targets, if there is one."""
        self._scale = np.ones((), np.float32)
        if not self.config.normalize_reward:
            return None
        assert critics.program is not None
        layers = [module.tensors[name] for module in (self.critics, self.target) for name in critics.program[-1].tensors]
        scaling = TargetScale(self._scale, layers)
        self.modules["scaling"] = scaling
        return scaling

    @quietly
    def update(self, batch: Transitions[np.ndarray]) -> Outcome[np.ndarray]:
        observes = self.counters["updates"] % STATISTICS_INTERVAL == 0
        if observes:
            observe_batch(self._inputs, batch)
        metrics, priorities = self.learn(self.relabelled(batch))
        metrics["gradient_norm"] = self.optimiser.step(len(priorities))
        if observes and self.scaling is not None:
            self.scaling.observe(*(float(metrics[name]) for name in SQUARES))
        self.follow()
        self.counters["updates"] += 1
        return Outcome(metrics, priorities)

    def follow(self) -> None:
        """Moves the target network towards the critics by tau."""
        critics, target = self.critics.flat, self.target.flat
        for start in range(0, len(target), CHUNK):
            part = slice(start, start + CHUNK)
            step = np.subtract(critics[part], target[part], out=self._step[: len(target) - start])
            step *= np.float32(self.config.tau)
            target[part] += step

    def relabelled(self, batch: Transitions[np.ndarray]) -> Transitions[np.ndarray]:
        """The batch with some goals and rewards replaced by hindsight's."""
        if HINDSIGHT_GOAL not in batch.extras:
            return batch
        goals, rewards = batch.extras[HINDSIGHT_GOAL], batch.extras[HINDSIGHT_REWARD]
        items, k = rewards.shape
        drawn = self._runtime.random.integers(-1, k, (items, 1))  # -1: the item's own goal
        other, which, every = drawn >= 0, np.maximum(drawn, 0), np.arange(items)[:, None]
        own = batch.observation[DESIRED_GOAL]  # [B, W, *shape]
        goal = np.where(other.reshape(-1, *[1] * (own.ndim - 1)), goals[every, which], own)
        reward = np.where(other, rewards[every, which], batch.reward)  # n_step is 1
        return batch._replace(observation=batch.observation | {DESIRED_GOAL: goal}, reward=reward)

    def learn(self, batch: Transitions[np.ndarray]) -> tuple[Metrics, np.ndarray]:
        """Writes all gradients. Returns metrics and priorities [b]."""
        items = len(batch.reward)
        both, temperature = self._policy_inputs(batch), np.exp(self.temperature.tensors["log"])
        draws = draw(self._policy.forward(both), self._runtime.random.standard_normal((2 * items, self._actions), np.float32))
        # Of the actions taken, of the policy's own, of the next ones.
        rows = self._critic_inputs(batch, both, draws.bounded)
        next_value = np.minimum(*self._target.forward(rows[-items:])[..., 0])
        target = self.soft_target(batch, next_value - temperature * draws.log_prob[-items:])
        outputs = self._critics.forward(rows[:-items])  # one pass for both losses
        value = outputs[..., 0]
        q = value[:, :items].copy()
        td = target - q
        finite = np.logical_and(*np.isfinite(td))
        if not finite.all():
            td[:, ~finite] = ZERO
        slopes = self._by_outputs(outputs.shape)
        share = np.float32(1 / items)
        np.multiply(td, -share, out=slopes[:, :items, 0])
        metrics = {"loss": HALF * share * np.vdot(td, td), "temperature": temperature}
        metrics |= self._act(value[:, items:], draws, temperature, slopes, batch.action)
        priority = np.maximum(*np.abs(td)) * self._scale
        metrics |= {
            "td": priority.sum() * np.float32(1 / items),
            "q": q.sum() * np.float32(0.5 / items) * self._scale,
            "ignored": np.float32(1 - np.count_nonzero(finite) / items),
        }
        if self.scaling is not None:
            metrics |= self._squares(batch, (q + td) * self._scale, finite)
        return metrics, priority

    def _act(self, value: np.ndarray, draws: Draws, temperature: np.ndarray, slopes: np.ndarray, taken: np.ndarray) -> Metrics:
        """Writes all gradients, given the values [2, b] of the policy's own actions, and the `slopes` of the critics' outputs
        for the actions `taken` [b, A], unbounded. Returns the policy's metrics."""
        items = value.shape[1]
        share, half = np.float32(1 / items), np.float32(0.5 / items)
        # The gradient by the smaller value is -share, by equal ones half of it, and NaN where one of them is.
        more = np.sign(value[1] - value[0]) * half
        slopes[:, items:, 0] = np.stack([-half - more, more - half])
        by_rows = self._critics.backward(slopes, rows=items, by_input=slice(self._features, None))
        assert by_rows is not None
        by_action = np.add(*by_rows[:, items:])
        now = draws._replace(bounded=draws.bounded[:items], spread=draws.spread[:items], free=draws.free[:items])
        slope, least = by_output(now, by_action, temperature * share), np.minimum(*value)
        imitation = np.float32(0)
        if self.config.imitation:
            bounded = np.tanh(draws.mean[:items])
            weight = np.float32(self.config.imitation / taken.size) * np.abs(least).sum() * share
            distance = bounded - np.tanh(taken)
            imitation = weight * np.vdot(distance, distance)
            slope[:, : self._actions] += 2 * weight * distance * (1 - bounded * bounded)
        self._policy.backward(slope)
        log_prob = draws.log_prob[:items].sum() * share
        self.temperature.gradients["log"][...] = -(log_prob + np.float32(self.target_entropy))
        return {"policy_loss": temperature * log_prob - least.sum() * share + imitation, "entropy": -log_prob}

    def soft_target(self, batch: Transitions[np.ndarray], next_value: np.ndarray) -> np.ndarray:
        """As soft_target() of losses.py."""
        factor, gamma = np.float32(self.config.reward_scale) / self._scale, self.config.gamma
        return_, discount = n_step_return(batch.reward * factor, batch.steps, batch.terminated, gamma)
        target = discount * next_value
        target[discount == 0] = ZERO  # whatever the next value is
        target += return_
        if self.config.clip_targets:
            target = np.minimum(np.maximum(target, -factor / np.float32(1 - gamma)), ZERO)
        return target

    def _policy_inputs(self, batch: Transitions[np.ndarray]) -> np.ndarray:
        """The inputs of the policy, [2b, F]: observation_t of all items, then their next observations."""
        windows = self._inputs.rows(batch.observation)  # [b, W, features of a row]
        index = np.concatenate([batch.observation_index, batch.next_index])  # [2b, stack]
        return self._inputs.flat(stacked({"rows": windows}, index)["rows"])

    def _critic_inputs(self, batch: Transitions[np.ndarray], both: np.ndarray, bounded: np.ndarray) -> np.ndarray:
        """The inputs of the critics: observation_t with the actions taken, and then what the policy has drawn actions for."""
        items = len(batch.reward)
        rows = self._rows((items + len(bounded), self._features + self._actions))
        rows[:items, : self._features] = both[:items]
        rows[items:, : self._features] = both[-len(bounded) :]
        np.tanh(batch.action, out=rows[:items, self._features :])
        rows[items:, self._features :] = bounded
        return rows

    def _squares(self, batch: Transitions[np.ndarray], target: np.ndarray, finite: np.ndarray) -> Metrics:
        """What the running scale follows: the targets and the rewards in them."""
        reward = batch.reward * np.float32(self.config.reward_scale)
        return_, _ = n_step_return(reward, batch.steps, batch.terminated, self.config.gamma)
        return_ = np.where(finite, return_, ZERO)
        return squares(target.reshape(-1), return_)
