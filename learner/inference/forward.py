"""A network's forward pass on an actor's arrays, in the way that is fastest for the few rows of its step.

A network without convolutions is small beside what it costs to dispatch its layers one by one, so numpy applies them: for so
few rows that takes a tenth of the time. The arrays are the parameters' own memory, so that weights which are adopted are acted
on at once. Large convolutions run in bfloat16 where the processor multiplies it, in half the time, or in int8 if that is asked
for (learner/inference/int8.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from learner.algorithms.base import Algorithm
from learner.algorithms.ppo.networks import ACHIEVED, CLIP, DESIRED, EPSILON, NEAR, ActorCritic
from learner.algorithms.sac.networks import SoftPolicy
from learner.devices.capabilities import precision
from learner.inference import int8 as quantised
from learner.networks.q_network import QNetwork, Torso, large_convolutions
from transport.experience import Columns

Layers = Callable[[np.ndarray], np.ndarray]
CPU = torch.device("cpu")


class Forward(Protocol):
    """What a network answers: {name: [K, stack, *shape]} as stored -> [K, n] float32, as the network's own answer()."""

    def refresh(self) -> None:
        """The network has other weights now."""

    def __call__(self, observation: Columns) -> np.ndarray:
        """See the class."""


class NetworkInference:
    """learner/inference/base.py's Inference by a network on the CPU, whose weights may be changed; refresh() then."""

    def __init__(self, network: QNetwork | ActorCritic | SoftPolicy, precision: str = "float32") -> None:
        """`precision` is that of convolutions, or auto. Raises DeviceError for one that there is not."""
        self.state: Mapping[str, tuple[int, ...]] = {}
        self.network = network
        self._forward = forward(network, precision)
        log_std = network.log_std if isinstance(network, ActorCritic) else None
        self._log_std = None if log_std is None else log_std.detach().numpy()

    def refresh(self) -> None:
        """The network has other weights now."""
        self._forward.refresh()

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        answer = self._forward(observation)
        if self._log_std is not None:
            answer = np.concatenate([answer, np.broadcast_to(self._log_std, answer.shape)], 1)
        return answer, state


def open_inference(algorithm: Algorithm, network: Any, precision: str) -> NetworkInference:
    """Inference by the network of algorithm.policy(). Raises DeviceError for a precision that there is not."""
    return NetworkInference(network, "float32" if algorithm.exact_acting and precision == "auto" else precision)


def forward(network: QNetwork | ActorCritic | SoftPolicy, requested: str = "float32") -> Forward:
    """The forward pass of a network on the CPU, in evaluation mode.

    `requested` is the precision of convolutions, or auto; all else is float32. Raises DeviceError for one that there is not.
    """
    network.eval()
    if isinstance(network, SoftPolicy):
        return _DenseActor(network)
    chosen = _precision(network, requested)
    if isinstance(network, QNetwork) and not any(torso.image for torso in network.torsos):
        return _Dense(network)
    if isinstance(network, ActorCritic) and not network.names:
        return _DenseActor(network)
    if chosen == "int8":
        return _Quantised(network)
    return _Halved(network) if chosen == "bfloat16" else _Exact(network)


def _precision(network: QNetwork | ActorCritic, requested: str) -> str:
    """What convolutions run in."""
    if requested == "int8":
        quantised.check()
        return requested
    return precision(requested, CPU, large_convolutions(network.parameters()))


class _Exact:
    """The network itself."""

    def __init__(self, network: QNetwork | ActorCritic) -> None:
        self._acting = network

    def refresh(self) -> None:
        """Weights are read where the network has them."""

    def __call__(self, observation: Columns) -> np.ndarray:
        with torch.inference_mode():
            hidden = self._acting.hidden({name: torch.from_numpy(rows) for name, rows in observation.items()})
            answer: np.ndarray = self._acting.answer(hidden).numpy()
        return answer


class _Halved(_Exact):
    """A copy in bfloat16, but for the heads: Q-values of actions lie closer to each other than bfloat16 can tell."""

    def __init__(self, network: QNetwork | ActorCritic) -> None:
        super().__init__(copy.deepcopy(network))
        self._network = network
        for module in [*self._acting.torsos.modules(), *self._acting.trunk.modules()]:
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.to(torch.bfloat16)

    def refresh(self) -> None:
        """Makes the copy follow."""
        with torch.no_grad():
            for mine, theirs in zip(_tensors(self._acting), _tensors(self._network), strict=True):
                mine.copy_(theirs)


class _Quantised:
    """The network with torsos and hidden layer in int8."""

    def __init__(self, network: QNetwork | ActorCritic) -> None:
        self._network, self._trunk = network, quantised.QuantisedTrunk(network)

    def refresh(self) -> None:
        """Rounds the weights anew."""
        self._trunk.refresh()

    def __call__(self, observation: Columns) -> np.ndarray:
        with torch.inference_mode():
            hidden = self._trunk({name: torch.from_numpy(rows) for name, rows in observation.items()})
            answer: np.ndarray = self._network.answer(hidden).numpy()
        return answer


def _tensors(network: nn.Module) -> Iterator[torch.Tensor]:
    yield from network.parameters()
    yield from network.buffers()


class _Dense:
    """QNetwork's forward pass in numpy, for networks of linear layers alone. Within it rows are columns, [features, K]:
    W x needs no transposed copy of W."""

    def __init__(self, network: QNetwork) -> None:
        torsos = [torso for torso in network.torsos if isinstance(torso, Torso)]
        self._torsos = [(name, torso, _layers(torso.layers)) for name, torso in zip(network.names, torsos, strict=True)]
        self._trunk = _layers(nn.Sequential(*network.trunk, network.head))
        self._dueling = network.dueling

    def refresh(self) -> None:
        """Weights are read where the network has them."""

    def __call__(self, observation: Columns) -> np.ndarray:
        features = [layers(_dequantised(torso, observation[name])) for name, torso, layers in self._torsos]
        output = self._trunk(features[0] if len(features) == 1 else np.concatenate(features))  # [n or n + 1, K]
        if not self._dueling:
            return output.T
        value, advantage = output[0], output[1:]
        q: np.ndarray = value + advantage - advantage.mean(0)
        return q.T


class _DenseActor:
    """The policy's half of an ActorCritic's forward pass in numpy, for networks without images; or a SoftPolicy's."""

    def __init__(self, network: ActorCritic | SoftPolicy) -> None:
        self._fields, self._goal, self._features = network.inputs.fields, network.inputs.goal, network.inputs.features
        self._way, normaliser = network.inputs.way, network.inputs.normaliser
        self._statistics = None
        if normaliser is not None:
            self._statistics = (normaliser.count.numpy(), normaliser.mean.numpy(), normaliser.variance.numpy())
        self._layers = _layers(network.policy)

    def refresh(self) -> None:
        """Weights are read where the network has them."""

    def __call__(self, observation: Columns) -> np.ndarray:
        parts = {}
        for field in self._fields:
            stored = observation[field.name]
            parts[field.name] = field.decode(stored.reshape(*stored.shape[:2], -1)).astype(np.float32, copy=False)
        if self._goal:
            values = np.concatenate([*parts.values(), parts[DESIRED] - parts[ACHIEVED]], 2)
        else:
            values = np.concatenate(list(parts.values()), 2)  # [K, stack, features of a row]
        near = self._near(values)
        if self._statistics is not None and self._statistics[0] > 0:
            _, mean, variance = self._statistics
            values -= mean
            values /= np.sqrt(variance + np.float32(EPSILON))
            values.clip(-CLIP, CLIP, out=values)
        if near is not None:
            values = np.concatenate([values, near], 2)
        return self._layers(values.reshape(len(values), self._features).T).T

    def _near(self, values: np.ndarray) -> np.ndarray | None:
        """The way to the goal, squeezed, [K, stack, way]; as learner/algorithms/ppo/networks.py has it."""
        if not self._way or self._statistics is None:
            return None
        count, _, variance = self._statistics
        size = np.sqrt(variance[-self._way :].mean()) if count > 0 else np.float32(1.0)
        way = values[..., -self._way :]
        near: np.ndarray = way / (np.linalg.norm(way, axis=2, keepdims=True) + np.float32(NEAR) * size + np.float32(EPSILON))
        return near


def _dequantised(torso: Torso, stored: np.ndarray) -> np.ndarray:
    """[features, K] float32."""
    values = stored.reshape(len(stored), -1).astype(np.float32, copy=torso.scale != 1.0 or torso.offset != 0.0)
    if torso.scale != 1.0:
        values *= np.float32(torso.scale)
    if torso.offset != 0.0:
        values += np.float32(torso.offset)
    return values.T


def _layers(layers: nn.Sequential) -> Layers:
    """Applies linear layers, ReLUs and tanh, one after the other, to [features, K]."""
    steps: list[tuple[np.ndarray, np.ndarray] | Layers] = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            steps.append((layer.weight.detach().numpy(), layer.bias.detach().numpy()[:, None]))
        else:
            steps.append(_IN_PLACE[type(layer)])

    def apply(values: np.ndarray) -> np.ndarray:
        for step in steps:
            if callable(step):
                values = step(values)
            else:
                values = step[0] @ values
                values += step[1]
        return values

    return apply


_IN_PLACE: dict[type[nn.Module], Layers] = {
    nn.ReLU: lambda values: np.maximum(values, 0, out=values),
    nn.Tanh: lambda values: np.tanh(values, out=values),
}
