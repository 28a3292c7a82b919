"""The stochastic policy and the value function.

Vectors are normalised by running statistics that are published with the policy's weights, and where there is a goal the goal
difference is an input: see learner/networks/inputs.py. Without images policy and value function have separate torsos; with images
or memory, or where `shared` says so, the value function is a head on the policy's body. Only the policy's weights are published.

Built-in torsos and heads are initialised orthogonally with gain sqrt 2, biases with zero; the policy's last layer has gain 0.01,
so that the initial policy is nearly uniform, the value function's 1: Andrychowicz et al. 2021 (arXiv:2006.05990, section 3.2). A
custom torso keeps its own initial weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic import gaussian
from learner.algorithms.arithmetic.masks import FORBIDDEN
from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, LEAST_LOG_STD
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.ppo.known import choices
from learner.networks.base import TORSOS, PolicyModule, make_body, make_torso, resolve, torso_features
from learner.networks.inputs import Tensors
from learner.networks.modes import exact
from learner.networks.parts import LogStd, Rescale
from transport.experience import Continuous, ExperienceSpec


class ValueFunction(nn.Module):
    """A head on the policy's features, or on those of its own torso, which reads the same inputs as the policy's."""

    def __init__(self, features: int, torso: nn.Module | None, rescales: bool = False) -> None:
        """`rescales`: values have a running scale."""
        super().__init__()
        self.torso = torso
        self.head = nn.Linear(features, 1)
        self.rescale = Rescale() if rescales else None

    def forward(self, inputs: Tensors, features: Tensor) -> Tensor:
        """The inputs of the policy's torso, and its features [N, features] -> values [N]."""
        if self.torso is not None:
            features = self.torso(inputs)
        value: Tensor = self.head(features.float()).squeeze(1)
        return value if self.rescale is None else self.rescale(value)


def actor_critic(spec: ExperienceSpec, config: PpoConfig) -> tuple[PolicyModule, ValueFunction]:
    """The policy, whose output is logits [N, n], those of several choices side by side, or means and log-stds [N, 2A] of the
    unbounded action, and the value function; in float32 on the CPU, in training mode. Raises ValueError, in one line."""
    if config.log_std_init < config.log_std_min:
        raise ValueError(f"algorithm.log_std_init {config.log_std_init:g} is below algorithm.log_std_min {config.log_std_min:g}")
    wanted = config.body
    body = make_body(spec, **wanted._asdict())
    continuous = isinstance(spec.action, Continuous)
    outputs = len(spec.action.low) if isinstance(spec.action, Continuous) else sum(choices(spec))
    last: list[nn.Module] = [LogStd(outputs, config.log_std_init, config.log_std_min, GREATEST_LOG_STD)] if continuous else []
    policy = PolicyModule(body, nn.Sequential(nn.Linear(body.features, outputs), *last))
    if body.inputs.images or body.memory or config.shared:
        value = ValueFunction(body.features, None, config.normalize_reward)
    else:
        torso = make_torso(resolve(spec, config.network), body.inputs.shapes, wanted.options, wanted.built_in)
        value = ValueFunction(torso_features(torso, body.inputs.shapes), torso, config.normalize_reward)
    own = resolve(spec, config.network) not in TORSOS
    for module in _initialised(policy, value, own):
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            gain = 0.01 if module is policy.head[0] else 1.0 if module is value.head else math.sqrt(2)  # type: ignore[index]
            nn.init.orthogonal_(module.weight, gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return policy, value


def _initialised(policy: PolicyModule, value: ValueFunction, own: bool) -> Iterator[nn.Module]:
    """The modules to initialise; `own`: the torso is a custom one, which keeps its weights."""
    for module in (policy.head, value.head) if own else (policy, value):
        yield from module.modules()


def keep_log_std_in_bounds(policy: PolicyModule) -> None:
    """To be called after each optimiser step. A policy for discrete actions has no log-std."""
    for log_std in list(policy.head)[1:]:  # type: ignore[call-overload]
        log_std.keep_in_bounds()


def policy_and_value(policy: PolicyModule, value: ValueFunction, observation: Tensors) -> tuple[Tensor, Tensor]:
    """{name: [N, stack, *shape]} as stored -> the policy's output [N, outputs], and values [N], float32.

    Under autocast only the body of a network with images has a lower precision; heads and other networks stay in float32.
    """
    device = next(iter(observation.values())).device.type
    with nullcontext() if policy.body.inputs.images else exact(device):
        inputs = policy.body.preprocess(observation)
        features = policy.body.torso_output(inputs)
        with exact(device):
            return policy.head_output(features.float()), value(inputs, features)


def unrolled_policy_and_value(
    policy: PolicyModule, value: ValueFunction, observation: Tensors, first: Tensor, state: Tensors
) -> tuple[Tensor, Tensor]:
    """As policy_and_value(), with memory: {name: [T, B, stack, *shape]} as stored, `first` bool [T, B], where an episode begins,
    and the state before, {name: [B, width]} -> the policy's output [T, B, outputs], and values [T, B], float32."""
    device = first.device.type
    with nullcontext() if policy.body.inputs.images else exact(device):
        features = policy.body.unroll(observation, first, state)
        with exact(device):
            rows = features.flatten(0, 1).float()
            return policy.head_output(rows).unflatten(0, first.shape), value({}, rows).unflatten(0, first.shape)


def log_prob_entropy(output: Tensor, action: Tensor, sizes: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] of actions [N], of [N, D] with `sizes` [D] values each, or of [N, A] unbounded, and entropies [N],
    given the policy's output. Choices are independent, given the observation: their logarithms add up.

    The entropy of a bounded action has no closed form; that before the tanh is used instead.
    """
    if action.dim() == 1:
        log = torch.log_softmax(output, 1)
        return log.gather(1, action[:, None]).squeeze(1), -(log.exp() * log).sum(1)
    if not action.is_floating_point():
        most = max(sizes)
        padded = [nn.functional.pad(part, (0, most - part.shape[1]), value=FORBIDDEN) for part in output.split(sizes, 1)]
        log = torch.log_softmax(torch.stack(padded, 1), 2)  # [N, D, most]
        return log.gather(2, action[:, :, None]).sum((1, 2)), -(log.exp() * log).sum((1, 2))
    mean, log_std = output.chunk(2, 1)
    log_std = log_std.clamp(LEAST_LOG_STD, GREATEST_LOG_STD)
    return gaussian.log_prob(action, mean, log_std), gaussian.entropy(log_std)
