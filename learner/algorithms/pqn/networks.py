"""The Q-network: a body with layer normalisation, and one linear layer.

Layer normalisation takes the place of a target network: it keeps Q-learning stable (Gallici et al. 2024, arXiv:2407.04811,
section 3). Vectors are normalised by running statistics that are published with the weights.

Layers of the built-in torsos are initialised after He et al. 2015 (arXiv:1502.01852, eq. 10: variance 2 / fan-in), the head with
variance 1 / fan-in, biases with zero; a custom torso keeps its own initial weights.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from learner.algorithms.pqn.config import PqnConfig
from learner.networks.base import TORSOS, PolicyModule, make_body, resolve
from transport.experience import Categorical, ExperienceSpec


def q_network(spec: ExperienceSpec, config: PqnConfig) -> PolicyModule:
    """A module that computes Q-values [N, n]; in float32 on the CPU, in training mode. Raises ValueError, in one line."""
    if not isinstance(spec.action, Categorical):
        raise ValueError(
            f"pqn chooses one of n actions, but this environment's action is a vector of {len(spec.action.low)} reals: "
            "choose an algorithm for continuous actions"
        )
    normed = {"width": config.hidden, "layer_norm": config.layer_norm}
    built_in: dict[str, dict[str, Any]] = {"nature": normed, "mlp": normed | {"layers": config.layers}, "linear": {}}
    body = make_body(spec, config.network, config.network_options, built_in, goal=True, normalise=config.normalize_observation)
    last = nn.Linear(body.features, spec.action.n)
    policy = PolicyModule(body, nn.Sequential(last))
    for module in policy.modules() if resolve(spec, config.network) in TORSOS else [last]:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear" if module is last else "relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return policy
