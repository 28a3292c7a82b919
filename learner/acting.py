"""What actors run: a network's choice among actions, on arrays.

A network without convolutions is small beside what it costs to dispatch its layers one by one, so numpy applies them: for the
few rows of an actor's step that takes a tenth of the time. The arrays are the parameters' own memory, so that weights which
are adopted are acted on at once. Large convolutions run in bfloat16 where the processor multiplies it, in half the time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from learner.devices import precision
from learner.networks import QNetwork, Torso, large_convolutions
from transport.experience import Columns

Layers = Callable[[np.ndarray], np.ndarray]


class Acted(NamedTuple):
    """What was decided for K observations: action [K] int64, its Q-value [K] float32, and the greatest Q-value [K] float32."""

    action: np.ndarray
    value: np.ndarray
    best_value: np.ndarray


class Policy:
    """Acts by a network on the CPU, greedily or at random with probability epsilon."""

    def __init__(self, network: QNetwork, requested: str = "float32") -> None:
        """Takes the network whose weights are followed; puts it into evaluation mode.

        `requested` is the precision of convolutions, or auto. Raises DeviceError for one that there is not.
        """
        self._network = self._acting = network.eval()
        self._dense = None if any(torso.image for torso in network.torsos) else _Dense(network)
        chosen = precision(requested, torch.device("cpu"), large_convolutions(network.parameters()))
        if chosen == "bfloat16" and self._dense is None:
            self._acting = _halved(network)
        self._random = np.random.default_rng()

    def refresh(self) -> None:
        """The network has other weights now."""
        if self._acting is not self._network:
            with torch.no_grad():
                for mine, theirs in zip(_tensors(self._acting), _tensors(self._network), strict=True):
                    mine.copy_(theirs)

    def seed(self, seed: int) -> None:
        """Begins the stream of random choices anew."""
        self._random = np.random.default_rng(seed)

    def act(self, observation: Columns, epsilon: np.ndarray | float) -> Acted:
        """Acts on observation[name] [K, stack, *shape] as stored; epsilon is one, or one per row [K]."""
        q = self.q_values(observation)  # [K, n]
        action, best_value = q.argmax(1), q.max(1)
        explore = np.flatnonzero(self._random.random(len(q), np.float32) < epsilon)
        if not len(explore):
            return Acted(action, best_value, best_value)
        action[explore] = self._random.integers(q.shape[1], size=len(explore))
        value = best_value.copy()
        value[explore] = q[explore, action[explore]]
        return Acted(action, value, best_value)

    def q_values(self, observation: Columns) -> np.ndarray:
        """[K, n] float32."""
        if self._dense is not None:
            return self._dense(observation)
        with torch.inference_mode():
            q: np.ndarray = self._acting({name: torch.from_numpy(rows) for name, rows in observation.items()}).numpy()
        return q


def _halved(network: QNetwork) -> QNetwork:
    """A copy in bfloat16, but for the head: Q-values of actions lie closer to each other than bfloat16 can tell."""
    half = copy.deepcopy(network)
    for module in [*half.torsos.modules(), *half.trunk.modules()]:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.to(torch.bfloat16)
    return half


def _tensors(network: QNetwork) -> Iterator[torch.Tensor]:
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

    def __call__(self, observation: Columns) -> np.ndarray:
        features = [layers(_dequantised(torso, observation[name])) for name, torso, layers in self._torsos]
        output = self._trunk(features[0] if len(features) == 1 else np.concatenate(features))  # [n or n + 1, K]
        if not self._dueling:
            return output.T
        value, advantage = output[0], output[1:]
        q: np.ndarray = value + advantage - advantage.mean(0)
        return q.T


def _dequantised(torso: Torso, stored: np.ndarray) -> np.ndarray:
    """[features, K] float32."""
    values = stored.reshape(len(stored), -1).astype(np.float32, copy=torso.scale != 1.0 or torso.offset != 0.0)
    if torso.scale != 1.0:
        values *= np.float32(torso.scale)
    if torso.offset != 0.0:
        values += np.float32(torso.offset)
    return values.T


def _layers(layers: nn.Sequential) -> Layers:
    """Applies linear layers and ReLUs, one after the other, to [features, K]."""
    steps: list[tuple[np.ndarray, np.ndarray] | None] = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            steps.append((layer.weight.detach().numpy(), layer.bias.detach().numpy()[:, None]))
        else:
            assert isinstance(layer, nn.ReLU), f"{type(layer).__name__} has no form in numpy"
            steps.append(None)

    def apply(values: np.ndarray) -> np.ndarray:
        for step in steps:
            if step is None:
                np.maximum(values, 0, out=values)
            else:
                values = step[0] @ values
                values += step[1]
        return values

    return apply
