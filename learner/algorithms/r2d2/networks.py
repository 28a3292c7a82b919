"""The recurrent Q-network: a body with memory, and a dueling or plain head.

Built-in torsos and the head are initialised as DQN's, the memory as learner/networks/recurrent.py says; a custom torso keeps its
own initial weights.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from learner.algorithms.r2d2.config import R2d2Config
from learner.networks.base import TORSOS, PolicyModule, make_body, resolve
from learner.networks.parts import Dueling
from transport.experience import Categorical, ExperienceSpec


def recurrent_q_network(spec: ExperienceSpec, config: R2d2Config) -> PolicyModule:
    """A module that computes Q-values [N, n]; in float32 on the CPU, in training mode. Raises ValueError, in one line."""
    if not isinstance(spec.action, Categorical):
        raise ValueError(
            f"r2d2 chooses one of n actions, but this environment's action is a vector of {len(spec.action.low)} reals: "
            "choose an algorithm for continuous actions, such as ppo with --algorithm.memory lstm"
        )
    built_in: dict[str, dict[str, Any]] = {
        "mlp": {"width": config.hidden, "layers": 1},
        "nature": {"width": config.hidden},
        "linear": {},
    }
    body = make_body(
        spec, config.network, config.network_options, built_in, memory=config.memory, memory_width=config.memory_width
    )
    outputs = spec.action.n
    head = [nn.Linear(body.features, 1 + outputs), Dueling()] if config.dueling else [nn.Linear(body.features, outputs)]
    policy = PolicyModule(body, nn.Sequential(*head))
    own = resolve(spec, config.network) not in TORSOS
    for module in policy.head.modules() if own else policy.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear" if module is head[0] else "relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return policy
