"""How many trials may run at once on this machine."""

from __future__ import annotations

from typing import Literal

from deploy.errors import ConfigError

MEMORY_SHARE = 0.8  # of what is free; the rest is for what else the machine does


def trials_at_once(wanted: int | Literal["auto"], cores: int, processes: int, free_bytes: float, trial_bytes: float) -> int:
    """`wanted`, or as many as cores and free memory allow, at least one. `processes` of a trial are those that keep a core busy.

    Each trial has at least one core. More than two at once have a core for each of their processes: trials that share cores
    learn slower than the runs will that use their settings. Raises ConfigError where fewer are possible than are wanted.
    """
    fit = int(free_bytes * MEMORY_SHARE // trial_bytes)
    if wanted == "auto":
        return max(min(max(cores // processes, min(2, cores)), fit), 1)
    if wanted > cores:
        raise ConfigError(f"sweep.jobs: {wanted} trials at once need a core each, and this machine has {cores}")
    if wanted > max(fit, 1):
        needed, free = f"{wanted * trial_bytes / 1e9:.1f} GB", f"{free_bytes / 1e9:.1f} GB of memory are free"
        raise ConfigError(f"sweep.jobs: {wanted} trials at once need {needed}, and {free}; at most {max(fit, 1)}")
    return wanted
