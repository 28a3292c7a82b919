"""Soft actor-critic's update, with two critics and automatic temperature, Haarnoja et al. 2018 (arXiv:1812.05905).

Critics, policy and temperature take one step together: the loss is the sum of their three losses, each of which has gradients
only for its own parameters.

With hindsight experience replay (Andrychowicz et al. 2017, arXiv:1707.01495) an item keeps its own goal with probability
1 / (1 + k); otherwise it gets one of k goals that its episode achieved later. Where a step terminated the episode, these k are
its own goal, so an item with another goal never terminates: after a goal has been reached the episode goes on.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from learner.algorithms.arithmetic.copies import frozen_copy, lerp_into
from learner.algorithms.arithmetic.returns import n_step_return
from learner.algorithms.arithmetic.scaling import SQUARES, TargetScale, squares
from learner.algorithms.arithmetic.transitions import observe, transition
from learner.algorithms.base import Algorithm
from learner.algorithms.columns import HINDSIGHT_GOAL, HINDSIGHT_REWARD
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.losses import Losses, draw, imitation_loss, loss_of_critics, soft_target
from learner.algorithms.sac.networks import Temperature, make_critics
from learner.devices.capabilities import capabilities
from learner.engine.transitions import STATISTICS_INTERVAL
from learner.networks.base import PolicyModule
from learner.networks.modes import exact
from learner.networks.stacks import take_rows
from learner.updates.base import Loss, Outcome, Runtime, Tensors, Transitions
from transport.experience import DESIRED_GOAL, Continuous, ExperienceSpec


class SacUpdate:
    """The policy, two critics with their target network, and the temperature."""

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        self.config: SacConfig = algorithm.config
        policy: PolicyModule = algorithm.policy(spec)  # type: ignore[assignment]
        critics = make_critics(spec, self.config, policy)
        self.policy, self.critics = runtime.to_device(policy), runtime.to_device(critics)
        self.target = frozen_copy(self.critics)
        self.temperature = runtime.to_device(Temperature(self.config.temperature))
        self.optimiser = runtime.optimiser(
            "main",
            self.policy,
            self.critics,
            self.temperature,
            rates={self.temperature: self.config.temperature_rate},
            recordable=True,
        )
        self.modules: dict[str, nn.Module] = {
            "policy": self.policy,
            "critics": self.critics,
            "target": self.target,
            "temperature": self.temperature,
        }
        self.counters: dict[str, float] = {"updates": 0}
        assert isinstance(spec.action, Continuous)
        self.target_entropy = self.config.target_entropy * len(spec.action.low)
        self.group, self.scaling = runtime.group, self._scaling(runtime.device)
        self._followed = list(self.critics.parameters()), list(self.target.parameters())
        self._lerps = capabilities(runtime.device).lerp

    def _scaling(self, device: torch.device) -> TargetScale | None:
        """The running scale by which the critics' values are smaller than their targets, if there is one."""
        self._scale = torch.ones((), device=device)
        if not self.config.normalize_reward:
            return None
        pairs = ((critics.weights[-1], critics.biases[-1]) for critics in (self.critics, self.target))
        self.modules["scaling"] = scaling = TargetScale(self._scale, [tensor for pair in pairs for tensor in pair])
        return scaling

    def update(self, batch: Transitions) -> Outcome:
        observes = self.counters["updates"] % STATISTICS_INTERVAL == 0
        if observes:
            observe(self.policy.body.inputs, batch, self.group)
        outcome = self.optimiser.step(self.loss, batch)
        if observes and self.scaling is not None:
            self.scaling.observe(*(self.group.mean(outcome.metrics[name]) for name in SQUARES))
        self.counters["updates"] += 1
        self.follow()
        return outcome

    def follow(self) -> None:
        """Moves the target network towards the critics by tau."""
        critics, target = self._followed
        lerp_into(target, critics, self.config.tau, self._lerps)

    @torch.no_grad()
    def relabelled(self, batch: Transitions) -> Transitions:
        """The batch with some goals and rewards replaced by hindsight's; draws from the device's global generator."""
        if HINDSIGHT_GOAL not in batch.extras:
            return batch
        goals, rewards = batch.extras[HINDSIGHT_GOAL], batch.extras[HINDSIGHT_REWARD]
        drawn = torch.randint(-1, rewards.shape[1], (len(rewards), 1), device=rewards.device)  # -1: the item's own goal
        other, which = drawn >= 0, drawn.clamp(min=0)
        own = batch.observation[DESIRED_GOAL]  # [B, W, *shape]
        goal = torch.where(other.reshape(-1, *[1] * (own.dim() - 1)), take_rows(goals, which), own)
        reward = torch.where(other, rewards.gather(1, which), batch.reward)  # n_step is 1
        return batch._replace(observation=batch.observation | {DESIRED_GOAL: goal}, reward=reward)

    def loss(self, batch: Transitions) -> Loss:
        """The sum of the three losses, and the larger |td| [b] of the two critics as priorities.

        td and q are in units of the reward; the losses are in those of the running scale, if there is one. An item whose td is
        not finite (for example by an infinite reward) has no gradient for the critics; the metric `ignored` is the fraction of
        such items.
        """
        with exact(batch.reward.device.type):
            batch = self.relabelled(batch)
            losses = self.losses(batch)
        with torch.no_grad():
            priority = losses.td.abs().amax(0) * self._scale
            metrics = {
                "loss": losses.critic.detach(),
                "td": priority.mean(),
                "q": losses.q.mean() * self._scale,
                "temperature": self.temperature.log.exp(),
                "ignored": 1 - losses.finite.float().mean(),
                "policy_loss": losses.policy.detach(),
                "entropy": -losses.log_prob.detach(),
            }
            if self.scaling is not None:
                metrics |= self._squares(batch, losses)
        return Loss(losses.value, metrics, priority)

    def _squares(self, batch: Transitions, losses: Losses) -> Tensors:
        """What the running scale follows: the targets and the rewards in them."""
        reward = batch.reward * self.config.reward_scale
        return_, _ = n_step_return(reward, batch.steps, batch.terminated, self.config.gamma)
        return_ = torch.where(losses.finite, return_, 0.0)
        return squares((losses.q + losses.td) * self._scale, return_)

    def losses(self, batch: Transitions) -> Losses:
        """Eq. 5, 7 and 18 of the paper."""
        step, items = transition(batch, self.config.gamma, self.policy.body.stacked), len(batch.reward)
        rows = {name: torch.cat([rows, step.next_observation[name]]) for name, rows in step.observation.items()}
        seen = self.policy.body.preprocess(rows)  # {name: [2b, …]}: observation_t of all items, then the next observations
        now, following = ({name: rows[which] for name, rows in seen.items()} for which in (slice(items), slice(items, None)))
        policy = self.policy.head_output(self.policy.body.torso_output(seen))
        bounded, log_prob = draw(policy)  # of observation_t, then of the next observation
        temperature = self.temperature.log.exp().detach()
        with torch.no_grad():
            next_value = self.target(following, bounded[-items:]).amin(0)
            target = soft_target(batch, next_value - temperature * log_prob[-items:], self.config, self._scale)
        q = self.critics(now, torch.tanh(batch.action))  # [2, b]
        td = target - q.detach()
        finite = td.isfinite().all(0)
        critic_loss = loss_of_critics(q, target, finite)
        td = torch.where(finite, td, 0.0)
        frozen = {name: parameter.detach() for name, parameter in self.critics.named_parameters()}
        value = functional_call(self.critics, frozen, (now, bounded[:items])).amin(0)
        log_prob = log_prob[:items]
        policy_loss = (temperature * log_prob - value).mean()
        if self.config.imitation:
            mean = policy[:items].chunk(2, 1)[0]
            policy_loss = policy_loss + self.config.imitation * imitation_loss(mean, batch.action, value)
        temperature_loss = -self.temperature.log * (log_prob.mean().detach() + self.target_entropy)
        loss = critic_loss + policy_loss + temperature_loss
        return Losses(loss, critic_loss, policy_loss, td, finite, q.detach(), log_prob.mean())
