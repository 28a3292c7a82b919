"""Safety checks of `headrace up`: old libraries, an address that other machines reach, missing keys, root."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from actors.trust import state_folder
from deploy.config.run import RunConfig
from deploy.errors import RunRefused
from deploy.launch.minimum_versions import too_old
from deploy.settings import fixed_ports
from transport.run_dir import RunDir
from transport.sockets import keys
from transport.sockets.authenticator import new_pair
from transport.system import is_free, is_loopback
from transport.text import listed

ROOT_WARNING = (
    "warning: this run belongs to root: a flaw in a simulator can change the whole machine; start it as an ordinary user"
)
WARNED_SECONDS = 30 * 86_400.0
SHARED = "shared"  # names the ticket for several hosts


def check(run: RunDir, config: RunConfig) -> None:
    """Warns root. Raises RunRefused, KeysError."""
    if old := too_old():
        raise RunRefused("; ".join(old))
    host, root = config.deploy.bind, hasattr(os, "getuid") and os.getuid() == 0
    if host and not is_loopback(host):
        if root:
            raise RunRefused(
                f"--deploy.bind {host} can be reached from other machines, and this is root: start it as an ordinary user"
            )
        if not run.key_folder.exists() and not config.deploy.on:
            raise RunRefused(
                f"--deploy.bind {host} can be reached from other machines and run {run.name} has no keys: "
                f"make them with `headrace keys {run.name} --actors {config.actors.count}`"
            )
    if host and (run.key_folder.exists() or config.deploy.on):  # an engine needs tickets
        if made := make_missing(run, config.actors.count):
            print(f"made keys for {listed(made)}")
        for name in (*keys.ALWAYS, *keys.actor_names(config.actors.count)):
            keys.read_pair(run.key_folder, name)
    if config.deploy.port:
        _check_ports(config)
    if root:
        _warn_root()


def _check_ports(config: RunConfig) -> None:
    ports = fixed_ports(config).values()
    for port in ports:
        if not is_free(config.deploy.bind, port):
            raise RunRefused(
                f"port {port} of {config.deploy.bind} is in use, and with --deploy.port {config.deploy.port} the run needs it: "
                f"choose another first of {len(ports)} free ports"
            )


def _warn_root() -> None:
    """Once per machine and month."""
    told = state_folder() / "root-warning"
    with suppress(OSError):
        if time.time() - told.stat().st_mtime < WARNED_SECONDS:
            return
    print(ROOT_WARNING, flush=True)
    with suppress(OSError):
        told.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        told.touch()


def make_missing(run: RunDir, actors: int) -> list[str]:
    """Makes the keys that processes of the run lack; returns their names. Servers read the list again by themselves."""
    run.make_private()
    return keys.make(run.key_folder, (*keys.ALWAYS, *keys.actor_names(actors)), new_pair)


def ticket(run: RunDir, host: str) -> tuple[Path, bool]:
    """The ticket of host-3, and whether it was made now: it is where there is none. Raises KeysError, OSError."""
    path = ticket_path(run, host)
    return path, _make_ticket(run, path, keys.ticket_of(host))


def shared_ticket(run: RunDir, hosts: int) -> tuple[Path, bool]:
    """The ticket for hosts that all start alike, as ticket(). One that was for another number of hosts is refused from now on."""
    path, before = ticket_path(run, SHARED), shared_tickets(run)
    return path, _make_ticket(run, path, f"{keys.SHARED_TICKET}{hosts}", before)


def ticket_path(run: RunDir, host: str) -> Path:
    """Where the ticket of host-3 is; of SHARED: the shared ticket."""
    return run.key_folder / keys.TICKETS / f"{host}.ticket"


def shared_tickets(run: RunDir) -> list[str]:
    """The names on the list of keys: one, or none."""
    return [name for name in keys.KeyList(run.key_folder / keys.LIST).by_name() if name.startswith(keys.SHARED_TICKET)]


def _make_ticket(run: RunDir, path: Path, name: str, before: Sequence[str] = ()) -> bool:
    """Makes the ticket and refuses those `before` it; False where it is there already."""
    known = keys.KeyList(run.key_folder / keys.LIST).by_name()
    if name in known and path.is_file():
        return False
    pair = new_pair()
    keys.write_ticket(path, name, pair, known["supervisor"])
    keys.refuse(run.key_folder, before)
    keys.admit(run.key_folder, name, pair.public)
    return True


class RunKeys:
    """The list of public keys of a run, as its supervisor changes it. The calls raise KeysError, OSError."""

    def __init__(self, run: RunDir) -> None:
        self._folder = run.key_folder
        self._list = keys.KeyList(self._folder / keys.LIST)

    def key(self, name: str) -> str | None:
        """The key of that name on the list."""
        return self._list.by_name().get(name)

    def admit(self, name: str, public: str) -> None:
        keys.admit(self._folder, name, public)

    def refuse(self, names: Sequence[str]) -> None:
        if names:
            keys.refuse(self._folder, names)

    def reclaim(self, name: str) -> None:
        """Gives the name to a process of this machine. Does nothing in a run without keys."""
        if self._folder.exists():
            keys.reclaim(self._folder, name, new_pair)
