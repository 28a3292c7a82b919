"""From a slot of replay's to tensors on the device."""

from __future__ import annotations

import numpy as np
import torch

from learner.algorithms.base import Batch
from replay.client import SampledBatch
from transport.experience import HINDSIGHT_GOAL, HINDSIGHT_REWARD, ExperienceSpec


def to_device(sampled: SampledBatch, spec: ExperienceSpec, device: torch.device) -> Batch:
    """A slot's arrays on the device, as they rest: copied once, or on a CPU not at all, so keep the slot until they are used."""

    def move(name: str) -> torch.Tensor:
        return torch.from_numpy(sampled.arrays[name]).to(device)

    action = move("action")
    return Batch(
        observation={field.name: move(f"observation/{field.name}") for field in spec.fields},
        observation_index=move("observation_index"),
        next_index=move("next_index"),
        action=action.long() if action.dtype == torch.int32 else action,
        reward=move("reward"),
        steps=move("steps"),
        terminated=move("terminated"),
        # Not every device has float64.
        probability=torch.from_numpy(sampled.arrays["probability"].astype(np.float32)).to(device),
        population=sampled.population,
        hindsight_goal=move(HINDSIGHT_GOAL) if spec.hindsight else None,
        hindsight_reward=move(HINDSIGHT_REWARD) if spec.hindsight else None,
    )
