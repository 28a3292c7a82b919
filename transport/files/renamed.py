"""Keys of a configuration that have been renamed, and how older files are read.

In a user's file or on the command line an old name is an error that gives the new name. A run's own config.toml of an older
format is migrated without a message when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Tree = dict[str, Any]

FORMAT = 9  # of config.toml: another one wherever a key is new or gone; files of format 1 have no such key
RENAMED_IN = 2  # the format in which keys were renamed
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
# Keys that are gone, and what the error says to do. From an older run's config.toml they are removed.
REMOVED: dict[str, str] = {
    "deploy.mirror": "copy the run's folder with rsync (docs/many-machines.md)",
    "deploy.leave_seconds": "an actor that is no longer wanted always has 60 s",
    "deploy.healthy_seconds": "5 s at work always make up for a crash",
    "deploy.min_actors": "a run goes on while it has an actor",
    "deploy.log_bytes": "logs are always rotated at 20 MB; deploy.files_kept keeps more of them",
    "deploy.metrics_bytes": "metrics are always rotated at 20 MB; deploy.files_kept keeps more of them",
    "deploy.fresh_kept": "always the newest five old folders are kept",
    "evaluator.stochastic": "evaluations of a run always act greedily; headrace eval --stochastic acts as in training",
    "replay.fsync_seconds": "the log is always flushed every 5 s",
    "replay.reward_limit": "the limit is always 1e9: scale the rewards with --env.wrappers",
    "replay.observation_limit": "the limit is always 1e9: scale the observations with --env.wrappers",
}
# Options of algorithms that are gone, each with the value that switched it off, and what the error says to do. From an older
# run's config.toml and from an exported policy they are removed where they are off; where they are not, that is an error.
REMOVED_OPTIONS: dict[tuple[str, str], tuple[object, str]] = {
    ("sac", "critic"): ("scalar", "critics of sac learn values; --algo reppo has categorical ones"),
    ("sac", "noise_steps"): (1, "noise is drawn at every step; --algorithm.noise-exponent makes it change slowly"),
    ("sac", "policy_delay"): (1, "the policy of sac learns at every update"),
    ("sac", "weight_norm"): (False, "weights are not rescaled"),
}
# Values that a key no longer accepts, and what the error says to do. From an older run's config.toml they are removed.
WITHDRAWN: dict[tuple[str, object], str] = {
    ("learner.graphs", False): "use off, or auto, which records every update that can be recorded",
    ("learner.graphs", True): "use on, or auto, which records every update that can be recorded",
    ("replay.selector", "fifo"): "leave it out: algorithms that learn from rollouts take them oldest first, each once",
}


def new_name(key: str) -> str | None:
    """The new name of a dotted key; None where it has not been renamed. Dashes of flags count as underscores."""
    return RENAMED.get(key.replace("-", "_"))


def removed(key: str) -> str | None:
    """Advice for a dotted key that is gone; None for any other. Dashes of flags count as underscores."""
    options = {f"algorithm.{option}": advice for (_, option), (_, advice) in REMOVED_OPTIONS.items()}
    return (REMOVED | options).get(key.replace("-", "_"))


def without_removed(algorithm: Mapping[str, Any]) -> Tree:
    """An [algorithm] section without REMOVED_OPTIONS that are off."""
    name = algorithm.get("name")
    off = {option: value for (owner, option), (value, _) in REMOVED_OPTIONS.items() if owner == name}
    return {key: value for key, value in algorithm.items() if key not in off or off[key] != value}


def withdrawn(key: str, value: object) -> str | None:
    """Advice for a key whose value is no longer accepted; None where it is."""
    return WITHDRAWN.get((key, value)) if isinstance(value, str | int | float) else None


def migrated(tree: Tree, number: int, prefix: str = "") -> Tree:
    """A configuration of format `number` with the keys of this version. All are renamed at once: a new name may be an old one."""
    names = RENAMED if number < RENAMED_IN else {}
    result: Tree = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            result[key] = migrated(without_removed(value) if path == "algorithm" else value, number, f"{path}.")
        elif path not in REMOVED and withdrawn(path, value) is None:
            result[names.get(path, path).removeprefix(prefix)] = value
    return result
