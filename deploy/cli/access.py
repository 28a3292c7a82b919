"""Who may reach a run: what `headrace up` refuses, and `headrace keys`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from pathlib import Path

from deploy import runs, settings
from deploy.config.errors import ConfigError
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.minimum_versions import shortfalls
from transport.messages import MOST_ACTORS
from transport.run_dir import RunDir, is_loopback, write_atomically
from transport.sockets import keys
from transport.sockets.authenticator import new_pair

ACTOR = re.compile(r"actor-(0|[1-9]\d{0,5})")
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
            print(f"made keys for {_listed(lacking)}")
        for name in (*keys.ALWAYS, *keys.actor_names(config.actors.count)):
            keys.read_pair(run.key_folder, name)
    if root:
        print(ROOT_WARNING, flush=True)


def make_missing(run: RunDir, actors: int) -> list[str]:
    """Keys for whoever of the run has none yet; returns whose were made. Servers read the list again by themselves."""
    return keys.make(run.key_folder, (*keys.ALWAYS, *keys.actor_names(actors)), new_pair)


def make_keys(parsed: argparse.Namespace) -> int:
    """`headrace keys`: makes what is missing, renews, or exports. Raises ConfigError, KeysError, OSError."""
    run = _run(parsed.run)
    if parsed.export:
        return _export(run, *parsed.export)
    configured = load_run_config(run.config).actors.count if run.config.exists() else 1
    actors = configured if parsed.actors is None else parsed.actors
    if not 1 <= actors <= MOST_ACTORS:
        raise ConfigError(f"a run has 1 to {MOST_ACTORS} actors, not {actors}")
    everyone = (*keys.ALWAYS, *keys.actor_names(actors))
    if parsed.renew is not None:
        made = _renew(run, parsed.renew, everyone)
    elif runs.is_up(run) and not run.key_folder.exists():
        raise Refused(f"run {run.name} is up without keys; stop it first: `headrace down {run.name}`")
    else:
        made = make_missing(run, actors)
    print(
        f"made keys for {_listed(made)} in {run.key_folder}"
        if made
        else f"{run.key_folder} has keys for all; --renew makes them anew"
    )
    return 0


def _renew(run: RunDir, name: str, everyone: tuple[str, ...]) -> list[str]:
    """Makes all keys of a run anew, or those of one process: servers that are up would not be known by theirs any more."""
    if name and name not in everyone and not ACTOR.fullmatch(name):
        raise ConfigError(f"--renew {name}: no process of a run is called that; {', '.join(keys.ALWAYS)} and actor-0, actor-1, …")
    if runs.is_up(run) and keys.role_of(name) != "actor":
        raise Refused(
            f"run {run.name} is up and only actors' keys can be renewed meanwhile; stop it first: `headrace down {run.name}`"
        )
    if not name:  # nobody whom this call does not name shall still be let in
        shutil.rmtree(run.key_folder, ignore_errors=True)
    return keys.make(run.key_folder, (name,) if name else everyone, new_pair, renew=True)


def _export(run: RunDir, name: str, target: str) -> int:
    """A folder that an actor on another machine can be started from."""
    folder = RunDir(Path(target))
    if not ACTOR.fullmatch(name):
        raise ConfigError(f"--export {name}: only actors run elsewhere; name one as actor-7")
    if not run.config.exists() or not run.spec.exists():
        raise ConfigError(f"run {run.name} has not been started yet: what an actor needs to know is written by `headrace up`")
    if not run.key_folder.exists():
        raise Refused(f"run {run.name} has no keys; make them with `headrace keys {run.name}`")
    keys.make(run.key_folder, (name,), new_pair)
    keys.export(run.key_folder, name, folder.key_folder)
    (folder.path / "endpoints").mkdir(parents=True, exist_ok=True)
    number = name.removeprefix("actor-")
    settings.write_acting(folder, load_run_config(run.config), name)
    described = [run.policy] if run.policy.is_file() else []
    for file in (run.spec, *described, *(run.path / "endpoints").glob("*.json")):
        write_atomically(folder.path / file.relative_to(run.path), file.read_bytes())
    print(f"{folder.path} is all that {name} needs: copy it there and start `python -m actors FOLDER --actor {number}`")
    if run.endpoint("replay") is None:
        print(f"run {run.name} is not up: export again once it is, so that the folder says where its servers listen")
    return 0


def _run(name: str | None) -> RunDir:
    """The run that is meant; by name it need not exist yet, and with a slash it is a folder."""
    if name is None:
        return runs.find(None)
    return RunDir(Path(name)) if os.sep in name or "/" in name else runs.run_dir(name)


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 12 else f"{', '.join(names[:10])} and {len(names) - 10} more"
