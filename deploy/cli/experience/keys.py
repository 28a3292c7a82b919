"""`headrace keys`: the keys by which the processes of a run know each other on a network."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from deploy import runs, settings
from deploy.config.errors import ConfigError
from deploy.config.layers import load_run_config
from deploy.config.values import COUNT
from deploy.launch import access
from transport.messages import MOST_ACTORS
from transport.run_dir import RunDir, write_atomically
from transport.sockets import keys
from transport.sockets.authenticator import new_pair

ACTOR = re.compile(r"actor-(0|[1-9]\d{0,5})")
DESCRIPTION = """\
Makes the keys that a run needs before other machines may reach it: a pair for each process, in runs/NAME/keys, which nobody else
may read. What is there already stays.

  headrace keys night --actors 4                     then `headrace up --run night --deploy.bind 10.0.0.5 …`
  headrace keys night --export actor-100 worker      copy the folder to another machine: python -m actors worker --actor 100
  headrace keys night --renew                        all anew, while the run is down
  headrace keys night --renew actor-100              that of one actor, whose machine was lost, say
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    text = "a run's name or folder, which need not exist yet; default: the latest"
    target.add_argument("run", nargs="?", metavar="RUN", help=text)
    target.add_argument("--run", dest="run", default=argparse.SUPPRESS, metavar="NAME", help="the same")
    target.add_argument("--actors", type=COUNT, metavar="N", help="keys for so many; default: as the run is configured, or 1")
    either = target.add_mutually_exclusive_group()
    text = "make all anew, or those of one process: old ones are refused from then on"
    either.add_argument("--renew", nargs="?", const="", metavar="NAME", help=text)
    text = "copy what an actor on another machine needs, its secret and the servers' public keys included, into a folder"
    either.add_argument("--export", nargs=2, metavar=("ACTOR", "FOLDER"), help=text)


def run(parsed: argparse.Namespace) -> int:
    """`headrace keys`: makes what is missing, renews, or exports. Raises ConfigError, KeysError, OSError."""
    folder = _run(parsed.run)
    if parsed.export:
        return _export(folder, *parsed.export)
    configured = load_run_config(folder.config).actors.count if folder.config.exists() else 1
    actors = configured if parsed.actors is None else parsed.actors
    if not 1 <= actors <= MOST_ACTORS:
        raise ConfigError(f"a run has 1 to {MOST_ACTORS} actors, not {actors}")
    everyone = (*keys.ALWAYS, *keys.actor_names(actors))
    if parsed.renew is not None:
        made = _renew(folder, parsed.renew, everyone)
    elif runs.is_up(folder) and not folder.key_folder.exists():
        raise access.Refused(f"run {folder.name} is up without keys; stop it first: `headrace down {folder.name}`")
    else:
        made = access.make_missing(folder, actors)
    print(
        f"made keys for {access.listed(made)} in {folder.key_folder}"
        if made
        else f"{folder.key_folder} has keys for all; --renew makes them anew"
    )
    return 0


def _renew(run: RunDir, name: str, everyone: tuple[str, ...]) -> list[str]:
    """Makes all keys of a run anew, or those of one process: servers that are up would not be known by theirs any more."""
    if name and name not in everyone and not ACTOR.fullmatch(name):
        raise ConfigError(f"--renew {name}: no process of a run is called that; {', '.join(keys.ALWAYS)} and actor-0, actor-1, …")
    if runs.is_up(run) and keys.role_of(name) != "actor":
        raise access.Refused(
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
        raise access.Refused(f"run {run.name} has no keys; make them with `headrace keys {run.name}`")
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
