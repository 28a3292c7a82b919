"""The layout of a run's folder, and where the sockets of a run live."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from transport.sockets.keys import Keys

MAX_SOCKET_PATH = 100  # the kernel allows 107 bytes; a role's name follows


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file so that a reader sees the old content or the new, never a part. Not fsynced."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def sync_folder(path: Path) -> None:
    """Makes renames, new and deleted files in a folder outlast a power cut. Windows cannot open a folder: there, does nothing."""
    if os.name != "posix":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def set_aside(path: Path, kept: int) -> None:
    """Makes room for a new file: `path` becomes NAME.1, that NAME.2 and so on; at most `kept` of them stay. Raises OSError."""
    for number in range(kept, 1, -1):
        older = path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            os.replace(older, path.with_name(f"{path.name}.{number}"))
    os.replace(path, path.with_name(f"{path.name}.1"))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into that takes the place of `path` at the end of the block, whole and on disk; after an error, never.

    Until then its name begins with a dot and ends in .partial, so that nobody takes it for what it will be. Raises OSError as
    the system does (no space, say); the old file then stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def is_wildcard(host: str) -> bool:
    """Whether this means every address of the machine, so that nobody can connect to it by that name."""
    return ipaddress.ip_address(host).is_unspecified


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; a name is taken for one that others can."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # what connections of the life before have left does not count
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4])
        except OSError:
            return False
    return True


def in_url(host: str) -> str:
    """An address or name as it stands before a colon and a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


class TransportSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """settings/transport.json: how the processes of a run reach one another, and how large their files of metrics become."""

    bind: str = ""  # address that servers listen on over TCP; empty: private sockets of this user
    advertise: str = ""  # name or address that clients connect to; empty: that of `bind`, for a wildcard the host's name
    metrics_bytes: int = 20_000_000  # a file of metrics is set aside at this size
    files_kept: int = 1  # set aside, of each kind


class RunDir:
    """`runs/NAME`: one folder that holds everything about a run, and names each thing in it."""

    def __init__(self, path: Path) -> None:
        """Nothing is created: see `create`."""
        self.path = path.resolve()

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def config(self) -> Path:
        """The resolved configuration, enough to run it again."""
        return self.path / "config.toml"

    @property
    def spec(self) -> Path:
        """The experience spec that every process of the run shares."""
        return self.path / "spec.json"

    @property
    def spaces(self) -> Path:
        """What the environment's observations and actions are, so that a policy can be used without it."""
        return self.path / "spaces.json"

    @property
    def policy(self) -> Path:
        """What the policy's network is made of: whoever acts reads it instead of building the network."""
        return self.path / "policy.json"

    @property
    def device(self) -> Path:
        """What the learner computes on, and in which precision."""
        return self.path / "device.json"

    @property
    def lock(self) -> Path:
        """Held by the supervisor while the run is up."""
        return self.path / "run.lock"

    @property
    def status(self) -> Path:
        """The supervisor's last word on every process, replaced each second."""
        return self.path / "status.json"

    @property
    def checkpoints(self) -> Path:
        """Weights on disk."""
        return self.path / "checkpoints"

    @property
    def latest(self) -> Path:
        """The learner's newest weights on disk."""
        return self.checkpoints / "latest.safetensors"

    @property
    def announced(self) -> Path:
        """The highest policy version that was ever announced, in digits."""
        return self.checkpoints / "announced"

    @property
    def curriculum(self) -> Path:
        """The level that the run's tasks have reached, where they have levels."""
        return self.checkpoints / "curriculum.json"

    @property
    def segments(self) -> Path:
        """The acknowledged chunks that replay holds, and what it knows of them."""
        return self.path / "replay"

    @property
    def best(self) -> Path:
        """The weights that did best in the evaluator's hands."""
        return self.checkpoints / "best.safetensors"

    @property
    def compiled(self) -> Path:
        """What the learner's compiler has made, for its next life."""
        return self.path / "compiled"

    @property
    def tensorboard(self) -> Path:
        """Event files, one for each life of the supervisor."""
        return self.path / "tensorboard"

    @property
    def videos(self) -> Path:
        """What `headrace demo` recorded."""
        return self.path / "videos"

    def log(self, process: str) -> Path:
        """What a process printed."""
        return self.path / "logs" / f"{process}.log"

    def metrics(self, process: str) -> Path:
        """What a process measured, one JSON object per line."""
        return self.path / "metrics" / f"{process}.jsonl"

    def settings(self, process: str) -> Path:
        """What a process is given, resolved and typed; of `transport`, what all are given."""
        return self.path / "settings" / f"{process}.json"

    @property
    def transport(self) -> TransportSettings:
        """Those of all processes; the defaults where none have been written. Raises msgspec.ValidationError."""
        try:
            return msgspec.json.decode(self.settings("transport").read_bytes(), type=TransportSettings)
        except FileNotFoundError:
            return TransportSettings()

    @property
    def key_folder(self) -> Path:
        """What the processes of a run that is reached over a network know one another by."""
        return self.path / "keys"

    def keys(self, name: str) -> Keys | None:
        """Those of the process `name`, where the run has keys and listens on TCP. Raises KeysError."""
        return Keys(self.key_folder, name) if self.transport.bind and self.key_folder.exists() else None

    def create(self) -> None:
        """Makes the folders of a run."""
        for folder in ("logs", "metrics", "checkpoints", "endpoints", "replay", "settings"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)

    @property
    def sockets(self) -> Path:
        """A short-named folder for ipc sockets that only this user may enter; the same for every start of the run."""
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        token = hashlib.blake2b(str(self.path).encode(), digest_size=6).hexdigest()
        user = os.getuid() if hasattr(os, "getuid") else 0
        return Path(base) / f"headrace-{user}-{token}"

    def bind_address(self, role: str) -> str:
        """Where the server of `role` binds: TCP where an address is given; else ipc in a private folder, or a loopback port where
        there is no ipc.

        After a restart the address is the one of the life before; that over TCP also when the run is resumed.
        """
        if host := self.transport.bind:
            return f"tcp://{in_url(host)}:{self._port(role, host)}"
        if sys.platform == "win32" or len(str(self.sockets)) > MAX_SOCKET_PATH - len(role):
            previous = self.endpoint(role)
            return previous if previous and previous.startswith("tcp://127.0.0.1:") else "tcp://127.0.0.1:*"
        folder = self.sockets
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} must be a folder that only you may enter (mode 0700); remove it and start again")
        return f"ipc://{folder}/{role}"

    def _port(self, role: str, host: str) -> str:
        """The port that the server of `role` had before, or any: one that somebody has taken while the run was down."""
        try:
            port = str(int((self.path / "endpoints" / f"{role}.port").read_text()))
        except (OSError, ValueError):
            return "*"
        return port if self.endpoint(role) or is_free(host, int(port)) else "*"

    def remove_sockets(self) -> None:
        """Deletes the socket folder and the endpoint files, so that nothing of a stopped run can be mistaken for a live one."""
        for folder in (self.sockets, self.path / "endpoints"):
            if folder.is_dir():
                for entry in folder.iterdir():
                    if entry.suffix != ".port":
                        entry.unlink(missing_ok=True)
        if self.sockets.is_dir():
            self.sockets.rmdir()

    def write_endpoint(self, role: str, address: str) -> None:
        """Says where the server of `role` listens, in words for its clients. Called after it is bound to `address`."""
        transport, folder = self.transport, self.path / "endpoints"
        if host := transport.bind:
            port = address.rpartition(":")[2]
            write_atomically(folder / f"{role}.port", port.encode())
            if named := transport.advertise or (socket.gethostname() if is_wildcard(host) else ""):
                address = f"tcp://{in_url(named)}:{port}"
        text = json.dumps({"role": role, "address": address, "pid": os.getpid()})
        write_atomically(folder / f"{role}.json", text.encode())

    def endpoint(self, role: str) -> str | None:
        """Where the server of `role` listens, or None while it has not said so."""
        try:
            address = json.loads((self.path / "endpoints" / f"{role}.json").read_text())["address"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None
        return address if isinstance(address, str) else None

    def wait_for_endpoint(self, role: str, stopping: Callable[[], bool]) -> str | None:
        """Blocks until the server of `role` has bound, or returns None when `stopping()`."""
        while not stopping():
            address = self.endpoint(role)
            if address is not None:
                return address
            time.sleep(0.05)
        return None
