"""Q-values of n actions: a body, and a head, dueling or plain.

There is no observation normaliser, so an environment whose values span orders of magnitude should scale them itself. The built-in
torsos' layers are initialised after He et al. 2015 (arXiv:1502.01852, eq. 10: variance 2 / fan-in), the head with variance
1 / fan-in, biases with zero; a torso of one's own keeps the weights that it comes with. Random numbers come from torch's global
generator: seed it first.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learner.algorithms.dqn.config import DqnConfig
from learner.networks.base import TORSOS, Body, PolicyModule, make_body, resolve
from learner.networks.parts import Dueling
from learner.updates import dense
from transport.experience import Categorical, ExperienceSpec

HEADS = ([nn.Linear], [nn.Linear, Dueling])


def q_body(spec: ExperienceSpec, config: DqnConfig) -> Body:
    """What Q-values, or their distributions, are computed from. Raises ValueError with one line."""
    if not isinstance(spec.action, Categorical):
        raise ValueError(
            f"dqn picks one of n actions, but this environment's action is a vector of {len(spec.action.low)} reals: "
            "choose an algorithm for continuous actions"
        )
    layered = {"width": config.hidden, "apart": True}
    built_in = {"mlp": layered, "linear": {}, "nature": layered, "nature_batchnorm": layered}
    return make_body(spec, config.network, config.network_options, built_in)


def q_network(spec: ExperienceSpec, config: DqnConfig) -> PolicyModule:
    """Q-values [N, n] of what is observed; in float32 on the CPU, in training mode. Raises ValueError with one line."""
    body = q_body(spec, config)
    assert isinstance(spec.action, Categorical)
    n = spec.action.n
    head = (
        nn.Sequential(nn.Linear(body.features, n + 1), Dueling())
        if config.dueling
        else nn.Sequential(nn.Linear(body.features, n))
    )
    policy = PolicyModule(body, head)
    for module in policy.modules() if resolve(spec, config.network) in TORSOS else head:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear" if module is head[0] else "relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return policy


def layers(policy: PolicyModule) -> list[dense.Layer]:
    """The layers of a network that is nothing but linear units and ReLUs, as learner/updates/dense.py takes them; else none."""
    if not isinstance(policy.head, nn.Sequential) or [type(part) for part in policy.head] not in HEADS:
        return []
    return dense.layers([policy.body.torso, _last(policy)])


def combination(policy: PolicyModule) -> Tensor:
    """How Q-values hang on what the head's layer gives, [n, outputs]: Q = outputs times its transpose. See Dueling."""
    outputs = _last(policy).out_features
    assert isinstance(policy.head, nn.Sequential)
    if len(policy.head) == 1:
        return torch.eye(outputs)
    n = outputs - 1
    return torch.cat([torch.ones(n, 1), torch.eye(n) - 1 / n], 1)


def _last(policy: PolicyModule) -> nn.Linear:
    assert isinstance(policy.head, nn.Sequential)
    last = policy.head[0]
    assert isinstance(last, nn.Linear)
    return last
