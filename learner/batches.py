"""From a slot of replay's to tensors on the device."""

from __future__ import annotations

import numpy as np
import torch

from learner.algorithms.base import Batch
from replay.client import SampledBatch
from transport.experience import ExperienceSpec


def to_device(sampled: SampledBatch, spec: ExperienceSpec, device: torch.device) -> Batch:
    """Copies a slot's arrays to the device, as they rest; afterwards the slot may be released."""

    def move(name: str) -> torch.Tensor:
        array = torch.from_numpy(sampled.arrays[name])
        return array.clone() if device.type == "cpu" else array.to(device)

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
    )
