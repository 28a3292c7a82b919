"""The keys of a run whose processes connect over a network: a key pair per process, and the list of public keys.

`keys/NAME.secret` holds a key pair (mode 0600, in a folder of mode 0700). `keys/public` has a line `NAME KEY` for each process:
a key that is removed from that list is refused at once, also over connections that exist. A key is 32 bytes of Curve25519,
written in Z85 (40 characters).

A ticket is one file: the key pair of `ticket-3`, and the supervisor's public key. It only allows its owner to put the public
key of `host-3` on the list; that host then adds the keys of its actors, and fetches the weights for them. The ticket
`ticket-shared-8` may do so for up to 8 hosts at the same time, host-0 to host-7: for replicas that all start with the same
command.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from transport.files.documents import read_text
from transport.files.file_lock import try_lock, unlock
from transport.files.writing import open_to_append, remove, replace

OPERATOR = "operator"  # the user's commands `headrace down` and `headrace scale`
TICKET, HOST = "ticket", "host"  # ticket-3 admits host-3
SERVE = "serve"  # a policy server: serve-8000 sends the experience of its clients
WRITERS = ("actor", SERVE)  # roles that send experience
SHARED_TICKET = f"{TICKET}-shared-"  # ticket-shared-8 admits host-0 to host-7
# Every run has keys of these, besides its actors.
ALWAYS = ("supervisor", "replay", "learner", "evaluator", "inference", OPERATOR)
# By endpoint (`replay` also for each of its shards): the process that serves it, and the roles that may connect to it.
OWNERS = {"replay": "replay", "weights": "learner", "payload": "learner", "supervisor": "supervisor"}
CLIENTS = {
    "replay": (*WRITERS, "learner"),
    "weights": ("actor", "evaluator", "inference", HOST, SERVE),
    "payload": ("actor", "evaluator", "inference", HOST, SERVE),
    "supervisor": ("replay", "learner", "actor", "evaluator", "inference", OPERATOR, TICKET, HOST),
}
SHARED = ("learner", "replay")  # roles whose processes have the same key
KEY_CHARACTERS = 40
LIST, LOCK, TICKETS = "public", ".lock", "tickets"
LOCK_TURN_SECONDS = 0.005
FIX = "see `headrace keys --help`"


class KeysError(PermissionError):
    """Keys are missing, unsafe or damaged; the message names the file and the remedy in one line."""


@dataclass(frozen=True)
class Pair:
    """A key pair in Z85. Its repr does not contain the secret key."""

    public: str
    secret: str = field(repr=False)


def role_of(name: str) -> str:
    """actor for actor-7; learner for learner-1."""
    return name.partition("-")[0]


def key_name(name: str) -> str:
    """The name of a process's key: its own name, but all learner processes share one key, and so do all replay shards."""
    return role if (role := role_of(name)) in SHARED else name


def ticket_of(host: str) -> str:
    """The name of the ticket that is for this host alone."""
    return f"{TICKET}-{host.removeprefix(f'{HOST}-')}"


def admitted_hosts(ticket: str) -> list[str]:
    """The names of the hosts that a ticket admits: several, where it is a shared one."""
    number = ticket.removeprefix(SHARED_TICKET)
    if number != ticket:
        return [f"{HOST}-{index}" for index in range(int(number))]
    return [f"{HOST}-{ticket.removeprefix(f'{TICKET}-')}"]


def actor_names(count: int) -> list[str]:
    return [f"actor-{index}" for index in range(count)]


class KeyList:
    """The list of public keys; read again whenever the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None
        self._names: dict[str, str] = {}

    def by_name(self) -> Mapping[str, str]:
        """Public keys by name. Raises KeysError."""
        try:
            found = self._path.stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if version != self._version:
                pairs = [line.split() for line in read_text(self._path).splitlines() if line and not line.startswith("# ")]
                self._names = {name: _checked(key) for name, key in pairs}
                self._version = version
        except (OSError, ValueError) as error:
            raise KeysError(f"{self._path} cannot be read as a list of keys ({error}); {FIX}") from error
        return self._names

    def name(self, public: str) -> str | None:
        """The name of a key's owner; None if the key is not on the list. Raises KeysError."""
        return next((name for name, known in self.by_name().items() if known == public), None)


class ClientKeys:
    """The key pair of a client, and the public keys of the servers that it may reach."""

    def __init__(self, name: str, pair: Pair, servers: Mapping[str, str]) -> None:
        """`servers`: public keys, by the name of the process."""
        self.name, self.pair, self._servers = name, pair, servers

    def server(self, endpoint: str) -> str:
        """The public key of the server at this endpoint. Raises KeysError."""
        owner = OWNERS[endpoint]
        if (key := self._servers.get(owner)) is None:
            raise KeysError(f"the list of public keys has no key of {owner}; {FIX}")
        return key


class Keys(ClientKeys):
    """The key pair of a process, and the list of its peers' public keys, which may change."""

    def __init__(self, folder: Path, name: str) -> None:
        """Reads the key pair of the process `name`. Raises KeysError, also if other users could read the file."""
        self._list = KeyList(folder / LIST)
        super().__init__(key_name(name), read_pair(folder, key_name(name)), self._list.by_name())
        for endpoint in OWNERS:
            self.server(endpoint)

    def server(self, endpoint: str) -> str:
        self._servers = self._list.by_name()
        return super().server(endpoint)

    def listed(self) -> Mapping[str, str]:
        """The public keys by name; another object whenever the list has changed. Raises KeysError."""
        return self._list.by_name()

    def client_name(self, endpoint: str, public: str) -> str | None:
        """The name of the key's owner if it may connect to this endpoint, otherwise None. Raises KeysError."""
        name = self._list.name(public)
        return name if name is not None and role_of(name) in CLIENTS[endpoint] else None


def check_private(path: Path, folder: bool, fix: str = "") -> None:
    """Raises KeysError unless only this user has access to a file or folder. Does nothing on Windows, which has no such modes."""
    if os.name != "posix":
        return
    try:
        found = path.lstat()
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}" + ("" if fix else f"; {FIX}")) from None
    right = stat.S_ISDIR if folder else stat.S_ISREG
    if not right(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise KeysError(
            f"{path} must belong to you and be closed to all other users, otherwise its keys do not protect the run: "
            + (fix or f"`chmod {'700' if folder else '600'} {path}`, or make new ones with `headrace keys --renew`")
        )


def read_pair(folder: Path, name: str) -> Pair:
    """Reads the key pair of a process. Raises KeysError."""
    check_private(folder, folder=True)
    path = folder / f"{name}.secret"
    check_private(path, folder=False)
    try:
        lines = [line.split() for line in read_text(path).splitlines() if line and not line.startswith("# ")]
        values = {word: _checked(key) for word, key in lines}
        return Pair(values["public"], values["secret"])
    except (OSError, ValueError, KeyError):  # without the error's text, which may contain a part of the key
        raise KeysError(f"{path} is damaged; {FIX}") from None


@contextmanager
def _changing(folder: Path) -> Iterator[dict[str, str]]:
    """The list of public keys, to be changed in the block. The supervisor and commands may change it at the same time, so one
    waits for the other. Raises KeysError, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder, folder=True)
    with open_to_append(folder / LOCK, 0o600) as file:
        while not try_lock(file):
            time.sleep(LOCK_TURN_SECONDS)
        before = dict(KeyList(folder / LIST).by_name()) if (folder / LIST).exists() else {}
        known = dict(before)
        yield known
        if known != before:
            _write(folder / LIST, "".join(f"{name} {key}\n" for name, key in sorted(known.items())))
        unlock(file)


def make(folder: Path, names: Iterable[str], new_pair: Callable[[], Pair], renew: bool = False) -> list[str]:
    """Makes the missing key pairs (with `renew`: all) and adds them to the list; returns the names of the new ones.

    Raises KeysError, OSError.
    """
    made = []
    with _changing(folder) as known:
        for name in names:
            if renew or name not in known:
                pair = new_pair()
                _write(folder / f"{name}.secret", _secret_text(name, pair))
                known[name] = pair.public
                made.append(name)
    return made


def admit(folder: Path, name: str, public: str) -> None:
    """Puts a public key that was made elsewhere on the list; one that had that name before is refused from now on."""
    with _changing(folder) as known:
        known[name] = _checked(public)


def refuse(folder: Path, names: Iterable[str]) -> None:
    """Takes names from the list: their keys are refused from now on. Raises KeysError, OSError."""
    with _changing(folder) as known:
        for name in names:
            known.pop(name, None)


def reclaim(folder: Path, name: str, new_pair: Callable[[], Pair]) -> None:
    """Makes a new pair for a process of this machine, unless the one that it has is on the list. Raises KeysError, OSError."""
    listed = KeyList(folder / LIST).by_name().get(name)
    if listed is None or not (folder / f"{name}.secret").exists() or read_pair(folder, name).public != listed:
        make(folder, (name,), new_pair, renew=True)


def write_ticket(path: Path, name: str, pair: Pair, supervisor: str) -> None:
    """Writes a ticket, which only this user can read. `supervisor`: its public key. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    admitted = admitted_hosts(name)
    which = f"as {admitted[0]}" if len(admitted) == 1 else f"as one of {len(admitted)} hosts"
    head = f"# Any machine with this ticket can join the run {which}: keep it secret.\n"
    _write(path, f"{head}ticket {name}\npublic {pair.public}\nsecret {pair.secret}\nsupervisor {supervisor}\n")


def read_ticket(path: Path) -> ClientKeys:
    """Raises KeysError, also if other users could read the file."""
    check_private(path, folder=False, fix=f"`chmod 600 {path}`")
    try:
        return parse_ticket(read_text(path))
    except (OSError, ValueError):  # without the error's text, which may contain a part of the key
        raise KeysError(f"{path} is not a ticket; `headrace invite RUN --hosts N` makes tickets") from None


def parse_ticket(text: str) -> ClientKeys:
    """The content of a ticket. Raises ValueError, whose text tells nothing of it."""
    try:
        values = dict(line.split() for line in text.splitlines() if line and not line.startswith("# "))
        pair = Pair(_checked(values["public"]), _checked(values["secret"]))
        if role_of(values["ticket"]) != TICKET:
            raise ValueError
        return ClientKeys(values["ticket"], pair, {"supervisor": _checked(values["supervisor"])})
    except (ValueError, KeyError):
        raise ValueError("not a ticket") from None


def export(folder: Path, name: str, target: Path) -> None:
    """Writes what `name` needs on another machine: its key pair, and the servers' public keys. Raises KeysError, OSError."""
    pair, known = read_pair(folder, name), KeyList(folder / LIST).by_name()
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(target, folder=True)
    _write(target / f"{name}.secret", _secret_text(name, pair))
    needed = {name, *OWNERS.values()} & set(known)
    _write(target / LIST, "".join(f"{needs} {known[needs]}\n" for needs in sorted(needed)))


def _secret_text(name: str, pair: Pair) -> str:
    return f"# This file is the identity of {name}: keep it secret.\npublic {pair.public}\nsecret {pair.secret}\n"


def _checked(key: str) -> str:
    if len(key) != KEY_CHARACTERS or not key.isascii():
        raise ValueError("not a key")
    return key


def _write(path: Path, text: str) -> None:
    """Replaces a file; the new one is readable only for this user from its creation on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    remove(temporary)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    replace(temporary, path)
