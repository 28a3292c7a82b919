"""Networks, built from the spec alone: a torso per observation field, one trunk, one head.

A network takes observations as they rest (uint8 images, float32 vectors) and dequantises them itself, on its device.
Float fields go in as they are: there is no observation normaliser, so an environment whose values span orders of
magnitude should scale them itself.

Layers that feed a ReLU are initialised after He et al. 2015 (arXiv:1502.01852, eq. 10: variance 2 / fan-in), the head
with variance 1 / fan-in, biases with zero. Random numbers come from torch's global generator: seed it first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from learner.algorithms.dqn.config import DqnConfig
from learner.updates import dense
from transport.experience import Categorical, Column, ExperienceSpec

# To ask torch about another is an error; mps came with later torches. Asked here, since compilers cannot follow the question.
AUTOCAST_TYPES = frozenset(filter(torch.amp.is_autocast_available, ("cpu", "cuda", "xpu", "mps", "privateuseone")))
NATURE_LAYERS = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))  # channels, kernel, stride, padding
SMALL_LAYERS = ((32, 3, 1, 1), (64, 3, 2, 1), (64, 3, 2, 1))  # works down to one pixel
NATURE_MINIMUM = 36  # the least height and width in pixels that the Nature layers can read


class Action(NamedTuple):
    """What a policy answers for B observations; parts an algorithm does not have are None.

    action: [B] int64 or [B, A] float32. log_prob: [B]. value: [B], for DQN the Q-value of the action taken. best_value: [B], the
    greatest Q-value.
    """

    action: Tensor
    log_prob: Tensor | None
    value: Tensor | None
    best_value: Tensor | None


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Within, batch normalisation uses its running statistics and leaves them alone."""
    training = module.training
    if training:
        module.eval()
    try:
        yield
    finally:
        if training:
            module.train()


def autocasts(device_type: str) -> bool:
    """Whether autocast is on for a type of device."""
    return device_type in AUTOCAST_TYPES and torch.is_autocast_enabled(device_type)


def is_image(field: Column) -> bool:
    """Whether a field is a picture, [C, H, W] or [H, W] in uint8. Everything else is a vector, whatever its shape."""
    return field.dtype == "|u1" and len(field.shape) in (2, 3)


class Torso(nn.Module):
    """One field's features: [B, stack, *shape] as stored -> [B, features]. A stack becomes channels, or a longer vector."""

    def __init__(self, field: Column, stack: int, layers: nn.Sequential, features: int, image: bool) -> None:
        """Takes the layers that follow dequantisation."""
        super().__init__()
        self.scale, self.offset, self.shape = field.scale, field.offset, (stack, *field.shape)
        self.layers, self.features, self.image = layers, features, image

    def decode(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Dequantises [B, stack, *shape] into what the layers read: [B, stack * C, H, W], or [B, stack * values].

        In `dtype`; an image under autocast in autocast's, in which all 256 values can be told apart.
        """
        assert stored.shape[1:] == self.shape, f"expected [B, {self.shape}], got {tuple(stored.shape)}"
        if self.image:
            pixels = stored.flatten(1, -3)
            if autocasts(stored.device.type):
                dtype = torch.get_autocast_dtype(stored.device.type)
            values = pixels.to(dtype, memory_format=self.memory_format)
        else:
            values = stored.to(dtype).flatten(1)
        if self.scale != 1.0 or self.offset != 0.0:
            values = values * self.scale + self.offset if self.offset else values * self.scale
        return values

    def forward(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Dequantises, then applies the layers."""
        return self.layers(self.decode(stored, dtype))

    @property
    def memory_format(self) -> torch.memory_format:
        """In which the convolutions' weights lie, so that what they read can lie likewise."""
        first = self.layers[0].weight
        assert isinstance(first, Tensor)
        return torch.channels_last if first.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format


def image_torso(field: Column, stack: int, batch_norm: bool) -> Torso:
    """Convolutions of Mnih et al. 2015 (doi:10.1038/nature14236, Methods), or 3x3 ones where an image is too small.

    With `batch_norm` every convolution is normalised before its ReLU, and has no bias since the normalisation has one.
    """
    height, width = field.shape[-2:]
    channels = stack * (field.shape[0] if len(field.shape) == 3 else 1)
    layers: list[nn.Module] = []
    for outputs, kernel, stride, padding in NATURE_LAYERS if min(height, width) >= NATURE_MINIMUM else SMALL_LAYERS:
        layers.append(nn.Conv2d(channels, outputs, kernel, stride, padding, bias=not batch_norm))
        if batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        layers.append(nn.ReLU(inplace=True))
        height, width = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
        channels = outputs
    return Torso(field, stack, nn.Sequential(*layers, nn.Flatten()), channels * height * width, image=True)


def bare_torso(field: Column, stack: int) -> Torso:
    """Nothing but dequantisation, flattened."""
    return Torso(field, stack, nn.Sequential(), stack * math.prod(field.shape), image=False)


def vector_torso(field: Column, stack: int, hidden: int) -> Torso:
    """One hidden layer over the flattened stack."""
    inputs = stack * math.prod(field.shape)
    return Torso(field, stack, nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(inplace=True)), hidden, image=False)


class QNetwork(nn.Module):
    """Q-values of n actions. Torsos -> concatenated -> one hidden layer, or none -> n Q-values, dueling or plain."""

    def __init__(self, spec: ExperienceSpec, torsos: list[Torso], n: int, hidden: int, dueling: bool) -> None:
        """Takes one torso per field of the spec, in its order; `hidden` 0 leaves the hidden layer out."""
        super().__init__()
        self.names = [field.name for field in spec.fields]
        self.n, self.dueling = n, dueling
        self.torsos = nn.ModuleList(torsos)  # a list, not a dict by name: a field may be called what a module may not
        features = sum(torso.features for torso in torsos)
        self.trunk = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(inplace=True)) if hidden else nn.Sequential()
        self.head = nn.Linear(hidden or features, n + 1 if dueling else n)
        initialise(self)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Takes {name: [B, stack, *shape]} as stored; gives Q-values [B, n] in the parameters' type, also under autocast."""
        return self.values(self.decode(observation))

    def decode(self, observation: dict[str, Tensor]) -> list[Tensor]:
        """Dequantises each field, once for all networks of this shape that are to value it."""
        torsos = [torso for torso in self.torsos if isinstance(torso, Torso)]
        return [torso.decode(observation[name], self._inner) for name, torso in zip(self.names, torsos, strict=True)]

    def values(self, decoded: list[Tensor]) -> Tensor:
        """Q-values [B, n] of what decode() gives."""
        return self.answer(self._hidden(decoded))

    def hidden(self, observation: dict[str, Tensor]) -> Tensor:
        """{name: [B, stack, *shape]} as stored -> what goes into the head, [B, hidden]."""
        return self._hidden(self.decode(observation))

    def _hidden(self, decoded: list[Tensor]) -> Tensor:
        dtype = self.head.weight.dtype
        torsos = [torso for torso in self.torsos if isinstance(torso, Torso)]
        features = [torso.layers(values) for torso, values in zip(torsos, decoded, strict=True)]
        hidden: Tensor = self.trunk(features[0] if len(features) == 1 else torch.cat(features, 1))
        return hidden if self._inner == dtype else hidden.to(dtype)

    def answer(self, hidden: Tensor) -> Tensor:
        """What goes into the head -> Q-values [B, n].

        Dueling: Q = V + A - mean A, Wang et al. 2016 (arXiv:1511.06581, eq. 9). The streams share the hidden layer, which
        halves what travels to the actors.
        """
        output: Tensor = self.head(hidden).to(self.head.weight.dtype)
        if not self.dueling:
            return output
        value, advantage = output[:, :1], output[:, 1:]  # [B, 1], [B, n]
        return value + advantage - advantage.mean(1, keepdim=True)

    def layers(self) -> list[dense.Layer]:
        """The layers of a network of a single vector, as learner/updates/dense.py takes them; none of any other network."""
        torso = self.torsos[0]
        assert isinstance(torso, Torso)
        if torso.image or len(self.torsos) > 1:
            return []
        return [dense.layer(layer) for layer in [*torso.layers, *self.trunk, self.head] if isinstance(layer, nn.Linear)]

    def combination(self) -> Tensor:
        """How Q-values hang on what the head gives, [n, outputs]: Q = outputs times its transpose. See answer()."""
        if not self.dueling:
            return torch.eye(self.n)
        return torch.cat([torch.ones(self.n, 1), torch.eye(self.n) - 1 / self.n], 1)

    @property
    def _inner(self) -> torch.dtype:
        """The type of all but the head: of an actor's copy it may be a smaller one."""
        first = self.torsos[0]
        assert isinstance(first, Torso)
        weight = first.layers[0].weight if len(first.layers) else self.head.weight  # parameters() would walk through everything
        assert isinstance(weight, Tensor)
        return weight.dtype

    @torch.inference_mode()
    def act(
        self, observation: dict[str, Tensor], epsilon: Tensor | float = 0.0, generator: torch.Generator | None = None
    ) -> Action:
        """Acts on B observations: greedily, or uniformly at random with probability epsilon (one, or one per row [B]).

        The generator lives on the network's device. Normalisation uses running statistics, whatever mode the network is in.
        """
        with evaluating(self):
            q = self(observation)  # [B, n]
        best_value, action = q.max(1)
        if isinstance(epsilon, Tensor) or epsilon > 0:
            explore = torch.rand(len(q), generator=generator, device=q.device) < epsilon
            anything = torch.randint(self.n, (len(q),), generator=generator, device=q.device)
            action = torch.where(explore, anything, action)
        return Action(action, None, q.gather(1, action[:, None]).squeeze(1), best_value)


def large_convolutions(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether there are kernels for which bfloat16 pays on a CPU, and is right.

    Over images of one column torch 2.13's bfloat16 gradients of 3x3 ones at stride 2 are garbage (CPU).
    """
    return any(parameter.dim() == 4 and parameter.shape[-1] > 3 for parameter in parameters)


def initialise(network: QNetwork) -> None:
    """Sets every parameter as the head of this file says."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear" if module is network.head else "relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def build_network(spec: ExperienceSpec, config: DqnConfig) -> QNetwork:
    """Builds the network of a spec, in float32 on the CPU, in training mode.

    `auto` gives images convolutions and all else an MLP; `mlp` flattens images too, and so does `linear`, whose Q-values are
    weighted sums of what is observed. Raises ValueError with one line for what cannot be built.
    """
    if not isinstance(spec.action, Categorical):
        dimensions = len(spec.action.low)
        raise ValueError(
            f"dqn picks one of n actions, but this environment's action is a vector of {dimensions} reals: "
            "choose an algorithm for continuous actions"
        )
    if config.network == "linear":
        torsos = [bare_torso(field, spec.stack) for field in spec.fields]
        return QNetwork(spec, torsos, spec.action.n, 0, config.dueling)
    images = [] if config.network == "mlp" else [field for field in spec.fields if is_image(field)]
    if config.network.startswith("nature") and not images:
        raise ValueError(f"network {config.network} needs an image, and no observation field is one: use network auto or mlp")
    torsos = [
        image_torso(field, spec.stack, batch_norm=config.network == "nature_batchnorm")
        if field in images
        else vector_torso(field, spec.stack, config.hidden)
        for field in spec.fields
    ]
    return QNetwork(spec, torsos, spec.action.n, config.hidden, config.dueling)
