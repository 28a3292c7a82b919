"""The learner's policy as the others get it: versions that only grow, over all incarnations of a run's learner."""

from __future__ import annotations

from contextlib import suppress

from learner.parallel.group import Group
from learner.updates.base import Update
from learner.weights.publish import WeightPublisher
from transport.lifetime import Lifetime
from transport.run_dir import RunDir, write_atomically


def announced(run_dir: RunDir) -> int:
    """The highest version of all incarnations of this run's learner, -1 before the first."""
    try:
        return int(run_dir.announced.read_text())
    except (OSError, ValueError):
        return -1


class Publication:
    """Publishes one update's policy. Of a group, rank 0 does, for all."""

    def __init__(self, update: Update, version: int, run_dir: RunDir, life: Lifetime, group: Group) -> None:
        """Publishes the policy as it is now as `version`, then tells where. Raises OSError."""
        self._update, self._run_dir, self._group, self._metrics = update, run_dir, group, life.metrics
        self.version = version
        bind = run_dir.bind_address
        self._publisher = None if group.rank else WeightPublisher(bind("weights"), bind("payload"), life.incarnation, life.keys)
        self._publish()
        if self._publisher:
            run_dir.write_endpoint("payload", self._publisher.addresses[1])
            run_dir.write_endpoint("weights", self._publisher.addresses[0])

    def publish(self) -> None:
        """The policy as it is now, as the next version."""
        self.version += 1
        self._publish()

    @property
    def refused_version(self) -> int:
        """The newest version that was not announced since its weights are not finite; -1: none."""
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
        with suppress(OSError):  # on a full disk versions may come again after a crash; the incarnation tells them apart
            write_atomically(self._run_dir.announced, str(self.version).encode())
        self._publisher.publish(self._update.modules["policy"], self.version)
