"""`headrace keys`: the keys by which the processes of a run authenticate each other on a network."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from actors.trust import FLAG, OPEN_SECTIONS
from deploy import runs, settings
from deploy.cli.common import add_trust
from deploy.config.files import as_tree, lookup, read_run
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.config.trust import code_in
from deploy.config.values import COUNT
from deploy.errors import ConfigError
from deploy.launch import access
from deploy.launch.defaults import resolve_count
from replay.shards import shard_names
from transport.files.documents import read_bytes
from transport.files.writing import write_atomically
from transport.messages.fields import MOST_ACTORS
from transport.run_dir import RunDir
from transport.sockets import keys
from transport.sockets.authenticator import new_pair
from transport.text import listed

ACTOR = re.compile(r"actor-(0|[1-9]\d{0,5})")
DESCRIPTION = """\
Make the keys that a run needs before other machines can reach it: one key pair for each process, in runs/NAME/keys, which
only this user can read. Existing keys are kept.

  headrace keys night --actors 4                   then start the run: headrace up --run night --deploy.bind 10.0.0.5
  headrace keys night --export actor-100 worker    then copy the folder `worker` to another machine, and start there:
                                                   python -m actors worker --actor 100
                                                   with --trust-config where its settings name code of your own
  headrace keys night --renew                      replace all keys; the run must be down
  headrace keys night --renew actor-100            replace the key of one actor, for example after its machine was lost
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    text = "name or folder of a run, which need not exist yet (default: the run that is up, or the most recent one)"
    target.add_argument("run", nargs="?", metavar="RUN", help=text)
    target.add_argument("--run", dest="run", default=argparse.SUPPRESS, metavar="NAME", help="the same as RUN")
    target.add_argument(
        "--actors", type=COUNT, metavar="N", help="make keys for this many actors (default: as the run is configured, or 1)"
    )
    add_trust(target)
    either = target.add_mutually_exclusive_group()
    text = "replace all keys, or those of the process NAME; the old keys are refused from then on"
    either.add_argument("--renew", nargs="?", const="", metavar="NAME", help=text)
    text = "copy all files that an actor on another machine needs into a folder: its secret key, the public keys and its settings"
    either.add_argument("--export", nargs=2, metavar=("ACTOR", "FOLDER"), help=text)


def run(parsed: argparse.Namespace) -> int:
    """Raises ConfigError, KeysError, OSError."""
    folder = run_of(parsed.run)
    if parsed.export:
        name, target = parsed.export
        return _export(folder, name, target, parsed.trusted)
    configured = _actor_count(folder) if folder.config.exists() else 1
    actors = configured if parsed.actors is None else parsed.actors
    if not 1 <= actors <= MOST_ACTORS:
        raise ConfigError(f"a run has 1 to {MOST_ACTORS} actors, not {actors}")
    everyone = (*keys.ALWAYS, *keys.actor_names(actors))
    if parsed.renew is not None:
        made = _renew(folder, parsed.renew, everyone)
    elif runs.is_up(folder) and not folder.key_folder.exists():
        raise access.RunRefused(f"run {folder.name} is up without keys; stop it first: `headrace down {folder.name}`")
    else:
        made = access.make_missing(folder, actors)
    if made:
        print(f"made keys for {listed(made)} in {folder.key_folder}")
    else:
        print(f"{folder.key_folder} has keys for all processes; --renew replaces them")
    return 0


def _actor_count(run: RunDir) -> int:
    """The number of actors in the run's config.toml. Imports nothing that it names. Raises ConfigError."""
    count = lookup(read_run(run.config).values, "actors.count")
    return count if isinstance(count, int) and count else resolve_count(RunConfig()).actors.count


def _renew(run: RunDir, name: str, everyone: tuple[str, ...]) -> list[str]:
    """Replaces all keys of a run, or those of one process. Clients of servers that are up would reject their new keys."""
    if name and name not in everyone and not ACTOR.fullmatch(name):
        raise ConfigError(f"--renew: a run has no process {name!r}; it has {', '.join(keys.ALWAYS)} and actor-0, actor-1, …")
    if runs.is_up(run) and keys.role_of(name) != "actor":
        raise access.RunRefused(
            f"run {run.name} is up, and only actors' keys can be replaced meanwhile; stop it first: `headrace down {run.name}`"
        )
    if not name:  # keys of processes that are not made again must be refused too
        shutil.rmtree(run.key_folder, ignore_errors=True)
    return keys.make(run.key_folder, (name,) if name else everyone, new_pair, renew=True)


def _export(run: RunDir, name: str, target: str, trusted: bool) -> int:
    """Writes a folder from which an actor can be started on another machine."""
    folder = RunDir(Path(target))
    if not ACTOR.fullmatch(name):
        raise ConfigError(f"--export: {name!r} is not an actor, and only actors run on other machines; name one such as actor-7")
    if not run.config.exists() or not run.spec.exists():
        raise ConfigError(
            f"run {run.name} has never been started, so the files of an actor are missing: `headrace up --run {run.name}`"
        )
    if not run.key_folder.exists():
        raise access.RunRefused(f"run {run.name} has no keys; make them with `headrace keys {run.name}`")
    config = load_run_config(run, trusted)
    keys.make(run.key_folder, (name,), new_pair)
    keys.export(run.key_folder, name, folder.key_folder)
    (folder.path / "endpoints").mkdir(parents=True, exist_ok=True)
    number = name.removeprefix("actor-")
    alone = structs.replace(config, actors=structs.replace(config.actors, inference="local"))  # there is no inference process
    settings.write_acting(folder, alone, name)
    described = [run.policy] if run.policy.is_file() else []
    for file in (run.spec, *described, *(run.path / "endpoints").glob("*.json")):
        write_atomically(folder.path / file.relative_to(run.path), read_bytes(file))
    tree = as_tree(config)
    named = code_in({section: tree[section] for section in OPEN_SECTIONS})
    command = f"python -m actors FOLDER --actor {number}" + (f" {FLAG}" if named else "")
    print(f"{folder.path} has all files of {name}: on the other machine start `{command}`")
    if named:
        print(f"its settings name code, which that machine must have: {', '.join(named)}; {FLAG} says that you trust them")
    if any(run.endpoint(server) is None for server in shard_names(config.replay.shards)):
        print(f"run {run.name} is not up, so the folder lacks the addresses of its servers: export again while it is up")
    return 0


def run_of(name: str | None) -> RunDir:
    """By name the run need not exist yet; a text with a slash is a folder."""
    if name is None:
        return runs.find(None)
    return RunDir(Path(name)) if os.sep in name or "/" in name else runs.run_dir(name)
