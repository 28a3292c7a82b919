"""The Q-network: a body with layer normalisation, and one linear layer.

Layer normalisation takes the place of a target network: it keeps Q-learning stable (Gallici et al. 2024, arXiv:2407.04811,
section 3). Vectors are normalised by running statistics that are published with the weights. Weights are initialised as DQN's.
"""

from __future__ import annotations

from typing import Any

from learner.algorithms.dqn.networks import require_categorical, with_q_head
from learner.algorithms.pqn.config import PqnConfig
from learner.networks.base import PolicyModule, make_body
from transport.experience import ExperienceSpec


def q_network(spec: ExperienceSpec, config: PqnConfig) -> PolicyModule:
    """A module that computes Q-values [N, n]; in float32 on the CPU, in training mode. Raises ValueError, in one line."""
    require_categorical(spec, "pqn", "choose an algorithm for continuous actions")
    normed = {"width": config.hidden, "layer_norm": config.layer_norm}
    built_in: dict[str, dict[str, Any]] = {
        "nature": normed | {"filters": config.filters},
        "compact": normed | {"filters": config.filters},
        "mlp": normed | {"layers": config.layers},
        "linear": {},
    }
    body = make_body(spec, config.network, config.network_options, built_in, goal=True, normalise=config.normalize_observation)
    return with_q_head(spec, config.network, body)
