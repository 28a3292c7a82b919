"""Keys of a run that is reached over a network: a pair for each process, the list of public keys, and which may connect where.

`keys/NAME.secret` holds a pair (mode 0600, in a folder of mode 0700), `keys/public` a line `NAME KEY` for everyone who is known.
Keys are 32 bytes of Curve25519, written in Z85 (40 characters).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

OPERATOR = "operator"  # the user's commands `headrace down` and `headrace scale`
ALWAYS = ("supervisor", "replay", "learner", "evaluator", OPERATOR)  # a run has one of each, and its actors
# Endpoints by name: the process that serves each, and the roles that may connect to it.
OWNERS = {"replay": "replay", "weights": "learner", "payload": "learner", "supervisor": "supervisor"}
CLIENTS = {
    "replay": ("actor", "learner"),
    "weights": ("actor", "evaluator"),
    "payload": ("actor", "evaluator"),
    "supervisor": ("replay", "learner", "actor", "evaluator", OPERATOR),
}
KEY_CHARACTERS = 40
LIST = "public"
FIX = "see `headrace keys --help`"


class KeysError(PermissionError):
    """Keys that are missing, unsafe or damaged: one line that names the file and the fix."""


@dataclass(frozen=True)
class Pair:
    """A key pair, both halves in Z85. Its repr keeps the secret."""

    public: str
    secret: str = field(repr=False)


def role_of(name: str) -> str:
    """actor of actor-7; learner of learner-1, which is one process among several that share a key."""
    return name.partition("-")[0]


def key_name(name: str) -> str:
    """The name of the key that a process uses: its own, but a learner's processes have one together."""
    return "learner" if role_of(name) == "learner" else name


def actor_names(count: int) -> list[str]:
    """actor-0 to actor-(count-1)."""
    return [f"actor-{index}" for index in range(count)]


class KeyList:
    """The public keys that are known, read anew whenever the file has changed."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._names: dict[str, str] = {}

    def by_name(self) -> Mapping[str, str]:
        """Name -> public key. Raises KeysError."""
        try:
            found = self._path.stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if version != self._seen:
                pairs = [line.split() for line in self._path.read_text().splitlines() if line and not line.startswith("# ")]
                self._names = {name: _checked(key) for name, key in pairs}
                self._seen = version
        except (OSError, ValueError) as error:
            raise KeysError(f"{self._path} cannot be read as a list of keys ({error}); {FIX}") from error
        return self._names

    def name(self, public: str) -> str | None:
        """The name that a key belongs to, or None. Raises KeysError."""
        return next((name for name, known in self.by_name().items() if known == public), None)


class Keys:
    """One process's own pair, and the public keys of the others."""

    def __init__(self, folder: Path, name: str) -> None:
        """Reads the pair of the process `name`. Raises KeysError, also when others could read it."""
        self.name = key_name(name)
        self.pair = read_pair(folder, self.name)
        self._list = KeyList(folder / LIST)
        for endpoint in OWNERS:
            self.server(endpoint)

    def server(self, endpoint: str) -> str:
        """The public key that the server at this endpoint must have. Raises KeysError."""
        owner = OWNERS[endpoint]
        if (key := self._list.by_name().get(owner)) is None:
            raise KeysError(f"the list of public keys has none of {owner}; {FIX}")
        return key

    def client_name(self, endpoint: str, public: str) -> str | None:
        """The name that this key belongs to, if it may connect to this endpoint. Raises KeysError."""
        name = self._list.name(public)
        return name if name is not None and role_of(name) in CLIENTS[endpoint] else None


def check_private(path: Path, folder: bool) -> None:
    """Raises KeysError unless only this user can get at a file or folder. On Windows, which has no such modes, does nothing."""
    if os.name != "posix":
        return
    try:
        found = path.lstat()
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}; {FIX}") from None
    right = stat.S_ISDIR if folder else stat.S_ISREG
    if not right(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise KeysError(
            f"{path} must belong to you and be closed to everyone else, or its keys are worth nothing: "
            f"`chmod {'700' if folder else '600'} {path}`, or make new ones with `headrace keys --renew`"
        )


def read_pair(folder: Path, name: str) -> Pair:
    """The key pair of a process. Raises KeysError."""
    check_private(folder, folder=True)
    path = folder / f"{name}.secret"
    check_private(path, folder=False)
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("# ")]
        values = {word: _checked(key) for word, key in lines}
        return Pair(values["public"], values["secret"])
    except (OSError, ValueError, KeyError):  # without its text, which may hold a part of the key
        raise KeysError(f"{path} is damaged; {FIX}") from None


def make(folder: Path, names: Iterable[str], new_pair: Callable[[], Pair], renew: bool = False) -> list[str]:
    """Makes the pairs that are missing (to `renew`, all) and lists them; returns whose were made. Raises KeysError, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder, folder=True)
    known = dict(KeyList(folder / LIST).by_name()) if (folder / LIST).exists() else {}
    made = []
    for name in names:
        if not renew and name in known:
            continue
        pair = new_pair()
        text = f"# Whoever has this file is {name}.\npublic {pair.public}\nsecret {pair.secret}\n"
        _write(folder / f"{name}.secret", text)
        known[name] = pair.public
        made.append(name)
    if made:
        _write(folder / LIST, "".join(f"{name} {key}\n" for name, key in sorted(known.items())))
    return made


def export(folder: Path, name: str, target: Path) -> None:
    """What `name` needs on another machine: its own pair, and the public keys of the servers. Raises KeysError, OSError."""
    pair, known = read_pair(folder, name), KeyList(folder / LIST).by_name()
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(target, folder=True)
    _write(target / f"{name}.secret", f"# Whoever has this file is {name}.\npublic {pair.public}\nsecret {pair.secret}\n")
    needed = {name, *OWNERS.values()} & set(known)
    _write(target / LIST, "".join(f"{needs} {known[needs]}\n" for needs in sorted(needed)))


def _checked(key: str) -> str:
    if len(key) != KEY_CHARACTERS or not key.isascii():
        raise ValueError("not a key")
    return key


def _write(path: Path, text: str) -> None:
    """Replaces a file by one that only this user may read, from its first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(temporary, path)
