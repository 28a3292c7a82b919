"""Publishes the policy's weights, version after version. Versions only grow, over all incarnations of a run's learner."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from learner.parallel.base import Group
from learner.serving.serve import Payload, WeightServer, payload_of
from learner.updates.base import Update
from learner.weights.checkpoint import CheckpointError, Stateful, pack
from learner.weights.manifest import version_in
from replay.log.files import open_regular
from transport.files.writing import write_atomically
from transport.lifetime import Lifetime
from transport.run_dir import RunDir
from transport.sockets.keys import Keys
from transport.text import say

if TYPE_CHECKING:
    from torch import Tensor

MOST_LETTERS = 16  # of a version


class WeightPublisher(WeightServer):
    """Serves the newest weights of a module, which it serialises in the server's thread: the learner waits for nothing."""

    def __init__(self, announce_address: str, serve_address: str, incarnation: int, keys: Keys | None = None) -> None:
        """Binds both sockets. Raises OSError."""
        self._incarnation = incarnation
        self.refused = 0  # versions not announced because they were not finite; the thread writes this and the next
        self.refused_version = -1  # the newest of them
        super().__init__(announce_address, serve_address, keys)

    def publish(self, module: Stateful, version: int) -> None:
        """Makes the module's parameters and buffers the newest weights. `version` must grow from call to call.

        Copies them on their device and returns at once: the thread waits for the device, serialises them and computes the sha256.
        """
        weights = {name: _copied(value) for name, value in module.state_dict().items()}
        self.offer(partial(self._pack, version, weights))

    def _pack(self, version: int, weights: dict[str, Tensor | np.ndarray]) -> Payload | None:
        """None for weights that are not finite, which are logged and counted: the last finite ones stay published."""
        try:
            _make_current(next(iter(weights.values())))
            data = pack(weights)
        except CheckpointError as error:
            self.refused, self.refused_version = self.refused + 1, version
            say(f"policy v{version} is not published: {error}")
            return None
        return payload_of(self._incarnation, version, hashlib.sha256(data).hexdigest(), data)


def _copied(value: Tensor | np.ndarray) -> Tensor | np.ndarray:
    return value.copy() if isinstance(value, np.ndarray) else value.detach().clone()


def _make_current(value: Tensor | np.ndarray) -> None:
    """Makes its device that of this thread."""
    if not isinstance(value, np.ndarray):
        from learner.devices.capabilities import make_current

        make_current(value.device)


def announced(run_dir: RunDir) -> int:
    """The highest version that any incarnation of this run's learner has announced; -1 before the first.

    A file that cannot be that is reported and decides nothing: the newest checkpoint has a version, too.
    """
    try:
        with open_regular(run_dir.announced) as file:
            text = file.read(MOST_LETTERS)
    except FileNotFoundError:
        return -1
    except OSError:
        text = b""
    if (version := version_in(text)) is not None:
        return version
    say(f"{run_dir.announced} is damaged: versions of the policy go on after that of the newest checkpoint")
    return -1


class Publication(Protocol):
    """Gives the policy of an update to those that act, version after version."""

    version: int  # the newest

    @property
    def refused_version(self) -> int:
        """The newest version that was not given because its weights were not finite; -1: none."""

    def publish(self) -> None:
        """Gives the current policy as the next version."""

    def close(self) -> None: ...


class ServedWeights:
    """Publishes to other processes. In a group only rank 0 has a publisher."""

    def __init__(self, update: Update, version: int, run_dir: RunDir, life: Lifetime, group: Group) -> None:
        """Publishes the current policy as `version`, then writes the endpoints. Raises OSError."""
        self._update, self._run_dir, self._group, self._metrics = update, run_dir, group, life.metrics
        self.version = version
        bind = run_dir.bind_address
        self._publisher = None if group.rank else WeightPublisher(bind("weights"), bind("payload"), life.incarnation, life.keys)
        self._publish()
        if self._publisher:
            run_dir.write_endpoint("payload", self._publisher.addresses[1])
            run_dir.write_endpoint("weights", self._publisher.addresses[0])

    def publish(self) -> None:
        self.version += 1
        self._publish()

    @property
    def refused_version(self) -> int:
        self._metrics.gauge("refused_weights", self._publisher.refused if self._publisher else 0)
        return self._publisher.refused_version if self._publisher else -1

    def close(self) -> None:
        if self._publisher:
            self._publisher.close()

    def _publish(self) -> None:
        self._group.equalise(buffer for module in self._update.modules.values() for buffer in module.buffers())
        self._metrics.gauge("policy_version", self.version)
        if self._publisher is None:
            return
        # Not fsynced, because actors would wait for weights meanwhile. After a power cut, as on a full disk, the versions since
        # the newest checkpoint may repeat, but under another incarnation.
        with suppress(OSError):
            write_atomically(self._run_dir.announced, str(self.version).encode())
        self._publisher.publish(self._update.modules["policy"], self.version)
