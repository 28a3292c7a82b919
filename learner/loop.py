"""The learner's loop: get a batch, update, send priorities; after each epoch read the metrics, publish and save the weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from learner.algorithms.base import make_algorithm, read_algorithm
from learner.computing.choose import begin
from learner.config import LearnerSettings
from learner.description import check_description
from learner.feed.base import DeviceBatch, Feed
from learner.feed.open import open_feed
from learner.parallel.base import ALONE, Group
from learner.saving.rollback import Rollback
from learner.saving.training_checkpoints import TrainingCheckpoints
from learner.serving.publish import Publication, ServedWeights, announced
from learner.updates.base import Update
from replay.shards import shard_names
from transport.experience import ExperienceSpec
from transport.files.documents import read_bytes
from transport.files.writing import write_atomically
from transport.lifetime import Lifetime
from transport.run_dir import RunDir

WAIT_SECONDS = 0.2
REST_SECONDS = 0.25  # of a paused run: between two reads of replay's messages
MOST_UPDATES = 10_000  # of an epoch in episodes: where none ends, actors would never get new weights
CACHE_EPOCHS = 1_000  # epochs between emptying the allocator's cache


class Learner:
    """One learner process, alone or in a group."""

    def __init__(
        self,
        settings: LearnerSettings,
        spec: ExperienceSpec,
        run_dir: RunDir,
        life: Lifetime,
        group: Group = ALONE,
        publish: Callable[[Update, int], Publication] | None = None,
    ) -> None:
        """Builds or resumes everything on the device and publishes the first weights, in a group those of rank 0.

        `publish` makes what gives weights to those that act, and gives them the current ones as that version; None: servers.
        Raises ValueError (also DeviceError) and OSError.
        """
        self.settings, self.spec, self.group = settings, spec, group
        self._run_dir, self._life, self.metrics = run_dir, life, life.metrics
        algorithm = make_algorithm(read_algorithm(settings.algorithm))
        self.runtime, self.update = begin(algorithm, settings, spec, run_dir, life, group)
        check_description(run_dir, self.update.modules["policy"])
        self.checkpoints = TrainingCheckpoints(settings, spec, run_dir, self.update, self.runtime, self.metrics)
        self.epoch, version = self._resume()
        self.metrics.gauge("epoch", self.epoch)
        self._checkpoint_due, self._checkpoint_time = False, time.monotonic()
        self.publication = (
            ServedWeights(self.update, version, run_dir, life, group) if publish is None else publish(self.update, version)
        )
        self.rollback = Rollback(self.update, self.runtime, self.checkpoints, self.publication, self.metrics)
        if line := self.runtime.choose_stacking(self.update.modules.values(), spec):
            group.say(line)

    @property
    def version(self) -> int:
        """The version of the published policy."""
        return self.publication.version

    def announce(self) -> None:
        """Writes the first line of the log, and the file in which other processes read the device."""
        device, precision = self.runtime.place, self.runtime.precision
        text, path = json.dumps({"device": device, "precision": precision}).encode(), self._run_dir.device
        if not path.is_file() or read_bytes(path) != text:  # a learner may be started again on a full disk
            write_atomically(path, text)
        group, batch_size = self.group, self.settings.learner.batch_size
        how = f"on {device} in {precision}" + (" by numpy" if self.runtime.library == "numpy" else "")
        how += f", {group.size} processes with as many each" if group.size > 1 else ""
        size = "steps per rollout batch" if self.spec.unit == "rollouts" else "items per update"
        group.say(f"{batch_size:,} {size} {how}, {self.runtime.parameters:,} parameters")

    def run(self) -> bool:
        """Trains until the process is asked to stop, then saves. Returns whether the disk took it. Raises ReplayRefused, OSError,
        Diverged."""
        names = shard_names(self.settings.replay.shards)
        found = (self._run_dir.wait_for_endpoint(name, lambda: not self.runtime.waiting()) for name in names)
        addresses = [address for address in found if address is not None]
        if self.group.any(len(addresses) < len(names)):
            self.group.close()
            self.publication.close()
            return True
        feed = open_feed(addresses, self.settings, self.spec, self.runtime, self._life)
        try:
            self._life.ready()
            while not self.runtime.ending:
                self.train_epoch(feed)
            feed.finish()
            self.group.close()
            self._life.beat()  # the time for the stop counts from here
            # Also after updates that were skipped: the weights are sound.
            return self.checkpoints.save(self.epoch, self.version) or self.checkpoints.unsound
        finally:
            feed.close()
            self.publication.close()

    def train_epoch(self, feed: Feed) -> None:
        """All updates of an epoch, then metrics, weights and checkpoint."""
        updates, complete, begun = 0, False, None
        while not complete:
            drawn = self._wait(feed)
            if drawn is None:
                return
            if begun is None:
                self.runtime.follow_schedule(feed.steps)
                begun = feed.episodes
            begun = min(begun, feed.episodes)  # a restarted replay counts anew
            self.metrics.mean("lag_mean", self.version - drawn.mean_version)
            with self.metrics.phase("update"):
                outcome = self.update.update(drawn.batch)
            feed.done(drawn, outcome.priorities)
            if self.runtime.ending:
                return
            updates += 1
            complete = self._completes(updates, feed.episodes - begun, feed)
        self.epoch += 1
        self.metrics.gauge("epoch", self.epoch)
        figures = self.runtime.read(outcome.metrics | self.runtime.figures())  # waits for the device
        for name, value in figures.items():
            self.metrics.gauge(name, value)
        went_back = self.rollback.go_back_if_needed(figures)
        if went_back or self.epoch % self.settings.learner.publish_epochs == 0:
            with self.metrics.phase("publish"):
                self.publication.publish()
        # A checkpoint is put off while the last update was not finite, or it would be restored after a rollback.
        regular = self.epoch % self.settings.learner.checkpoint_epochs == 0
        self._checkpoint_due |= regular or self.group.any(self._checkpoint_overdue)
        if self._checkpoint_due and not self.rollback.unsettled and not went_back:
            self._save()
        if self.epoch % CACHE_EPOCHS == 0:
            self.runtime.clear_cache()
        feed.end_epoch(self.version)  # rollouts: requests the next one, now that the weights are published

    def _completes(self, updates: int, episodes: int, feed: Feed) -> bool:
        """True if an epoch ends after this number of updates, during which `episodes` were collected; the same in a group."""
        wanted = self.settings.learner.episodes_per_epoch
        if not wanted or self.spec.unit == "rollouts":
            return updates >= feed.updates_per_epoch
        return self.group.any(episodes >= wanted) or updates >= MOST_UPDATES

    def _wait(self, feed: Feed) -> DeviceBatch | None:
        """The next batch, once every process of the group has one; None, in all of them, if one is asked to stop."""
        drawn = None
        while drawn is None and not self._life.stopping:
            self._follow_orders(feed)
            drawn = feed.next(WAIT_SECONDS)
            if drawn is None:
                self._life.beat()
        with self.metrics.phase("data_wait"):
            self.runtime.ending = self.group.any(drawn is None)
        return None if self.runtime.ending else drawn

    def _follow_orders(self, feed: Feed) -> None:
        """Between two updates: writes the checkpoint that an operator has ordered, and rests while the run is paused.

        In a group only rank 0 hears of either. While it rests, the others wait for it in their next collective.
        """
        life, finished = self._life, False
        while not life.stopping and (life.order is not None or life.paused):
            if life.order is not None:
                self._save_as_ordered()
                continue
            if not finished:
                feed.finish()  # replay gets the last priorities now
                finished = True
            feed.poll()
            life.sleep(REST_SECONDS, resting=True)

    def _save_as_ordered(self) -> None:
        if self.rollback.unsettled:
            self._life.answer(False, "the last update was not finite, so no checkpoint is written now; try again a little later")
            return
        saved = self._write_checkpoint()
        if saved:
            self.group.say(f"wrote {self.checkpoints.outcome}, as ordered")
        self._life.answer(saved, f"wrote {self.checkpoints.outcome}" if saved else self.checkpoints.outcome)

    @property
    def _checkpoint_overdue(self) -> bool:
        longest = self.settings.learner.checkpoint_seconds
        return 0 < longest <= time.monotonic() - self._checkpoint_time

    def _write_checkpoint(self) -> bool:
        with self.metrics.phase("checkpoint"):
            saved = self.checkpoints.save(self.epoch, self.version)
        self._checkpoint_time = time.monotonic()
        return saved

    def _save(self) -> None:
        saved = self._write_checkpoint()
        self._checkpoint_due = False
        if not self.group.any(not saved):
            self.rollback.progressed()

    def _cloned(self) -> bool:
        """Whether the policy has imitated demonstrations."""
        steps, seed = self.settings.learner.clone_steps, self.settings.seed
        if steps and not self.group.rank:  # the others take its weights
            from learner.cloning import clone  # torch

            algorithm = make_algorithm(read_algorithm(self.settings.algorithm))
            found = clone(algorithm, self.spec, self._run_dir, steps, seed, self.group.say, self._life.beat)
            self.checkpoints.begin_with(found)
        return steps > 0

    def _resume(self) -> tuple[int, int]:
        """The epoch to continue from, and a version that no actor can have seen with other weights."""
        epoch, version = 0, announced(self._run_dir) + 1
        if (saved := self.checkpoints.resume()) is not None:
            epoch, version = saved.epoch, max(version, saved.version + 1)
            updates = self.metrics.value("updates")
            self.group.say(f"continues from {saved.file}: epoch {epoch:,}, {updates:,.0f} updates, policy v{version}")
        elif self.settings.learner.weights or self._cloned():
            version = max(version, 1)  # the weights are trained: actors may act at random while they are of version 0
        if self.group.size > 1:  # weights and version of rank 0
            version = self.group.total(0 if self.group.rank else version)
            modules = self.update.modules.values()
            self.group.equalise(parameter for module in modules for parameter in module.parameters())
            self.group.draw_apart()
        return epoch, version
