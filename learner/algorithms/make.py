"""From a configuration to the algorithm that it describes."""

from __future__ import annotations

import torch

from learner.algorithms.dqn import Dqn
from learner.algorithms.ppo import Ppo
from learner.config import AlgorithmConfig, DqnConfig, PpoConfig
from transport.experience import ExperienceSpec


def make_algorithm(spec: ExperienceSpec, config: AlgorithmConfig, device: torch.device) -> Dqn | Ppo:
    """Networks included, on the device. Raises ValueError with one line for a spec that it cannot serve."""
    if isinstance(config, DqnConfig):
        return Dqn(spec, config, device)
    if isinstance(config, PpoConfig):
        return Ppo(spec, config, device)
    raise ValueError(f"there is no algorithm for {type(config).__name__}")
