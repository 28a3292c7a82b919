"""The networks of soft actor-critic: a Gaussian policy, its critics, and the temperature.

Vectors may be normalised by running statistics that are published with the policy's weights; where there is a goal the goal
difference is an input: see learner/networks/inputs.py. The critics read the policy's inputs. Weights and biases of the built-in
torsos and of heads are initialised uniformly within 1 / sqrt(fan-in); a custom torso keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from learner.algorithms.sac.known import NetworkOptions
from learner.networks.base import TORSOS, PolicyModule, make_body, make_torso, resolve, torso_features
from learner.networks.inputs import Tensors
from learner.networks.known.torsos import AUTO, FLAT
from learner.networks.parts import Concat
from transport.experience import Continuous, ExperienceSpec


class Critics(nn.Module):
    """One or more Q-functions of observation and bounded action, computed together. A value is the one output; a subclass may
    compute it from several."""

    def __init__(
        self,
        features: int,
        actions: int,
        hidden: Sequence[int],
        torsos: Sequence[nn.Module],
        outputs: int,
        layer_norm: bool,
        count: int,
    ) -> None:
        """`features` of the concatenated observation, or of each of the `torsos`; `hidden`: widths of the layers after them.
        `outputs`, `count`: of each critic, and of the critics."""
        super().__init__()
        sizes = list(zip([features + actions, *hidden], [*hidden, outputs], strict=True))
        self._normalised, self._count = layer_norm, count
        self.torsos = nn.ModuleList(torsos)
        self.weights = nn.ParameterList(torch.empty(count, outputs, inputs) for inputs, outputs in sizes)
        self.biases = nn.ParameterList(torch.empty(count, 1, outputs) for _, outputs in sizes)
        for (inputs, _), weight, bias in zip(sizes, self.weights, self.biases, strict=True):
            _uniform(inputs, weight, bias)
        self._concat = Concat()

    def forward(self, inputs: Tensors, action: Tensor) -> Tensor:
        """The inputs of the policy's torso, and bounded actions [N, A] -> values [critics, N]."""
        return self.value(self.outputs(inputs, action))

    def value(self, outputs: Tensor) -> Tensor:
        """[critics, N, outputs] -> [critics, N]."""
        return outputs[..., 0]

    def outputs(self, inputs: Tensors, action: Tensor) -> Tensor:
        """As forward() -> [critics, N, outputs]."""
        if len(self.torsos):
            features = torch.stack([torso(inputs) for torso in self.torsos]).float()
        else:
            features = self._concat(inputs).expand(self._count, -1, -1)
        values = torch.cat([features, action.expand(self._count, -1, -1)], 2)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if number:
                values = (layer_norm(values, values.shape[-1:]) if self._normalised else values).relu()
            values = torch.baddbmm(bias, values, weight.transpose(1, 2))
        return values


C = TypeVar("C", bound=Critics)


class Temperature(nn.Module):
    """The entropy coefficient, or another weight of a loss, as a logarithm."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(temperature)))


def gaussian_policy(spec: ExperienceSpec, config: NetworkOptions, algorithm: str) -> PolicyModule:
    """A module that computes means and log-stds [N, 2A] of unbounded actions; in float32 on the CPU. Raises ValueError, in one
    line."""
    if not isinstance(spec.action, Continuous):
        raise ValueError(
            f"{algorithm} chooses vectors of reals, but this environment's actions are discrete: choose dqn or ppo "
            "(--algorithm.name)"
        )
    images = [field.name for field in spec.fields if field.is_image]
    if images and config.body.network == AUTO:
        raise ValueError(
            f"{algorithm} learns from vectors, but the observation has an image ({images[0]}): choose ppo (--algorithm.name), "
            "or a network for images (--algorithm.network)"
        )
    body = make_body(spec, **config.body._asdict())
    policy = PolicyModule(body, nn.Sequential(nn.Linear(body.features, 2 * len(spec.action.low))))
    _initialise(policy if resolve(spec, config.body.network) in TORSOS else policy.head)
    return policy


def make_critics(
    spec: ExperienceSpec,
    config: NetworkOptions,
    policy: PolicyModule,
    kind: type[C] = Critics,  # type: ignore[assignment]
) -> C:
    """Critics with the configured network. The action is an input of the first layer of built-in networks without
    convolutions, otherwise of the first layer after the torso."""
    assert isinstance(spec.action, Continuous)
    actions, shapes = len(spec.action.low), policy.body.inputs.shapes
    form, wanted = (config.outputs, config.layer_norm, config.critics), config.body
    name = resolve(spec, wanted.network)
    if name in FLAT:
        hidden = [config.hidden] * (config.layers if name == "mlp" else 0)
        return kind(sum(map(math.prod, shapes.values())), actions, hidden, (), *form)
    torsos = [make_torso(name, shapes, wanted.options, wanted.built_in) for _ in range(config.critics)]
    for torso in torsos if name in TORSOS else ():
        _initialise(torso)
    return kind(torso_features(torsos[0], shapes), actions, [config.hidden], torsos, *form)


def _initialise(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            assert module.bias is not None
            _uniform(module.weight[0].numel(), module.weight, module.bias)


def _uniform(inputs: int, *tensors: Tensor) -> None:
    for tensor in tensors:
        nn.init.uniform_(tensor, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))
