"""From a configuration to the algorithm that it describes."""

from __future__ import annotations

import torch

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Dqn
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.ppo.update import Ppo
from learner.algorithms.sac.update import Sac
from learner.config import AlgorithmConfig
from transport.experience import ExperienceSpec


def make_algorithm(spec: ExperienceSpec, config: AlgorithmConfig, device: torch.device) -> Dqn | Ppo | Sac:
    """Networks included, on the device. Raises ValueError with one line for a spec that it cannot serve."""
    if isinstance(config, DqnConfig):
        return Dqn(spec, config, device)
    if isinstance(config, PpoConfig):
        return Ppo(spec, config, device)
    return Sac(spec, config, device)
