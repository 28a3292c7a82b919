"""Fast path: DQN's loss with hand-written gradients, for networks of linear layers and ReLUs. Equals `DqnUpdate.plain`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.returns import td_error
from learner.algorithms.arithmetic.transitions import Transition
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.loss import TdLoss, double_q_target, weighted_huber
from learner.algorithms.dqn.networks import last_rescale
from learner.networks.base import PolicyModule
from learner.networks.parts import Concat, Dueling, Rescale
from learner.updates import dense
from transport.experience import ExperienceSpec

HEADS = ([nn.Linear], [nn.Linear, Dueling], [nn.Linear, Rescale], [nn.Linear, Dueling, Rescale])


class LossByHand:
    """Called as `DqnUpdate.plain`."""

    @classmethod
    def of(cls, policy: PolicyModule, target: PolicyModule, spec: ExperienceSpec, config: DqnConfig) -> LossByHand | None:
        """None for networks that have other parts."""
        return cls(policy, target, spec, config) if layers(policy) else None

    def __init__(self, policy: PolicyModule, target: PolicyModule, spec: ExperienceSpec, config: DqnConfig) -> None:
        self._spec = spec
        self._read, self._concat, self._double = policy.body.preprocess, Concat(), config.double
        self._parameters = list(policy.parameters())
        self._layers, self._valuing = layers(policy), layers(target)  # views of the parameters, whose memory never moves
        self._combination = combination(policy, config.dueling).to(self._parameters[0].device)
        rescale = last_rescale(policy)
        self._scale = None if rescale is None else rescale.scale

    @torch.no_grad()
    def __call__(self, step: Transition, weight: Tensor) -> TdLoss:
        observations = step.observation, step.next_observation
        now, following = (self._concat(self._read(rows))[None] for rows in observations)
        activations = dense.forward(self._layers, now)
        by_output = self._combination.index_select(0, step.action)
        q = self._scaled((activations[-1][0] * by_output).sum(1))  # [b]
        td, finite = td_error(self._target(step, following), q)
        error = td if self._scale is None else td / self._scale
        slope = weight * error.clamp(-1.0, 1.0) / -len(td)  # derivative of the weighted mean Huber loss by each q / scale
        errors = dense.errors(self._layers, activations, (slope[:, None] * by_output)[None])
        loss = weighted_huber(q, td, weight, self._scale)
        by_layer = dense.gradients(errors, activations, slice(None))
        gradients = [part for weight, bias in by_layer for part in (weight[0], bias[0, 0])]
        return TdLoss(dense.known_gradients(loss, gradients, self._parameters, activations), q, td, finite)

    def _target(self, step: Transition, following: Tensor) -> Tensor:
        valuing = selecting = self._values(self._valuing, following)
        if self._double:
            selecting = self._values(self._layers, following)
        return double_q_target(self._spec, step, selecting, valuing)

    def _values(self, layers: list[dense.Layer], rows: Tensor) -> Tensor:
        """Q-values [N, n] of the inputs [1, N, …]."""
        return self._scaled(dense.forward(layers, rows)[-1][0] @ self._combination.T)

    def _scaled(self, values: Tensor) -> Tensor:
        return values if self._scale is None else values * self._scale


def layers(policy: PolicyModule) -> list[dense.Layer]:
    """The layers of a network of only linear layers and ReLUs; empty for other networks."""
    if policy.body.memory is not None:
        return []
    if not isinstance(policy.head, nn.Sequential) or [type(part) for part in policy.head] not in HEADS:
        return []
    return dense.layers([policy.body.torso, _last(policy)])


def combination(policy: PolicyModule, dueling: bool) -> Tensor:
    """The matrix C [n, outputs] with Q = outputs @ C.T, for the outputs of the head's linear layer. See Dueling."""
    outputs = _last(policy).out_features
    if not dueling:
        return torch.eye(outputs)
    n = outputs - 1
    return torch.cat([torch.ones(n, 1), torch.eye(n) - 1 / n], 1)


def _last(policy: PolicyModule) -> nn.Linear:
    assert isinstance(policy.head, nn.Sequential)
    last = policy.head[0]
    assert isinstance(last, nn.Linear)
    return last
