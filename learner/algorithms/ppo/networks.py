"""A stochastic policy and a value function, built from the spec alone.

Vectors (all fields that are no images) are dequantised and concatenated. Where there is a goal, fields `achieved_goal` and
`desired_goal` of one shape, their difference desired - achieved goes in as well: that is what has to be done, and a network
needs many samples to find it. All of this is scaled by running statistics that travel with the weights. With them goes the way to
the goal once more, squeezed so that its direction still shows when little of it is left: d / (|d| + s / 8), s being the usual
size of an entry of d.

Without images policy and values are tanh MLPs of their own. With images they share convolutions and one hidden layer.
Initialisation is orthogonal with gain sqrt 2, biases zero; the policy's last layer has gain 0.01, so that the first policy is
near uniform, the value's 1: Andrychowicz et al. 2021 (arXiv:2006.05990, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic import gaussian
from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, LEAST_LOG_STD
from learner.algorithms.ppo.config import PpoConfig
from learner.networks.q_network import Action, Torso, autocasts, evaluating, image_torso, is_image
from learner.parallel.group import ALONE, Group
from transport.experience import Categorical, Column, ExperienceSpec

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
CLIP = 10.0  # normalised inputs are cut off here
NEAR = 1 / 8  # of the usual way to a goal: where its squeezed form has half of its full length
EPSILON = 1e-8  # keeps a feature that never changes from being divided by zero


class Normaliser(nn.Module):
    """Scales features by their running mean and variance; leaves them as they are while it has seen none."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, features: int) -> None:
        """For vectors of so many features."""
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("variance", torch.ones(features))

    def forward(self, values: Tensor) -> Tensor:
        """[..., features] float32 -> the same, within ±10 once there are statistics."""
        scaled = ((values - self.mean) / torch.sqrt(self.variance + EPSILON)).clamp(-CLIP, CLIP)
        return torch.where(self.count > 0, scaled, values)

    @torch.no_grad()
    def observe(self, values: Tensor, group: Group = ALONE) -> None:
        """Takes [N, features] of each process of the group into the statistics, unless that would make them infinite or NaN.

        Chan et al. 1983 (doi:10.1080/00031305.1983.10483115) in shares instead of sums, so that nothing grows.
        """
        assert values.dim() == 2
        number, variance, mean = group.var_mean(values)
        count = self.count + number
        share = number / count
        step = mean - self.mean
        merged = (1 - share) * self.variance + share * variance + share * (1 - share) * step.square()
        sound = (merged.isfinite() & step.isfinite()).all()
        self.mean.copy_(torch.where(sound, self.mean + share * step, self.mean))
        self.variance.copy_(torch.where(sound, merged, self.variance))
        self.count.copy_(torch.where(sound, count, self.count))


class Inputs(nn.Module):
    """Vector fields, dequantised, with the way to the goal where there is one, normalised: {name: [B, stack, *shape]} as they
    rest -> [B, stack * features of a row] float32."""

    def __init__(self, fields: list[Column], stack: int, normalise: bool) -> None:
        """Takes the fields that are vectors, in the order of the spec; there may be none."""
        super().__init__()
        self.fields, shapes = fields, {field.name: field.shape for field in fields}
        self.goal = ACHIEVED in shapes and shapes.get(DESIRED) == shapes[ACHIEVED]
        row = sum(math.prod(field.shape) for field in fields) + (math.prod(shapes[DESIRED]) if self.goal else 0)
        self.normaliser = Normaliser(row) if normalise and row else None
        self.way = math.prod(shapes[DESIRED]) if self.goal and self.normaliser is not None else 0  # entries of what is squeezed
        self.features = stack * (row + self.way)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """See the class."""
        values = self.raw(observation)
        if self.normaliser is None:
            return values.flatten(1)
        scaled = self.normaliser(values)
        if self.way:
            way = values[..., -self.way :]
            size = torch.where(self.normaliser.count > 0, self.normaliser.variance[-self.way :].mean().sqrt(), 1.0)
            scaled = torch.cat([scaled, way / (way.norm(dim=2, keepdim=True) + NEAR * size + EPSILON)], 2)
        return scaled.flatten(1)

    def raw(self, observation: dict[str, Tensor]) -> Tensor:
        """Before normalisation: {name: [B, stack, *shape]} as stored -> [B, stack, features of a row] float32."""
        parts = {}
        for field in self.fields:
            stored = observation[field.name]
            assert stored.shape[2:] == field.shape, f"{field.name}: expected [B, stack, {field.shape}], got {tuple(stored.shape)}"
            values = stored.flatten(2) if stored.dim() > 2 else stored[..., None]
            values = values.float()
            parts[field.name] = values * field.scale + field.offset if field.quantised else values
        if self.goal:
            return torch.cat([*parts.values(), parts[DESIRED] - parts[ACHIEVED]], 2)
        return torch.cat(list(parts.values()), 2)


class ActorCritic(nn.Module):
    """A policy over n actions or over vectors of A reals, and the value of what is observed.

    What leads to the heads of an image network may run in autocast's type; all else, and all that is given back, is float32.
    """

    def __init__(self, spec: ExperienceSpec, images: list[Column], vectors: list[Column], config: PpoConfig) -> None:
        """`images` get convolutions, `vectors` are flattened; together they are the spec's fields."""
        super().__init__()
        self.names = [field.name for field in images]
        self.torsos = nn.ModuleList(image_torso(field, spec.stack, batch_norm=False) for field in images)
        self.inputs = Inputs(vectors, spec.stack, config.normalise_observation)
        features = self.inputs.features + sum(torso.features for torso in self.torsos if isinstance(torso, Torso))
        hidden, layers = config.hidden, config.layers
        self.trunk = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(inplace=True)) if images else nn.Sequential()
        self.categorical = isinstance(spec.action, Categorical)
        outputs = spec.action.n if isinstance(spec.action, Categorical) else len(spec.action.low)
        sizes = [hidden] if images else [features, *[hidden] * layers]
        self.policy, self.value = _mlp([*sizes, outputs]), _mlp([*sizes, 1])
        self.log_std = None if self.categorical else nn.Parameter(torch.full((outputs,), config.log_std))
        _initialise(self.modules(), {self.policy[-1]: 0.01, self.value[-1]: 1.0})

    def forward(self, observation: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """{name: [B, stack, *shape]} as stored -> logits [B, n] or means [B, A] of the unbounded action, and values [B]."""
        hidden = self.hidden(observation)
        with exact(hidden.device.type):
            return self.answer(hidden), self.value(hidden).squeeze(1)

    def hidden(self, observation: dict[str, Tensor]) -> Tensor:
        """{name: [B, stack, *shape]} as stored -> what goes into policy and value, [B, features] float32."""
        if not self.names:
            return self.inputs(observation)  # type: ignore[no-any-return]
        inner = self.trunk[0].weight.dtype  # of an actor's copy it may be a smaller one
        seen = [torso(observation[name], inner) for name, torso in zip(self.names, self.torsos, strict=True)]
        if self.inputs.fields:
            seen.append(self.inputs(observation).to(inner))
        features: Tensor = self.trunk(seen[0] if len(seen) == 1 else torch.cat(seen, 1))
        return features.float()

    def answer(self, hidden: Tensor) -> Tensor:
        """What goes into the policy -> logits [B, n] or means [B, A] of the unbounded action."""
        return self.policy(hidden)  # type: ignore[no-any-return]

    def log_prob_entropy(self, parameters: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Of actions [B] or [B, A] (unbounded) under forward()'s first answer: their log-probability [B], and the entropy [B].

        A bounded action's entropy has no closed form; that before the tanh stands for it.
        """
        if self.log_std is None:
            log = torch.log_softmax(parameters, 1)
            return log.gather(1, action[:, None]).squeeze(1), -(log.exp() * log).sum(1)
        log_std = self.bounded_log_std().expand_as(parameters)
        return gaussian.log_prob(action, parameters, log_std), gaussian.entropy(log_std)

    def bounded_log_std(self) -> Tensor:
        """[A], within the bounds of learner/algorithms/arithmetic/gaussian.py. For continuous actions only."""
        assert self.log_std is not None
        return self.log_std.clamp(LEAST_LOG_STD, GREATEST_LOG_STD)

    @torch.inference_mode()
    def act(self, observation: dict[str, Tensor], greedy: bool = False, generator: torch.Generator | None = None) -> Action:
        """Acts on B observations: draws from the policy, or does what is likeliest under it. The generator lives on the network's
        device. Continuous actions are unbounded: spec.action.bounded() makes the environment's of them."""
        with evaluating(self):
            parameters, value = self(observation)
        if greedy:
            action = parameters.argmax(1) if self.log_std is None else parameters
        elif self.log_std is None:
            action = torch.multinomial(parameters.softmax(1), 1, generator=generator).squeeze(1)
        else:
            noise = torch.randn(parameters.shape, generator=generator, device=parameters.device)
            action = parameters + self.bounded_log_std().exp() * noise
        return Action(action, self.log_prob_entropy(parameters, action)[0], value, None)

    def observe(self, rows: dict[str, Tensor], which: Tensor, group: Group = ALONE) -> None:
        """Takes raw rows {name: [R, *shape]} as stored into the running statistics: those that `which` [N] int64 names, or where
        `which` [R] bool is True; and those of the other processes of the group."""
        if self.inputs.normaliser is not None:
            seen = {field.name: rows[field.name][which][:, None] for field in self.inputs.fields}
            self.inputs.normaliser.observe(self.inputs.raw(seen).squeeze(1), group)


def exact(device_type: str) -> AbstractContextManager[object]:
    """Within, autocast is off."""
    return torch.autocast(device_type, enabled=False) if autocasts(device_type) else nullcontext()


def _mlp(sizes: list[int]) -> nn.Sequential:
    """Linear layers between the sizes, tanh between those."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _initialise(modules: Iterable[nn.Module], gains: dict[nn.Module, float]) -> None:
    """As the head of this file says; `gains` has what differs from sqrt 2."""
    for module in modules:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.orthogonal_(module.weight, gains.get(module, math.sqrt(2)))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def build_actor_critic(spec: ExperienceSpec, config: PpoConfig) -> ActorCritic:
    """Builds the network of a spec, in float32 on the CPU, in training mode.

    `auto` gives images convolutions; `mlp` flattens them and treats them as vectors. Raises ValueError with one line for what
    cannot be built.
    """
    images = [] if config.network == "mlp" else [field for field in spec.fields if is_image(field)]
    if config.network == "nature" and not images:
        raise ValueError("network nature needs an image, and no observation field is one: use network auto or mlp")
    return ActorCritic(spec, images, [field for field in spec.fields if field not in images], config)
