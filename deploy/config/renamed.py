"""Keys of a configuration that have another name now, and how older files are read.

In a file or on the command line of a user an old name is an error that gives the new one. A run's own config.toml of an
older format is brought up to date in silence when it is read.
"""

from __future__ import annotations

from typing import Any

Tree = dict[str, Any]

FORMAT = 2  # of config.toml; format 1 did not say so
RENAMED: dict[str, str] = {  # old dotted key: new dotted key, of the same section
    "algorithm.trace": "algorithm.gae_lambda",
    "algorithm.passes": "algorithm.n_epochs",
    "algorithm.clip": "algorithm.clip_range",
    "algorithm.value_clip": "algorithm.clip_range_vf",
    "algorithm.entropy_coefficient": "algorithm.ent_coef",
    "algorithm.entropy_end": "algorithm.ent_coef_end",
    "algorithm.value_coefficient": "algorithm.vf_coef",
    "algorithm.max_kl": "algorithm.target_kl",
    "algorithm.target_kl": "algorithm.adaptive_kl",
    "algorithm.normalise_advantage": "algorithm.normalize_advantage",
    "algorithm.normalise_observation": "algorithm.normalize_observation",
    "algorithm.log_std": "algorithm.log_std_init",
    "algorithm.target_period": "algorithm.target_update_interval",
    "learner.max_gradient_norm": "learner.max_grad_norm",
}
# A value that a key no longer takes, and what the error says to do. An older run's config.toml just loses it.
WITHDRAWN: dict[tuple[str, object], str] = {
    ("replay.selector", "fifo"): "leave it out: an algorithm that learns from rollouts gets them oldest first, each once",
}


def new_name(key: str) -> str | None:
    """What a dotted key is called now; None where it never had another name. Dashes in flags count as underscores."""
    return RENAMED.get(key.replace("-", "_"))


def withdrawn(key: str, value: object) -> str | None:
    """Why a key no longer takes this value, and what to do; None where it does."""
    return WITHDRAWN.get((key, value)) if isinstance(value, str | int | float) else None


def migrated(tree: Tree, prefix: str = "") -> Tree:
    """A configuration of format 1 with today's keys. All keys are renamed at once: a new name may be the old one of another."""
    result: Tree = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            result[key] = migrated(value, f"{path}.")
        elif withdrawn(path, value) is None:
            result[RENAMED.get(path, path).removeprefix(prefix)] = value
    return result
