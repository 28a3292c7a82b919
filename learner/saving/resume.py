"""The contents of a full checkpoint: all state from which a learner resumes exactly.

Tensors by name: `policy/…` and the update's other modules, `optimiser/NAME/…`, `random/…`. Counters are in the metadata.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from torch import Tensor

from learner.devices.capabilities import capabilities, random_state, set_random_state
from learner.updates.base import Update
from learner.updates.runtime import LearnerRuntime
from learner.weights.checkpoint import CheckpointError, Weights, load_into
from transport.metrics import Record

Contents = tuple[dict[str, Tensor], dict[str, str]]


def gather(update: Update, runtime: LearnerRuntime, counters: Record, metadata: dict[str, str]) -> Contents:
    """(tensors, metadata) of a checkpoint: everything that the next update depends on, and the metrics' counters."""
    tensors: dict[str, Tensor] = {}
    for name, module in update.modules.items():
        tensors.update({f"{name}/{key}": value for key, value in module.state_dict().items()})
    tensors.update({f"optimiser/{key}": value for key, value in runtime.state().items()})
    tensors["random/cpu"] = torch.get_rng_state()
    if (state := random_state(runtime.device)) is not None:
        tensors[f"random/{runtime.device.type}"] = state
    return tensors, metadata | {"progress": json.dumps(update.counters), "counters": json.dumps(counters)}


def restore(update: Update, runtime: LearnerRuntime, weights: Weights, metadata: dict[str, str]) -> Record:
    """Restores in place what gather() collected; returns the metrics' counters. Raises CheckpointError."""
    for name, module in update.modules.items():
        # A module that the checkpoint lacks, because an option that needs it was added since, begins as the policy.
        load_into(module, _below(weights, name) or _below(weights, "policy"))
    state = {key: torch.from_numpy(np.array(value)) for key, value in _below(weights, "optimiser").items()}
    try:
        runtime.load_state(state)
        progress = json.loads(metadata.get("progress") or f'{{"updates": {metadata["updates"]}}}')
        update.counters.update({name: type(value)(progress[name]) for name, value in update.counters.items()})
        counters = {str(name): float(value) for name, value in json.loads(metadata["counters"]).items()}
        random = {key: torch.from_numpy(np.array(value)) for key, value in _below(weights, "random").items()}
        torch.set_rng_state(random["cpu"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"a checkpoint of another algorithm or device: {error}") from error
    device = runtime.device
    if capabilities(device).random_state and device.type in random:  # otherwise its generator keeps its state
        set_random_state(device, random[device.type])
    return counters


def _below(weights: Weights, prefix: str) -> Weights:
    """The tensors whose names begin with `prefix/`, by the rest of their names."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in weights.items() if name.startswith(f"{prefix}/")}
