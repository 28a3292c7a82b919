"""`headrace invite`: makes tickets, with which other machines join a run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE
from deploy.cli.experience.keys import run_of
from deploy.config.run import RunConfig
from deploy.config.values import COUNT
from deploy.errors import ConfigError
from deploy.launch import access
from deploy.launch.defaults import resolve_count
from transport.files.writing import remove
from transport.messages.fields import MOST_ACTORS
from transport.run_dir import RunDir
from transport.sockets import keys
from transport.text import listed

DESCRIPTION = """\
Make tickets for other machines, one file for each, in runs/NAME/keys/tickets. A machine that has a ticket can join the run, so
only this user can read the files: copy each (scp -p) to the machine that it is for. When a ticket is used again, the new host
replaces the one that used it before. Existing tickets are kept.

  headrace invite night --hosts 2                  then start the run:  headrace up --run night --deploy.bind 10.0.0.5 \\
                                                                          --deploy.port 7701 --actors 16 --deploy.local-actors 4
                                                   and on each machine: headrace join tcp://10.0.0.5:7701 --ticket host-0.ticket
  headrace invite night --hosts 8 --shared         one ticket for 8 hosts that start with the same command, as containers do
  headrace invite night --revoke host-1            refuse this host and its ticket from now on
  headrace invite night --revoke shared            refuse the shared ticket, and all hosts that joined by it
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    text = "name or folder of a run, which need not exist yet (default: the run that is up, or the most recent one)"
    target.add_argument("run", nargs="?", metavar="RUN", help=text)
    target.add_argument("--run", dest="run", default=argparse.SUPPRESS, metavar="NAME", help="the same as RUN")
    either = target.add_mutually_exclusive_group(required=True)
    either.add_argument("--hosts", type=COUNT, metavar="N", help="make tickets for this many hosts: host-0, host-1, …")
    text = "refuse a host from now on; a new ticket may be made for it. `shared`: the shared ticket and its hosts"
    either.add_argument("--revoke", metavar="HOST", help=text)
    target.add_argument("--shared", action="store_true", help="make one ticket for all of the hosts, which get their names later")


def run(parsed: argparse.Namespace) -> int:
    """Raises ConfigError, RunRefused, KeysError, OSError."""
    folder = run_of(parsed.run)
    tickets = folder.key_folder / keys.TICKETS
    if parsed.revoke:
        return _revoke_shared(folder) if parsed.revoke == access.SHARED else _revoke(folder, parsed.revoke)
    if not 1 <= parsed.hosts <= MOST_ACTORS:
        raise ConfigError(f"a run has 1 to {MOST_ACTORS} hosts, not {parsed.hosts}")
    if not folder.key_folder.exists():
        if runs.is_up(folder):
            raise access.RunRefused(f"run {folder.name} is up without keys; stop it first: `headrace down {folder.name}`")
        access.make_missing(folder, resolve_count(RunConfig()).actors.count)
    if parsed.shared:
        tickets_of = [access.shared_ticket(folder, parsed.hosts)]
    else:
        tickets_of = [access.ticket(folder, f"{keys.HOST}-{number}") for number in range(parsed.hosts)]
    made = [path.name for path, new in tickets_of if new]
    print(f"made {listed(made)} in {tickets}" if made else f"{tickets} has tickets for all; --revoke refuses one")
    return DONE


def _revoke_shared(folder: RunDir) -> int:
    if not (folder.key_folder / keys.LIST).is_file() or not (shared := access.shared_tickets(folder)):
        raise ConfigError(f"--revoke {access.SHARED}: run {folder.name} has no shared ticket")
    listed = keys.KeyList(folder.key_folder / keys.LIST).by_name()
    hosts = [name for name in listed if keys.role_of(name) == keys.HOST and keys.ticket_of(name) not in listed]
    keys.refuse(folder.key_folder, (*shared, *hosts))
    remove(access.ticket_path(folder, access.SHARED))
    print(f"the shared ticket and {len(hosts)} hosts that joined by it are refused from now on; their actors start elsewhere")
    return DONE


def _revoke(folder: RunDir, host: str) -> int:
    ticket = keys.ticket_of(host)
    if keys.role_of(host) != keys.HOST or ticket not in keys.KeyList(folder.key_folder / keys.LIST).by_name():
        raise ConfigError(f"--revoke {host}: run {folder.name} has no ticket of a host of this name; they are host-0, host-1, …")
    keys.refuse(folder.key_folder, (ticket, host))
    remove(access.ticket_path(folder, host))
    print(f"{host} and its ticket are refused from now on; its actors start elsewhere")
    return DONE
