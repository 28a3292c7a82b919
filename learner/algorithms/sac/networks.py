"""The networks of soft actor-critic, built from the spec alone: a Gaussian policy, and critics in pairs.

All fields are vectors; what goes in is what goes into an actor-critic without running statistics
(learner/algorithms/ppo/networks.py), the
way to the goal included. Weights and biases begin uniform within 1 / sqrt(fan-in).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, LEAST_LOG_STD
from learner.algorithms.ppo.networks import Inputs
from learner.algorithms.sac.config import SacConfig
from learner.networks.q_network import is_image
from learner.updates import dense
from learner.updates.dense import Layer
from transport.experience import Categorical, ExperienceSpec

PAIR = 2  # critics; the lesser of their values is believed


class SoftPolicy(nn.Module):
    """A Gaussian over unbounded actions, its mean and deviation dependent on what is observed."""

    def __init__(self, spec: ExperienceSpec, actions: int, config: SacConfig) -> None:
        """For vectors of so many actions."""
        super().__init__()
        self.actions = actions
        self.inputs = Inputs(list(spec.fields), spec.stack, normalise=False)
        layers: list[nn.Module] = []
        for inputs, outputs in _sizes(self.inputs.features, config, 2 * actions):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
        self.policy = nn.Sequential(*layers[:-1])
        for layer in self.policy:
            if isinstance(layer, nn.Linear):
                _uniform(layer.in_features, layer.weight, layer.bias)

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """{name: [B, stack, *shape]} as stored -> mean and log of the deviation, [B, A] each."""
        mean, log_std = self.policy(self.inputs(observation)).split(self.actions, 1)
        return mean, log_std.clamp(LEAST_LOG_STD, GREATEST_LOG_STD)

    def layers(self) -> list[Layer]:
        """The layers of one network, as learner/updates/dense.py takes them: the parameters' own memory."""
        return [dense.layer(layer) for layer in self.policy if isinstance(layer, nn.Linear)]


class Critics(nn.Module):
    """Two networks side by side, of what is observed and the bounded action: their values of the action."""

    def __init__(self, features: int, actions: int, config: SacConfig) -> None:
        """For vectors of so many features and actions."""
        super().__init__()
        sizes = _sizes(features + actions, config, 1)
        self.weights = nn.ParameterList(torch.empty(PAIR, outputs, inputs) for inputs, outputs in sizes)
        self.biases = nn.ParameterList(torch.empty(PAIR, 1, outputs) for _, outputs in sizes)
        for (inputs, _), weight, bias in zip(sizes, self.weights, self.biases, strict=True):
            _uniform(inputs, weight, bias)

    def layers(self) -> list[Layer]:
        """The layers of both, as learner/updates/dense.py takes them: the parameters' own memory."""
        return [(weight.detach(), bias.detach()) for weight, bias in zip(self.weights, self.biases, strict=True)]


class Temperature(nn.Module):
    """The worth of entropy, as a logarithm."""

    def __init__(self, temperature: float) -> None:
        """Begins at `temperature`."""
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(temperature)))


def _sizes(features: int, config: SacConfig, outputs: int) -> list[tuple[int, int]]:
    """Inputs and outputs of each layer."""
    widths = [features, *[config.hidden] * config.layers, outputs]
    return list(zip(widths[:-1], widths[1:], strict=True))


def _uniform(inputs: int, *tensors: Tensor) -> None:
    for tensor in tensors:
        nn.init.uniform_(tensor, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))


def build_soft_policy(spec: ExperienceSpec, config: SacConfig) -> SoftPolicy:
    """Builds the policy of a spec, in float32 on the CPU. Raises ValueError with one line for what cannot be built."""
    if isinstance(spec.action, Categorical):
        raise ValueError(
            f"sac chooses vectors of reals, but this environment's action is one of {spec.action.n}: choose dqn or ppo "
            "(--algorithm.name)"
        )
    images = [field.name for field in spec.fields if is_image(field)]
    if images:
        raise ValueError(
            f"sac learns from vectors, but the observation has an image ({images[0]}): choose ppo (--algorithm.name)"
        )
    return SoftPolicy(spec, len(spec.action.low), config)
