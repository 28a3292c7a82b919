"""The contents of a full checkpoint: all state from which a learner resumes exactly.

Tensors by name: `policy/…` and the update's other modules, `optimiser/NAME/…`, `random/…`. Counters are in the metadata.
"""

from __future__ import annotations

import json
from typing import Any

from learner.updates.base import Backend, Update
from learner.weights.checkpoint import CheckpointError, Weights, load_into
from transport.metrics import Record

Contents = tuple[dict[str, Any], dict[str, str]]  # tensors or arrays, and metadata


def gather(update: Update, runtime: Backend, counters: Record, metadata: dict[str, str]) -> Contents:
    """(tensors, metadata) of a checkpoint: everything that the next update depends on, and the metrics' counters."""
    tensors: dict[str, Any] = {}
    for name, module in update.modules.items():
        tensors.update({f"{name}/{key}": value for key, value in module.state_dict().items()})
    tensors.update({f"optimiser/{key}": value for key, value in runtime.state().items()})
    tensors.update({f"random/{key}": value for key, value in runtime.random_state().items()})
    collected = json.dumps(runtime.collected.state())
    return tensors, metadata | {"progress": json.dumps(update.counters), "counters": json.dumps(counters), "collected": collected}


def restore(update: Update, runtime: Backend, weights: Weights, metadata: dict[str, str]) -> Record:
    """Restores in place what gather() collected; returns the metrics' counters. Raises CheckpointError."""
    for name, module in update.modules.items():
        # A module that the checkpoint lacks, because an option that needs it was added since, begins as the policy.
        load_into(module, _below(weights, name) or _below(weights, "policy"))
    try:
        runtime.load_state(_below(weights, "optimiser"))
        progress = json.loads(metadata.get("progress") or f'{{"updates": {metadata["updates"]}}}')
        update.counters.update({name: type(value)(progress[name]) for name, value in update.counters.items()})
        counters = {str(name): float(value) for name, value in json.loads(metadata["counters"]).items()}
        runtime.collected.load_state(json.loads(metadata.get("collected") or "[]"))
        runtime.set_random_state(_below(weights, "random"))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"a checkpoint of another algorithm or device: {error}") from error
    return counters


def _below(weights: Weights, prefix: str) -> Weights:
    """The tensors whose names begin with `prefix/`, by the rest of their names."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in weights.items() if name.startswith(f"{prefix}/")}
