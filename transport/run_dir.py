"""The files and folders of a run, and the addresses of its sockets."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import msgspec

from transport.files.documents import Damaged, read_document, read_text
from transport.files.writing import remove, write_atomically
from transport.sockets.keys import Keys
from transport.system import in_url, is_free, is_wildcard

SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.002, 0.05  # between two looks for an endpoint
MAX_SOCKET_PATH = 100  # for folder and role together; the kernel allows 107 bytes
LONGEST_ROLE = "supervisor"


def _takes_sockets(folder: Path) -> bool:
    """Makes the folder. True if only this user can enter it and its file system has sockets."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "getuid"):
        return False
    trial = folder / f".{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(trial))
        return True
    except OSError:
        return False
    finally:
        with suppress(OSError):
            trial.unlink()


def _empty(folder: Path) -> None:
    """Deletes the sockets and endpoint files in a folder. Raises OSError."""
    if folder.is_dir() and not folder.is_symlink():
        for entry in folder.iterdir():
            if entry.suffix != ".port":
                remove(entry)


class TransportSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """settings/transport.json: how the processes of a run connect to each other, and the limits of their metrics files."""

    bind: str = ""  # address on which servers listen, over TCP; empty: private sockets of this user
    ports: dict[str, int] = {}  # of servers, by endpoint; one that is not there has any that is free
    advertise: str = ""  # name or address that clients connect to; empty: `bind`, or the host's name if that is a wildcard
    metrics_bytes: int = 20_000_000  # size at which a metrics file is rotated
    files_kept: int = 1  # rotated files that are kept, of each kind
    record_seconds: float = 5.0  # between two records of a process


class Endpoint(msgspec.Struct, frozen=True):
    """endpoints/ROLE.json, as far as clients read it."""

    address: str


class RunDir:
    """The paths in a run's folder, `runs/NAME`. `create` makes the folders."""

    def __init__(self, path: Path) -> None:
        self.path = path = Path(os.path.realpath(path))  # resolve() raises RuntimeError for a link to itself
        self.name = path.name
        self.config = path / "config.toml"  # the resolved configuration: all that is needed to repeat the run
        self.spec = path / "spec.json"  # the experience spec of all processes
        self.spaces = path / "spaces.json"  # of observation and action, so that a policy can be used without the environment
        self.policy = path / "policy.json"  # the policy network's description, from which actors and the evaluator make it
        self.device = path / "device.json"  # the learner's device and precision
        self.lock = path.parent / ".locks" / path.name  # locked by the process that starts, supervises or changes the run
        self.status = path / "status.json"  # the state of every process, written by the supervisor each second
        self.checkpoints = path / "checkpoints"
        self.latest = self.checkpoints / "latest.safetensors"  # the learner's newest checkpoint
        self.best = self.checkpoints / "best.safetensors"  # the weights with the best evaluation
        self.announced = self.checkpoints / "announced"  # the highest policy version announced so far, as text
        self.curriculum = self.checkpoints / "curriculum.json"  # the level of the curriculum, if the environment has levels
        self.segments = path / "replay"  # replay's segment log and saved state
        self.demonstrations = path / "demonstrations"  # chunks of --replay.demonstrations, as segments
        self.human_steps = path / "human"  # replay's log of human steps, which stay when its table evicts them
        self.compiled = path / "compiled"  # the learner's compiled code, reused after a restart
        self.events = path / "events.jsonl"  # starts, ends, restarts with their reasons, and bad input
        self.evaluated = path / "evaluated.jsonl"  # results of `headrace eval` for the run's own weights
        self.tensorboard = path / "tensorboard"  # event files, one for each start of the supervisor
        self.videos = path / "videos"  # of the best policies, recorded by the evaluator
        self.fork_point = path / "fork.json"  # of which run this is a fork, and from which point of it
        self.key_folder = path / "keys"  # the CURVE keys of a run whose processes connect over a network

    def log(self, process: str) -> Path:
        """The output of a process."""
        return self.path / "logs" / f"{process}.log"

    def metrics(self, process: str) -> Path:
        """The metrics records of a process, one JSON object per line."""
        return self.path / "metrics" / f"{process}.jsonl"

    def settings(self, process: str) -> Path:
        """The resolved settings of a process; `transport`: those of all processes."""
        return self.path / "settings" / f"{process}.json"

    @property
    def transport(self) -> TransportSettings:
        """The connection settings of all processes; the defaults if there is no file. Raises Damaged, OSError."""
        try:
            return read_document(self.settings("transport"), TransportSettings)
        except FileNotFoundError:
            return TransportSettings()

    def keys(self, name: str) -> Keys | None:
        """The keys of the process `name`; None if the run has no keys or does not use TCP. Raises KeysError."""
        return Keys(self.key_folder, name) if self.transport.bind and self.key_folder.exists() else None

    def make_private(self) -> None:
        """Makes the run's folder, which only this user may enter: it holds keys, code by name and locks. One that exists stays as
        it is."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the folder, which another one of the same name does not have; None where there is none. Raises
        OSError where it cannot be looked at, as on a network drive whose ticket has expired."""
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def create(self) -> None:
        self.make_private()
        for folder in ("logs", "metrics", "checkpoints", "endpoints", "replay", "settings"):
            (self.path / folder).mkdir(exist_ok=True)

    @property
    def socket_folders(self) -> list[Path]:
        """The folders that may hold the ipc sockets, the best first: in the run's folder, which no cleaner of temporary files
        touches; then, because their paths are shorter, in the user's cache and in the folder for temporary files."""
        token = hashlib.blake2b(str(self.path).encode(), digest_size=6).hexdigest()
        user = os.getuid() if hasattr(os, "getuid") else 0
        cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "headrace" / token
        folders = [self.path / "sockets", cache, Path(tempfile.gettempdir()) / f"headrace-{user}-{token}"]
        return [
            folder for folder in folders if folder.is_absolute() and len(os.fsencode(folder / LONGEST_ROLE)) <= MAX_SOCKET_PATH
        ]

    @cached_property
    def sockets(self) -> Path | None:
        """A folder for ipc sockets that only this user can enter, the same at each start; None where none can be made."""
        self.make_private()
        return next((folder for folder in self.socket_folders if _takes_sockets(folder)), None)

    def bind_address(self, role: str) -> str:
        """The address of the server of `role`: TCP if the settings have an address, else as local_address() has it.

        After a restart a server gets the same address; over TCP it also keeps its port when the run is resumed.
        """
        host = self.transport.bind
        return f"tcp://{in_url(host)}:{self._port(role, host)}" if host else self.local_address(role)

    def local_address(self, role: str) -> str:
        """The address of a server for processes of this machine alone: ipc in a private folder, otherwise loopback."""
        if self.sockets is None:
            if others := [folder for folder in self.socket_folders if os.path.exists(folder)]:
                raise PermissionError(
                    f"{others[0]} must be a folder that only you can enter (mode 0700); remove it and start again"
                )
            previous = self.endpoint(role)
            return previous if previous and previous.startswith("tcp://127.0.0.1:") else "tcp://127.0.0.1:*"
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        return f"ipc://{self.sockets}/{role}"

    def _port(self, role: str, host: str) -> str:
        """The port that the settings have for the server of `role`. Without one, its previous port; "*", any free port, if it had
        none or another program uses it now."""
        if fixed := self.transport.ports.get(role):
            return str(fixed)
        try:
            port = str(int(read_text(self.path / "endpoints" / f"{role}.port")))
        except (OSError, ValueError):
            return "*"
        return port if self.endpoint(role) or is_free(host, int(port)) else "*"

    def remove_sockets(self) -> None:
        """Deletes the socket folder and the endpoint files of a run that has stopped."""
        _empty(self.path / "endpoints")
        for folder in self.socket_folders:
            with suppress(OSError):  # there is none, or it belongs to someone else
                _empty(folder)
                folder.rmdir()

    def write_endpoint(self, role: str, address: str, local: bool = False) -> None:
        """Publishes the address of the server of `role` for its clients; `local`: they are on this machine. Call it after the
        server has bound to `address`. Raises OSError, but not where the server before had the same address: on a full disk its
        file stays."""
        transport, files = self.transport, dict[str, str]()
        if (host := transport.bind) and not local:
            port = files[f"{role}.port"] = address.rpartition(":")[2]
            if advertised := transport.advertise or (socket.gethostname() if is_wildcard(host) else ""):
                address = f"tcp://{in_url(advertised)}:{port}"
        files[f"{role}.json"] = msgspec.json.encode({"role": role, "address": address, "pid": os.getpid()}).decode()
        try:
            for name, text in files.items():
                write_atomically(self.path / "endpoints" / name, text.encode())
        except OSError:
            if self.endpoint(role) != address:
                raise

    def endpoint(self, role: str) -> str | None:
        """The address of the server of `role`; None until the server has published it."""
        try:
            return read_document(self.path / "endpoints" / f"{role}.json", Endpoint).address
        except (OSError, Damaged):
            return None

    def wait_for_endpoint(self, role: str, stopping: Callable[[], bool]) -> str | None:
        """Blocks until the server of `role` has published its address; returns None when `stopping()`."""
        pause = SHORTEST_PAUSE_SECONDS
        while not stopping():
            address = self.endpoint(role)
            if address is not None:
                return address
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return None
