"""The recurrent Q-network: a body with memory, and a dueling or plain head.

Torso and head are initialised as DQN's, the memory as learner/networks/recurrent.py says.
"""

from __future__ import annotations

from typing import Any

from learner.algorithms.dqn.networks import require_categorical, with_q_head
from learner.algorithms.r2d2.config import R2d2Config
from learner.networks.base import PolicyModule, make_body
from transport.experience import ExperienceSpec


def recurrent_q_network(spec: ExperienceSpec, config: R2d2Config) -> PolicyModule:
    """A module that computes Q-values [N, n]; in float32 on the CPU, in training mode. Raises ValueError, in one line."""
    require_categorical(spec, "r2d2", "choose an algorithm for continuous actions, such as ppo with --algorithm.memory lstm")
    built_in: dict[str, dict[str, Any]] = {
        "mlp": {"width": config.hidden, "layers": 1},
        "nature": {"width": config.hidden},
        "compact": {"width": config.hidden},
        "linear": {},
    }
    body = make_body(
        spec, config.network, config.network_options, built_in, memory=config.memory, memory_width=config.memory_width
    )
    return with_q_head(spec, config.network, body, config.dueling)
