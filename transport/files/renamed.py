"""Keys of a configuration that have been renamed, and how older files are read.

In a user's file or on the command line an old name is an error that gives the new name. A run's own config.toml of an older
format is migrated without a message when it is read.
"""

from __future__ import annotations

from typing import Any

Tree = dict[str, Any]

FORMAT = 5  # of config.toml: another one wherever a key is new or gone; files of format 1 have no such key
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
    "algorithm.critic": "critics of sac learn values; --algo reppo has categorical ones",
    "algorithm.noise_steps": "noise is drawn at every step; --algorithm.noise-exponent makes it change slowly",
    "algorithm.policy_delay": "the policy of sac learns at every update",
    "algorithm.weight_norm": "weights are not rescaled",
    "deploy.mirror": "copy the run's folder with rsync (docs/many-machines.md)",
    "deploy.leave_seconds": "an actor that is no longer wanted always has 60 s",
    "deploy.healthy_seconds": "5 s at work always make up for a crash",
    "deploy.min_actors": "a run goes on while it has an actor",
    "deploy.log_bytes": "logs are always rotated at 20 MB; deploy.files_kept keeps more of them",
    "deploy.metrics_bytes": "metrics are always rotated at 20 MB; deploy.files_kept keeps more of them",
    "deploy.fresh_kept": "always the newest five old folders are kept",
    "replay.fsync_seconds": "the log is always flushed every 5 s",
    "replay.reward_limit": "the limit is always 1e9: scale the rewards with --env.wrappers",
    "replay.observation_limit": "the limit is always 1e9: scale the observations with --env.wrappers",
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
    return REMOVED.get(key.replace("-", "_"))


def withdrawn(key: str, value: object) -> str | None:
    """Advice for a key whose value is no longer accepted; None where it is."""
    return WITHDRAWN.get((key, value)) if isinstance(value, str | int | float) else None


def migrated(tree: Tree, number: int, prefix: str = "") -> Tree:
    """A configuration of format `number` with the keys of this version. All are renamed at once: a new name may be an old one."""
    names = RENAMED if number < RENAMED_IN else {}
    gone = REMOVED if number < FORMAT else {}  # an algorithm of one's own may have an option of that name today
    result: Tree = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            result[key] = migrated(value, number, f"{path}.")
        elif path not in gone and withdrawn(path, value) is None:
            result[names.get(path, path).removeprefix(prefix)] = value
    return result
