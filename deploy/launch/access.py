"""Who may reach a run: what `headrace up` refuses, and keys that are missing."""

from __future__ import annotations

import os

from deploy.config.run import RunConfig
from deploy.launch.minimum_versions import shortfalls
from transport.run_dir import RunDir, is_loopback
from transport.sockets import keys
from transport.sockets.authenticator import new_pair

ROOT_WARNING = (
    "warning: this run belongs to root: whatever a simulator can be made to do, it does to the whole machine; "
    "an ordinary user is safer"
)


class Refused(RuntimeError):
    """A run that would not be safe to start; the text says why and what to do."""


def check(run: RunDir, config: RunConfig) -> None:
    """Before anything is launched. Prints a warning to root. Raises Refused, KeysError."""
    if old := shortfalls():
        raise Refused("; ".join(old))
    host, root = config.deploy.bind, hasattr(os, "getuid") and os.getuid() == 0
    if host and not is_loopback(host):
        if root:
            raise Refused(
                f"--deploy.bind {host} can be reached from other machines, and this is root: start it as an ordinary user"
            )
        if not run.key_folder.exists():
            raise Refused(
                f"--deploy.bind {host} can be reached from other machines and run {run.name} has no keys: "
                f"make them with `headrace keys {run.name} --actors {config.actors.count}`"
            )
    if host and run.key_folder.exists():
        if lacking := make_missing(run, config.actors.count):
            print(f"made keys for {listed(lacking)}")
        for name in (*keys.ALWAYS, *keys.actor_names(config.actors.count)):
            keys.read_pair(run.key_folder, name)
    if root:
        print(ROOT_WARNING, flush=True)


def make_missing(run: RunDir, actors: int) -> list[str]:
    """Keys for whoever of the run has none yet; returns whose were made. Servers read the list again by themselves."""
    return keys.make(run.key_folder, (*keys.ALWAYS, *keys.actor_names(actors)), new_pair)


def listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 12 else f"{', '.join(names[:10])} and {len(names) - 10} more"
