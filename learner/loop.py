"""The learner's loop: a batch, an update, priorities back; after each epoch figures are read, weights published and saved."""

from __future__ import annotations

import torch

from learner.algorithms.base import make_algorithm
from learner.config import LearnerSettings
from learner.devices import capabilities as devices
from learner.feed import DeviceBatch, Feed, open_feed
from learner.networks.describe import check_description
from learner.parallel.group import ALONE, Group
from learner.parallel.ranks import resolve_each
from learner.updates.base import Tensors
from learner.updates.runtime import LearnerRuntime
from learner.weights.publication import Publication, announced
from learner.weights.rollback import Rollback
from learner.weights.training_checkpoints import TrainingCheckpoints
from transport.lifetime import Lifetime
from transport.run_dir import RunDir

WAIT_SECONDS = 0.2
CACHE_EPOCHS = 1_000  # epochs between returns of reserved memory to the device


class Learner:
    """One learner process, alone or as one of a group."""

    def __init__(self, settings: LearnerSettings, run_dir: RunDir, life: Lifetime, group: Group = ALONE) -> None:
        """Builds everything on the device and publishes the first weights; in a group all processes begin with rank 0's.
        Raises ValueError (DeviceError too), OSError."""
        self.settings, self.group, self._run_dir, self._life, self._metrics = settings, group, run_dir, life, life.metrics
        config = settings.learner
        self.device = resolve_each(config.device, group.size)[group.rank]
        devices.set_up(self.device, max(config.threads // group.size, 1))
        torch.manual_seed(settings.seed)
        self.runtime = LearnerRuntime(config, self.device, group, life, settings.max_policy_lag, run_dir.compiled)
        self.algorithm = make_algorithm(settings.algorithm)
        self.update = self.algorithm.update(settings.spec, self.runtime)
        check_description(run_dir, self.update.modules["policy"])
        self.checkpoints = TrainingCheckpoints(settings, run_dir, self.update, self.runtime, self._metrics)
        self.epoch, version = self._resume()
        self._checkpoint_due = False
        self.publication = Publication(self.update, version, run_dir, life, group)
        self.rollback = Rollback(self.update, self.runtime, self.checkpoints, self.publication, self._metrics)

    @property
    def version(self) -> int:
        """Of the published policy."""
        return self.publication.version

    def run(self) -> None:
        """Until the process is to stop; then the last checkpoint. Raises ReplayRefused, OSError, Diverged."""
        address = self._run_dir.wait_for_endpoint("replay", lambda: not self.runtime.waiting())
        if self.group.any(address is None) or address is None:
            return
        feed = open_feed(address, self.settings, self.runtime, self._life)
        try:
            self._life.ready()
            while not self.runtime.ending:
                self._learn(feed)
            feed.finish()
            self._save_at_the_end()
        finally:
            feed.close()
            self.publication.close()

    def _learn(self, feed: Feed) -> None:
        """One epoch."""
        for _ in range(feed.updates_per_epoch):
            drawn = self._wait(feed)
            if drawn is None:
                return
            self._metrics.mean("lag_mean", self.version - drawn.mean_version)
            with self._metrics.phase("update"):
                outcome = self.update.update(drawn.batch)
            feed.done(drawn, outcome.priorities)
            if self.runtime.ending:
                return
        self.epoch += 1
        self._metrics.gauge("epoch", self.epoch)
        figures = read(outcome.metrics | self.runtime.figures())
        for name, value in figures.items():
            self._metrics.gauge(name, value)
        went_back = self.rollback.go_back_if_needed(figures)
        if went_back or self.epoch % self.settings.learner.publish_epochs == 0:
            with self._metrics.phase("publish"):
                self.publication.publish()
        self._checkpoint_due |= self.epoch % self.settings.learner.checkpoint_epochs == 0
        if self._checkpoint_due and not self.rollback.unsettled and not went_back:
            self._save()
        if self.epoch % CACHE_EPOCHS == 0:
            devices.clear_cache(self.device)
        feed.end_epoch(self.version)

    def _wait(self, feed: Feed) -> DeviceBatch | None:
        """The next batch, when every process of the group has its own; None, and all end, when one of them is to stop."""
        drawn = None
        while drawn is None and not self._life.stopping:
            drawn = feed.next(WAIT_SECONDS)
            if drawn is None:
                self._life.beat()
        with self._metrics.phase("data_wait"):
            self.runtime.ending = self.group.any(drawn is None)
        return None if self.runtime.ending else drawn

    def _save(self) -> None:
        with self._metrics.phase("checkpoint"):
            saved = self.checkpoints.save(self.epoch, self.version)
        self._checkpoint_due = False
        if not self.group.any(not saved):
            self.rollback.progressed()

    def _save_at_the_end(self) -> None:
        if self.rollback.unsettled:
            self.group.say("the last updates were not finite: no checkpoint of them, those before are kept")
        else:
            self.checkpoints.save(self.epoch, self.version)

    def _resume(self) -> tuple[int, int]:
        """The epoch to go on from, and the version to publish: one that actors may have seen must not come again with other
        weights."""
        epoch, version = 0, announced(self._run_dir) + 1
        if (reached := self.checkpoints.resume()) is not None:
            epoch, version = reached.epoch, max(version, reached.version + 1)
            updates = self._metrics.value("updates")
            self.group.say(f"continues from {reached.file}: epoch {epoch:,}, {updates:,.0f} updates, policy v{version}")
        if self.group.size > 1:  # the same weights and version as rank 0's, to be sure
            version = self.group.total(0 if self.group.rank else version)
            modules = self.update.modules.values()
            self.group.equalise(parameter for module in modules for parameter in module.parameters())
            if self.group.rank:  # random numbers of its own, which follow from rank 0's
                torch.manual_seed(int(torch.randint(2**62, ())) + self.group.rank)
        return epoch, version


def read(metrics: Tensors) -> dict[str, float]:
    """The one read of the device: waits for it, once for all."""
    return dict(zip(metrics, torch.stack([value.float() for value in metrics.values()]).tolist(), strict=True))
