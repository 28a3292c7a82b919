"""The files that an actor on a host reads: collected by the supervisor, written into a folder of the host.

Nothing in it is run: the host decodes each part into its type, and refuses settings that name code unless its user allows that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import structs

from actors import trust
from actors.config import ActorProcess
from deploy import settings
from deploy.config.run import RunConfig
from deploy.places.remote.hosts import Parts
from learner.description import read_description
from learner.serving.relay import SERVED, of_learner
from transport.experience import read_spec
from transport.files.documents import decode, read_bytes
from transport.files.writing import write_atomically
from transport.messages.hosts import Folder
from transport.run_dir import RunDir, TransportSettings
from transport.sockets import keys
from transport.sockets.authenticator import new_pair
from transport.sockets.keys import Pair


class FolderRefused(ValueError):
    """A folder that this host does not take; one line."""


def collect(run: RunDir, config: RunConfig) -> Parts | None:
    """The files of a run for its hosts; None while a server has no address, and in a run without keys. Raises KeysError."""
    endpoints = {role: run.endpoint(role) for role in settings.servers(config.replay.shards)}
    if not run.key_folder.exists() or not run.spec.is_file():
        return None
    known = {role: address for role, address in endpoints.items() if address is not None}
    if len(known) < len(endpoints):
        return None
    listed = keys.KeyList(run.key_folder / keys.LIST).by_name()
    public = {name: listed[name] for name in sorted(set(keys.OWNERS.values())) if name in listed}
    files = (
        read_bytes(run.spec),
        read_bytes(run.policy) if run.policy.is_file() else b"",
        settings.encode(settings.connections(config)),
        settings.encode(settings.acting(config)),
    )
    limits = config.actors.memory_bytes, config.deploy.orphan_seconds
    told = _digest(msgspec.json.encode([run.name, known, public, limits]), *files)
    return Parts(Folder(f"{settings_digest(run, config)}-{told}", run.name, known, public, *limits), files)


def settings_digest(run: RunDir, config: RunConfig) -> str:
    """Digest of an actor's settings without actors.count, which may change during a run. Raises OSError."""
    acting = structs.replace(settings.acting(config), actors=structs.replace(config.actors, count=0))
    files = [read_bytes(path) if path.is_file() else b"" for path in (run.spec, run.policy)]
    return _digest(*files, settings.encode(acting))


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:24]


class HostFolder:
    """The folder of a run on a host, in which its actors are started."""

    def __init__(self, path: Path, allowed: Sequence[str], pair: Pair, places: int) -> None:
        """`allowed`: the packages that the run's settings may name for its actors to import. `pair`: the host's keys, by which
        the processes that serve its actors fetch the weights. With one of its `places` there is no relay."""
        self.run = RunDir(path)
        self.digest = ""  # of the files that were written
        self.servers: tuple[Literal["relay", "inference"], ...] = ()  # roles of processes that are to serve the actors
        self._allowed, self._pair, self._places = allowed, pair, places
        self._acting = self._inference = b""

    def write(self, folder: Folder, parts: Sequence[bytes]) -> None:
        """Replaces its files. Raises FolderRefused, also where settings name code that is not allowed; OSError."""
        try:
            spec, policy, connections, acting = parts
            read_spec(spec)
            if policy:
                read_description(policy)
            decode(connections, TransportSettings)
            process = decode(acting, ActorProcess)
            self._check_code(process)
        except ValueError as error:
            if isinstance(error, FolderRefused):
                raise
            raise FolderRefused(f"what the supervisor sent cannot be read: {error}") from error
        if not set(settings.servers(process.shards)) >= set(folder.endpoints) or not all(
            map(_over_tcp, folder.endpoints.values())
        ):
            raise FolderRefused("the supervisor sent addresses that are none of its servers'")
        self.run.create()
        files = {self.run.spec: spec, self.run.settings("transport"): connections, self.run.policy: policy}
        relays, batched = (
            self._places > 1 and bool(policy) and self.run.sockets is not None,
            process.actors.inference == "batched",
        )
        self.servers = (*(("relay",) if relays else ()), *(("inference",) if batched else ()))
        for role, address in self._endpoints(folder).items():
            files[self.run.path / "endpoints" / f"{role}.json"] = json.dumps({"role": role, "address": address}).encode()
        for path, content in files.items():
            if content:
                write_atomically(path, content)
        for name in set(keys.OWNERS.values()) & set(folder.public_keys):
            keys.admit(self.run.key_folder, name, folder.public_keys[name])
        self._acting, self._inference, self.digest = acting, settings.encode(settings.inference(process)), folder.digest

    def prepare(self, name: str) -> str:
        """Makes the settings and a new pair of keys for an incarnation of the actor `name`. Returns the public key. Raises
        OSError."""
        write_atomically(self.run.settings(name), self._acting)
        keys.make(self.run.key_folder, (name,), new_pair, renew=True)
        return keys.read_pair(self.run.key_folder, name).public

    def prepare_server(self, name: str) -> None:
        """Gives a process that serves the actors its keys, those of the host, and its settings. Raises OSError."""
        write_atomically(self.run.settings(name), self._inference)  # a relay reads none
        keys.make(self.run.key_folder, (name,), lambda: self._pair, renew=True)

    def _endpoints(self, folder: Folder) -> dict[str, str]:
        """The addresses that processes of this host connect to, by endpoint."""
        if "relay" not in self.servers:
            return folder.endpoints
        relayed = [endpoint for endpoint in SERVED if endpoint in folder.endpoints]
        to_learner = {of_learner(endpoint): folder.endpoints[endpoint] for endpoint in relayed}
        return folder.endpoints | to_learner | {endpoint: f"ipc://{self.run.sockets}/{endpoint}" for endpoint in relayed}

    def _check_code(self, acting: ActorProcess) -> None:
        for key, values in trust.code_of(acting).items():
            for value in values:
                module = value.partition(":")[0]
                if not any(module == name or module.startswith(f"{name}.") for name in self._allowed):
                    package = module.partition(".")[0]
                    advice = f"join with --allow {package} if you trust it"
                    raise FolderRefused(f"the run's {key} names {value}, which this host does not allow: {advice}")


def _over_tcp(address: str) -> bool:
    return address.startswith("tcp://")
