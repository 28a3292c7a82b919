"""PPO's update in numpy, for networks whose every part is known; equal to that of update.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from learner.algorithms.arithmetic.masks import allowed_actions
from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD
from learner.algorithms.base import Algorithm, known_description
from learner.algorithms.ppo.arrays import Choices, Gaussian, Items, log_slopes, objective
from learner.algorithms.ppo.config import GREATEST_LOG_RATIO, LEAST_SHARE, LOG_PROB, SMALL_MAGNITUDE, PpoConfig
from learner.algorithms.ppo.known import FEATURES, POLICY_INITIAL, VALUE_INITIAL, choices, describe_value
from learner.algorithms.ppo.schedules import Schedules
from learner.description import Op, PolicyDescription
from learner.engine.errors import quietly
from learner.engine.module import Module
from learner.engine.returns import gae, vtrace
from learner.engine.rollouts import Metrics, Rollout, RolloutUpdate, portions
from learner.engine.runtime import EngineRuntime
from learner.engine.scaling import MAGNITUDE, TargetScale
from learner.networks.known.initial import initial
from learner.program.inputs import Inputs
from learner.program.network import Network, is_learnable, trained
from learner.updates.base import Chunks, Outcome
from transport.experience import ACTION_MASK, ExperienceSpec


class Prepared(NamedTuple):
    """A rollout that is ready to be learned from."""

    items: Items
    figures: Metrics
    rollout: Rollout


class PpoArrayUpdate(RolloutUpdate):
    """A policy and its value function, each with a torso of its own, or both with one."""

    config: PpoConfig

    def __init__(
        self, policy: PolicyDescription, value: PolicyDescription, config: PpoConfig, spec: ExperienceSpec, runtime: EngineRuntime
    ) -> None:
        """Both descriptions have a program that learns."""
        super().__init__(spec, runtime, config)
        assert policy.program and value.program
        made = Module(initial(policy, POLICY_INITIAL, runtime.random, config.log_std_init), trained(policy.program))
        critic = Module(initial(value, VALUE_INITIAL, runtime.random), trained(value.program))
        self.optimiser = runtime.optimiser("main", made, critic)
        self.modules: dict[str, Any] = {"policy": made, "value": critic}
        first = policy.program[0]
        self._inputs = Inputs([made.tensors[name] for name in first.tensors], **first.options)
        ops, places = policy.program, self._inputs.places
        self._torso: Network | None = None  # where both share it
        if config.shared:
            head = next(number for number, op in enumerate(ops) if any(name.startswith("head.") for name in op.tensors))
            self._torso = Network(ops[:head], places, made.tensors, made.gradients)
            ops = (Op("push", options={"names": [FEATURES]}), *ops[head:])
            places = {FEATURES: slice(0, critic.tensors["head.weight"].shape[1])}
        self._policy = Network(ops, places, made.tensors, made.gradients)
        self._value = Network(value.program, places, critic.tensors, critic.gradients)
        self._log_std = made.tensors.get("head.1.log_std")
        self._choices, self._corrected = choices(spec), runtime.max_policy_lag > 1
        self.schedules, self._ent_coef = Schedules(config), config.ent_coef
        self._scale: np.ndarray | None = critic.tensors.get("rescale.scale")
        self.scaling: TargetScale | None = None
        if self._scale is not None:
            magnitude = MAGNITUDE if config.adaptive_kl else SMALL_MAGNITUDE
            last = critic.tensors["head.weight"], critic.tensors["head.bias"]
            self.modules["scaling"] = self.scaling = TargetScale(self._scale, last, LEAST_SHARE, magnitude)

    @property
    def counters(self) -> dict[str, float]:
        return self.schedules.counters

    @quietly
    def update(self, batch: Chunks[np.ndarray]) -> Outcome[Any]:
        """Several passes over one rollout batch; then its observations update the running statistics."""
        items, figures, rollout = self.prepare(batch, self._corrected)
        self.optimiser.scale_learning_rate(self.schedules.learning_rate_share())
        self._ent_coef = self.schedules.ent_coef()
        metrics, last = self.passes(items)
        if last is not None:
            if self.config.adaptive_kl:
                self.schedules.adapt(last["kl"])
            rollout.observe(self._inputs)
            self.counters["steps"] += len(items.action)
        return Outcome(metrics | figures)

    def step(self, minibatch: Items) -> Metrics:
        if self.config.normalize_advantage:
            minibatch = minibatch._replace(advantage=_normalised(minibatch.advantage))
        output, value = self._forward(minibatch.inputs)
        distribution = self._distribution(output, minibatch.action, minibatch.allowed)
        loss = objective(distribution, value, minibatch, self.config, self._ent_coef, self._scale)
        self._backward(loss.by_output, loss.by_value)
        loss.metrics["gradient_norm"] = float(self.optimiser.step(len(value)))
        if self._log_std is not None:  # clipped in the forward pass, it would have no gradient outside its bounds and stay there
            np.clip(self._log_std, self.config.log_std_min, GREATEST_LOG_STD, out=self._log_std)
        return loss.metrics

    def is_enough(self, metrics: Metrics) -> bool:
        return self.schedules.is_enough(metrics["kl"])

    def prepare(self, batch: Chunks[np.ndarray], corrected: bool) -> Prepared:
        """As that of PpoUpdate."""
        rollout = Rollout(batch, self.spec, self.config)
        item, history = rollout.item, self.spec.history
        reward_square = 0.0
        if self.scaling is not None:
            reward_square = float(np.square(rollout.reward, where=item, out=np.zeros_like(rollout.reward)).sum() / item.sum())
            self.scaling.begin(reward_square)
        inputs = rollout.read(self._inputs)  # [B * (L + 1), F]; statistics do not change in an update
        found = [[part.copy() for part in self._forward(inputs[here])] for here in portions(len(inputs))]
        output, value = map(np.concatenate, zip(*found, strict=True))
        value = value.reshape(len(item), -1)  # [B, L + 1]
        inputs, output, allowed = inputs.take(rollout.among_read, 0), output.take(rollout.among_read, 0), self._allowed(rollout)
        action = rollout.of_items(batch.action[:, history:-1])
        before = rollout.of_items(batch.extras[LOG_PROB][:, history:-1])
        if not self._choices:
            before = before + log_slopes(action)
        now = self._distribution(output, action, allowed).log_prob
        ratio = np.exp(np.clip(now - before, -GREATEST_LOG_RATIO, GREATEST_LOG_RATIO))
        return_, advantage = self._targets(rollout, value, ratio if corrected else None)  # [B, L]
        returns = rollout.of_items(return_)
        if self.scaling is not None:
            self.scaling.observe(float(np.square(returns).mean()), reward_square)
            advantage = advantage / self._scale
        values = rollout.of_items(value[:, :-1])
        old = now if corrected else before
        items = Items(inputs, allowed, action, old, values, rollout.of_items(advantage), returns)
        figures = {
            "explained_variance": float(1 - (returns - values).var() / returns.var()),
            "ratio_first": float(np.abs(ratio - 1).mean()),
        }
        return Prepared(items, figures, rollout)

    def _allowed(self, rollout: Rollout) -> np.ndarray:
        """Allowed actions of the items [N, n]; [N, 0] where every action is allowed."""
        if ACTION_MASK not in rollout.rows:
            return np.ones((len(rollout.places), 0), np.bool_)
        allowed = allowed_actions(self.spec, {ACTION_MASK: rollout.rows[ACTION_MASK][rollout.newest][:, None]})
        assert allowed is not None
        return allowed

    def _forward(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The policy's output [N, outputs] and values [N], in buffers that the next call overwrites."""
        features = inputs if self._torso is None else self._torso.forward(inputs)
        return self._policy.forward(features), self._value.forward(features)[:, 0]

    def _backward(self, by_output: np.ndarray, by_value: np.ndarray) -> None:
        """Writes all gradients, given those by the results of the last _forward(): [N, outputs] and [N, 1]."""
        shared = self._torso is not None
        by_features = self._policy.backward(by_output, by_input=shared)
        also = self._value.backward(by_value, by_input=shared)
        if self._torso is not None:
            assert by_features is not None and also is not None
            self._torso.backward(by_features + also)

    def _distribution(self, output: np.ndarray, action: np.ndarray, allowed: np.ndarray) -> Choices | Gaussian:
        if self._choices:
            return Choices(output, action, allowed, self._choices)
        return Gaussian(output, action)

    def _targets(self, rollout: Rollout, value: np.ndarray, ratio: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns and advantages [B, L]: by V-trace with the items' ratios [N], or by GAE without. value: [B, L + 1]."""
        now, following = value[:, :-1].T, value[:, 1:].T
        steps = rollout.reward.T, rollout.discount.T, now, following, rollout.cut.T
        if ratio is None:
            advantage = gae(*steps, self.config.gae_lambda)
            return_ = advantage + now
        else:
            every = np.ones(rollout.item.shape, np.float32)
            every[rollout.item] = ratio
            return_, advantage = vtrace(*steps, every.T, self.config.gae_lambda)
        return return_.T, advantage.T


def array_update(algorithm: Algorithm, spec: ExperienceSpec, runtime: EngineRuntime) -> PpoArrayUpdate | None:
    """None where the engine does not know a part of the networks."""
    policy, value = known_description(algorithm, spec), describe_value(spec, algorithm.config)
    if not (is_learnable(policy) and is_learnable(value)):
        return None
    return PpoArrayUpdate(policy, value, algorithm.config, spec, runtime)


def _normalised(advantage: np.ndarray) -> np.ndarray:
    """Mean 0 and deviation 1."""
    centred = advantage - np.add.reduce(advantage) / np.float32(len(advantage))
    centred /= np.sqrt(centred @ centred / np.float32(len(centred))) + np.float32(1e-8)
    return centred  # type: ignore[no-any-return]
