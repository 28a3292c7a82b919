"""Deep Q-learning: n-step, double, dueling, prioritised (the parts of Rainbow, arXiv:1710.02298, that matter most)."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.functional import huber_loss

from learner.algorithms.arithmetic.returns import double_q_target, importance_weights
from learner.algorithms.arithmetic.transitions import Transition, transition
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import combination, layers, q_network
from learner.devices.capabilities import capabilities
from learner.networks.base import PolicyModule
from learner.networks.modes import autocasts, evaluating
from learner.networks.parts import Concat
from learner.updates import dense
from learner.updates.base import Batch
from transport.experience import ExperienceSpec


class Dqn:
    """An online network, the target network that values its choices, and the loss between them.

    Only the loss's own forward pass uses (and updates) batch statistics; acting, choosing and valuing use running ones.
    """

    def __init__(self, spec: ExperienceSpec, config: DqnConfig, device: torch.device) -> None:
        """Builds both networks on the device. Raises ValueError with one line for a spec that DQN cannot serve."""
        self.config = config
        memory_format = torch.channels_last if capabilities(device).channels_last else torch.contiguous_format
        self.network: PolicyModule = q_network(spec, config).to(device, memory_format=memory_format)  # type: ignore[call-overload]
        self.target = copy.deepcopy(self.network).eval().requires_grad_(False)
        self._parameters = list(self.network.parameters())
        self._normalises = any(isinstance(module, torch.nn.BatchNorm2d) for module in self.network.modules())
        # Views of the parameters, which never move; none where there are convolutions or several fields.
        self._layers, self._valuing = layers(self.network), layers(self.target)
        self._combination, self._concat = combination(self.network).to(device), Concat()
        self.updates = 0

    def parameters(self) -> list[Parameter]:
        """The online network's parameters."""
        return self._parameters

    def rates(self) -> dict[Parameter, float]:
        """All learn at the configured rate."""
        return {}

    def policy(self) -> PolicyModule:
        """The online network."""
        return self.network

    def counters(self) -> dict[str, float]:
        """Updates decide when the target follows."""
        return {"updates": self.updates}

    def load_counters(self, counters: dict[str, float]) -> None:
        """Takes up what counters() gave. Raises KeyError if something is missing."""
        self.updates = int(counters["updates"])

    def modules(self) -> dict[str, Module]:
        """The online network and the target."""
        return {"policy": self.network, "target": self.target}

    def importance(self, batch: Batch) -> Tensor:
        """Weights [B], up to a factor, that undo prioritised sampling's bias as far as the configuration asks."""
        return importance_weights(batch.probability, self.config.importance_exponent)

    def loss(self, micro_batch: Batch, weight: Tensor) -> tuple[Tensor | dense.Known, Tensor, dict[str, Tensor]]:
        """The weighted mean Huber loss, |td| [b] as priorities, and the metrics loss, td (mean |td|), q (mean Q), ignored.

        An item whose td is not finite (an infinite reward, say) teaches nothing and gets priority 0, so that it is not drawn
        again; `ignored` is the fraction of such items.
        """
        reward = micro_batch.reward.clamp(-1.0, 1.0) if self.config.clip_rewards else micro_batch.reward
        if self.config.reward_scale != 1.0:
            reward = reward * self.config.reward_scale
        step = transition(micro_batch._replace(reward=reward), self.config.gamma)
        if self._layers and not torch.compiler.is_compiling() and not autocasts(weight.device.type):
            return self._loss_by_hand(step, weight)
        # First the pass with gradients: autocast caches the parameters it converts, and a copy made under no_grad has none.
        q = self.network(step.observation).gather(1, micro_batch.action[:, None]).squeeze(1)  # [b]
        with torch.no_grad():
            following = self.network.body.read(step.next_observation)
            valuing = self.target.answer(self.target.body.look(following))  # [b, n]
            selecting = valuing
            if self.config.double:
                with evaluating(self.network) if self._normalises else nullcontext():
                    selecting = self.network.answer(self.network.body.look(following))
            td, sound = _error(double_q_target(step.reward, step.discount, selecting, valuing), q)
            priority = td.abs()
        loss = (weight * huber_loss(q, q.detach() + td, reduction="none")).mean()
        return loss, priority, _metrics(loss, priority, q, sound)

    @torch.no_grad()
    def _loss_by_hand(self, step: Transition, weight: Tensor) -> tuple[dense.Known | Tensor, Tensor, dict[str, Tensor]]:
        """The same for a network of one vector, with gradients that are known already."""
        read, concat = self.network.body.read, self._concat
        now, following = (concat(read(rows))[None] for rows in (step.observation, step.next_observation))
        seen = dense.forward(self._layers, now)
        by_output = self._combination.index_select(0, step.action)
        q = (seen[-1][0] * by_output).sum(1)  # [b]
        valuing = dense.forward(self._valuing, following)[-1][0] @ self._combination.T  # [b, n]
        selecting = valuing
        if self.config.double:
            selecting = dense.forward(self._layers, following)[-1][0] @ self._combination.T
        td, sound = _error(double_q_target(step.reward, step.discount, selecting, valuing), q)
        slope = weight * td.clamp(-1.0, 1.0) / -len(td)  # of the weighted mean Huber loss by each q
        found = dense.gradients(dense.errors(self._layers, seen, (slope[:, None] * by_output)[None]), seen, slice(None))
        loss = (weight * huber_loss(q, q + td, reduction="none")).mean()
        gradients = [part for one, other in found for part in (one[0], other[0, 0])]
        priority = td.abs()
        return dense.known(loss, gradients, self.parameters(), seen), priority, _metrics(loss, priority, q, sound)

    def after_update(self) -> None:
        """Counts the update, and every target_period updates copies the online network into the target."""
        self.updates += 1
        if self.updates % self.config.target_period == 0:
            self.synchronise_target()

    def synchronise_target(self) -> None:
        """Copies the online network into the target, running statistics of batch normalisation included."""
        with torch.no_grad():
            online = [*self.network.parameters(), *self.network.buffers()]
            for theirs, ours in zip([*self.target.parameters(), *self.target.buffers()], online, strict=True):
                theirs.copy_(ours)


def _error(goal: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """td = goal - q [b], 0 where it is not finite; and whether it is [b]."""
    td = goal - q
    sound = td.isfinite()
    return torch.where(sound, td, 0.0), sound


def _metrics(loss: Tensor, priority: Tensor, q: Tensor, sound: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"loss": loss.detach(), "td": priority.mean(), "q": q.mean(), "ignored": 1 - sound.float().mean()}
