"""The learner's loop: pull a batch, update, send priorities back; now and then, publish."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Dqn
from learner.algorithms.make import make_algorithm
from learner.algorithms.ppo.rollouts import Items, to_rollout
from learner.algorithms.ppo.update import Ppo
from learner.algorithms.sac.update import Sac
from learner.config import AlgorithmConfig, LearnerConfig
from learner.devices import capabilities as devices
from learner.feed import Batches, Drawn, make_batches, to_device
from learner.parallel.group import ALONE, Group
from learner.parallel.ranks import resolve_each
from learner.updates.compile import CompileError, cache_in, compile_loss
from learner.updates.graphs import RecordError, record
from learner.updates.optimiser import Optimiser
from learner.weights import checkpoint, resume
from learner.weights.checkpoint import CheckpointError, Checkpoints
from learner.weights.publish import WeightPublisher
from learner.weights.rollback import Watch
from replay.client import SampledBatch, Sampler
from transport.experience import ExperienceSpec
from transport.lifetime import Lifetime, say
from transport.metrics import Record
from transport.run_dir import RunDir, write_atomically

WAIT_SECONDS = 0.2
CACHE_EPOCHS = 1_000  # epochs between returns of reserved memory to the device
Measured = dict[str, Tensor]  # of an epoch, 0-d each
DrawnT = TypeVar("DrawnT", Drawn, SampledBatch)
NEWEST = ("skipped_updates", "skipped_in_a_row")  # of an epoch's updates the last one's figure counts, not the mean
COUNTERS = ("updates", "items")  # go on counting after a restart


@dataclass(frozen=True)
class LearnerSettings:
    """What the learner needs of a run's configuration."""

    seed: int
    env_id: str
    algorithm: AlgorithmConfig
    learner: LearnerConfig
    spec: ExperienceSpec
    max_policy_lag: int  # of rollouts, in versions


class Learner:
    """Owns the networks, the optimiser and the published weights."""

    def __init__(self, settings: LearnerSettings, run_dir: RunDir, life: Lifetime, group: Group = ALONE) -> None:
        """Builds everything on the device and publishes the first weights; of a group, rank 0 does, from whom the others have
        theirs. Raises ValueError (DeviceError too), OSError."""
        self.settings, self._run_dir, self._life, self._metrics = settings, run_dir, life, life.metrics
        config = settings.learner
        self.group = group
        self.device = resolve_each(config.device, group.size)[group.rank]
        devices.set_up(self.device, max(config.threads // group.size, 1))
        torch.manual_seed(settings.seed)
        self.algorithm = make_algorithm(settings.spec, settings.algorithm, self.device)
        self.optimiser = Optimiser(self.algorithm.parameters(), config, self.device, self.algorithm.rates(), group)
        self._over = False  # once a process of the group is to stop: all do after the same update
        self.epoch = 0
        self.version = self._announced() + 1  # a version that actors may have seen must not come again with other weights
        self._checkpoints = Checkpoints(run_dir.checkpoints, config.keep_checkpoints)
        self._watch = Watch(config.rollback_after)
        self._due = False  # a checkpoint
        if isinstance(settings.algorithm, DqnConfig):
            for name, power in (("epsilon_highest", 0.0), ("epsilon_lowest", settings.algorithm.epsilon_power)):
                self._metrics.gauge(name, settings.algorithm.epsilon_base ** (1 + power))
        self._continue()
        self._updates_before = self._metrics.value("updates")  # of the epoch before
        if group.size > 1:
            self._become_one()
        bind = run_dir.bind_address
        self._publisher = None if group.rank else WeightPublisher(bind("weights"), bind("payload"), life.incarnation, life.keys)
        self._publish()
        if self._publisher:
            run_dir.write_endpoint("payload", self._publisher.addresses[1])
            run_dir.write_endpoint("weights", self._publisher.addresses[0])

    def run(self) -> None:
        """The loop. Raises ReplayRefused, OSError, Diverged."""
        life, config, spec = self._life, self.settings.learner, self.settings.spec
        address = self._run_dir.wait_for_endpoint("replay", self._beat_while_waiting)
        if self.group.any(address is None) or address is None:
            return
        size, slots = config.batch_items(spec), config.slots(spec)
        sampler = Sampler(address, life.name, life.incarnation, spec, size, slots, keys=life.keys)
        try:
            life.ready()
            self._learn(sampler)
        finally:
            sampler.close()
            if self._publisher:
                self._publisher.close()

    def _learn(self, sampler: Sampler) -> None:
        """Epoch after epoch, until the process is to stop; then the last checkpoint."""
        config, spec, algorithm = self.settings.learner, self.settings.spec, self.algorithm
        if isinstance(algorithm, Ppo):
            if config.compile or config.graphs:
                self.group.say(
                    "warning: --learner.compile and --learner.graphs are for batches of one size; PPO's updates run as they are"
                )
            while not self._over:
                self._learn_from_rollout(sampler, algorithm)
        else:
            if config.compile:
                self._compile(sampler, algorithm)
            batches = make_batches(sampler, spec, self.device, self._metrics, self.group.warn)
            self._learn_from_items(batches, algorithm)
            if config.graphs:
                self._record(batches, algorithm)
            while not self._over:
                self._learn_from_items(batches, algorithm)
            batches.finish()
        if self._watch.unsettled:
            self.group.say("the last updates were not finite: no checkpoint of them, those before are kept")
        else:
            self._save()

    def _learn_from_items(self, batches: Batches, algorithm: Dqn | Sac) -> None:
        """An epoch of updates, each on a batch of its own."""
        for _ in range(self.settings.learner.updates_per_epoch):
            drawn = self._wait(batches.next)
            if drawn is None:
                return
            with self._metrics.phase("update"):
                measured, priorities = self.optimiser.update(algorithm, drawn.batch)
            self._done(batches, drawn, priorities)
        self._end_epoch(measured)

    def _done(self, batches: Batches, drawn: Drawn, priorities: Tensor) -> None:
        """Ends an update: here alone the host waits for the device, on accelerators an update later."""
        batches.done(drawn, priorities)
        self._metrics.mean("lag_mean", self.version - drawn.mean_version)
        self._metrics.count("updates")
        self._metrics.count("items", self.settings.learner.batch_size * self.group.size)
        self._life.beat()

    def _learn_from_rollout(self, sampler: Sampler, algorithm: Ppo) -> None:
        """An epoch of PPO: some passes over one rollout batch. The next is asked for when the new weights are out."""
        sampled = self._wait(partial(self._next_rollouts, sampler))
        if sampled is None:
            return
        with self._metrics.phase("copy"):
            rollout = to_rollout(sampled.arrays, self.settings.spec, self.device)
        acted = sampled.arrays["valid"] != 0
        self._metrics.mean("lag_mean", float(self.version - sampled.arrays["policy_version"][acted].mean()))
        with self._metrics.phase("update"):
            with self.optimiser.autocast():
                items, told = algorithm.prepare(rollout, vtrace=self.settings.max_policy_lag > 1)
            self.optimiser.set_learning_rate_share(algorithm.learning_rate_share())
            measured = self._passes(algorithm, items)
            if measured is None:
                return
            algorithm.finish(items, self.group)
        self._end_epoch(measured | told)
        sampler.oldest_version = self.version - self.settings.max_policy_lag
        sampler.release(sampled)

    def _passes(self, algorithm: Ppo, items: Items) -> Measured | None:
        """Goes through a rollout's items until enough has been learned. The mean metrics; None when the process is to stop."""
        config = algorithm.config
        updates, total = 0, dict[str, Tensor]()
        for _ in range(config.passes):
            for minibatch in algorithm.minibatches(items, group=self.group):
                measured, _ = self.optimiser.update(algorithm, minibatch)
                total = {name: total[name] + value if total else value for name, value in measured.items()}
                updates += 1
                self._metrics.count("updates")
                self._metrics.count("items", minibatch.size * self.group.size)  # the others have about as many
                self._life.beat()
                self._over = self.group.any(self._life.stopping)
                if self._over:  # what has been learned from half a rollout is as good as half of the steps
                    return None
            if config.max_kl and algorithm.stop(float(self.group.mean(measured["kl"]))):  # waits for the device
                break
        if config.target_kl:
            algorithm.adapt(float(self.group.mean(measured["kl"])))
        newest = {name: measured[name] for name in NEWEST} | {
            "learning_rate": torch.tensor(self.optimiser.learning_rate, device=self.device)
        }
        return {name: value / updates for name, value in total.items()} | newest

    def _compile(self, sampler: Sampler, algorithm: Dqn | Sac) -> None:
        """Has the loss compiled for batches like the next one, beating all the while; without success, says why."""
        if not (able := devices.capabilities(self.device)).compiles:
            self.group.say(f"warning: --learner.compile is left out: torch.compile does not know {able.name}")
            return
        sampled = self._wait(sampler.next)
        if sampled is None:
            return
        batch = to_device(sampled, self.settings.spec, self.device)
        size = self.settings.learner.batch_size // self.settings.learner.accumulation
        example = (batch.part(0, size), algorithm.importance(batch)[:size])
        self.group.say("compiling the update, which may take minutes …")
        begun = time.monotonic()
        self._metrics.gauge("compiling", 1)
        try:
            folder, rank = self._run_dir.compiled, self.group.rank
            with cache_in(folder.with_name(f"{folder.name}-{rank}") if rank else folder):
                autocast = self.optimiser.autocast
                compiled = compile_loss(algorithm, example, autocast, lambda: not self._beat_while_waiting())
        except CompileError as error:
            if self._life.stopping:
                return
            self.group.warn(f"warning: the update is not compiled ({error}); training goes on as without --learner.compile")
            return
        finally:
            self._metrics.gauge("compiling", 0)
            sampler.release(sampled)
        self.optimiser.compiled_loss = compiled
        self.group.say(f"compiled the update in {time.monotonic() - begun:.0f} s")

    def _record(self, batches: Batches, algorithm: Dqn | Sac) -> None:
        """Has the update recorded, by a batch that is learned from; without success, says why."""
        if self.group.size > 1:  # one process could fail to, and then they would no longer do the same
            self.group.say("warning: --learner.graphs is for a learner of one process; updates run as they are")
            return
        drawn = self._wait(batches.next)
        if drawn is None:
            return
        try:
            _, priorities = record(self.optimiser, algorithm, drawn.batch)
            algorithm.after_update()
            say("updates are recorded, and launched as one from now on")
        except RecordError as error:
            say(f"warning: updates are not recorded ({error}); training goes on as without --learner.graphs")
            _, priorities = self.optimiser.update(algorithm, drawn.batch)
        self._done(batches, drawn, priorities)

    def _end_epoch(self, measured: Measured) -> None:
        """Counts the epoch; reads the last update's metrics; goes back, publishes, saves and tidies when it is time."""
        config = self.settings.learner
        self.epoch += 1
        self._metrics.gauge("epoch", self.epoch)
        values = torch.stack([value.float() for value in measured.values()]).tolist()  # waits for the device, once for all
        for name, value in zip(measured, values, strict=True):
            self._metrics.gauge(name, value)
        went_back = self._go_back_if_needed(dict(zip(measured, values, strict=True)))
        if went_back or self.epoch % config.publish_epochs == 0:
            with self._metrics.phase("publish"):
                self.version += 1
                self._publish()
        self._due |= self.epoch % config.checkpoint_epochs == 0
        if self._due and not self._watch.unsettled and not went_back:
            with self._metrics.phase("checkpoint"):
                saved = self._save()
            self._due = False
            if not self.group.any(not saved):
                self._watch.progressed()
        if self.epoch % CACHE_EPOCHS == 0:
            devices.clear_cache(self.device)

    def _next_rollouts(self, sampler: Sampler, timeout_seconds: float) -> SampledBatch | None:
        with self._metrics.phase("data_wait"):
            return sampler.next(timeout_seconds)

    def _wait(self, next_of: Callable[[float], DrawnT | None]) -> DrawnT | None:
        """What comes next, when every process of the group has its own; None, and all are over, when one of them is to stop."""
        drawn = None
        while drawn is None and not self._life.stopping:
            drawn = next_of(WAIT_SECONDS)
            if drawn is None:
                self._life.beat()
        with self._metrics.phase("data_wait"):
            self._over = self.group.any(drawn is None)
        return None if self._over else drawn

    def _beat_while_waiting(self) -> bool:
        self._life.beat()
        return self._life.stopping

    def _publish(self) -> None:
        self.group.equalise(buffer for module in self.algorithm.modules().values() for buffer in module.buffers())
        self._metrics.gauge("policy_version", self.version)
        if self._publisher is None:
            return
        with suppress(OSError):  # on a full disk versions may come again after a crash; the incarnation tells them apart
            write_atomically(self._run_dir.announced, str(self.version).encode())
        self._publisher.publish(self.algorithm.policy(), self.version)

    def _go_back_if_needed(self, figures: dict[str, float]) -> bool:
        """To the newest sound checkpoint, once nothing has been learned for long; again, to the one before. Every process of the
        group does. Version and epoch go on growing, random numbers go on. Raises Diverged."""
        refused, count = (self._publisher.refused_version, self._publisher.refused) if self._publisher else (-1, 0)
        updates, self._updates_before = self._metrics.value("updates") - self._updates_before, self._metrics.value("updates")
        self._metrics.gauge("refused_weights", count)
        reason = self._watch.reason(figures, int(updates), refused)
        if not self.group.any(bool(reason)):
            return False
        reason = reason or "another process says so"
        times = self._watch.go_back(reason, self.version)
        self._metrics.count("rollbacks")
        found = self._checkpoints.newest(self.group.say, passing_over=times - 1)
        if found is None:
            self.optimiser.forget_trouble()
            self.group.say(f"{reason}, and there is no checkpoint yet to go back to; training goes on")
            return True
        path, tensors, metadata = found
        with devices.fork_random(self.device):
            resume.restore(self.algorithm, self.optimiser, tensors, metadata)
        self._equalise()
        self.group.say(f"{reason}: goes back to {path.name}, published as policy v{self.version + 1}")
        return True

    def _save(self) -> bool:
        """Writes everything, then the policy alone for those who only act. What cannot be written (the disk is full) or must not
        (weights are not finite) is said aloud and training goes on; False then.

        Rank 0 does: but for the state of their random numbers, all have the same.
        """
        if self.group.rank:
            return True
        metadata = {
            "policy_version": str(self.version),
            "epoch": str(self.epoch),
            "spec_digest": self.settings.spec.digest,
            "env": self.settings.env_id,
            "algorithm": type(self.algorithm).__name__.lower(),
        }
        try:
            self._checkpoints.write(self.epoch, *resume.gather(self.algorithm, self.optimiser, self._counters(), metadata))
            checkpoint.write_listed(self._run_dir.latest, dict(self.algorithm.policy().state_dict()), metadata)
        except OSError as error:
            self._metrics.count("failed_checkpoints")
            say(f"could not write a checkpoint ({error.strerror}); those before are kept and training goes on")
        except CheckpointError as error:
            self._watch.unsound = True
            self._metrics.count("failed_checkpoints")
            say(f"no checkpoint is written ({error}); those before are kept")
        else:
            return True
        return False

    def _begin_with(self, path: Path) -> None:
        """Takes a policy from elsewhere. Raises CheckpointError for one that was made for something else."""
        weights, metadata = checkpoint.read(path)
        if metadata.get("spec_digest") != self.settings.spec.digest:
            raise CheckpointError(
                f"--learner.weights {path}: made for {metadata.get('env', 'something')}, or with another algorithm"
            )
        checkpoint.load_into(self.algorithm.policy(), checkpoint.policy_weights(weights))
        self.group.say(f"begins with policy v{metadata.get('policy_version')} of {path}")

    def _counters(self) -> Record:
        return {name: self._metrics.value(name) for name in COUNTERS}

    def _announced(self) -> int:
        """The highest version of all lives of this run's learner, -1 before the first."""
        try:
            return int(self._run_dir.announced.read_text())
        except (OSError, ValueError):
            return -1

    def _continue(self) -> None:
        """Takes up where this run's last life was at its newest sound checkpoint; a run that never wrote one begins."""
        found = self._checkpoints.newest(self.group.say)
        if found is None:
            if self._run_dir.latest.exists():
                raise CheckpointError(f"{self._run_dir.checkpoints} holds weights but no full checkpoint; start with --fresh")
            if self.settings.learner.weights:
                self._begin_with(Path(self.settings.learner.weights))
            return
        path, tensors, metadata = found
        if metadata.get("spec_digest") != self.settings.spec.digest:
            raise CheckpointError(f"{path}: made for another experience spec; start with --fresh")
        counters = resume.restore(self.algorithm, self.optimiser, tensors, metadata)
        self._metrics.begin_at(counters)
        try:
            self.epoch = int(metadata["epoch"])
            self.version = max(self.version, int(metadata["policy_version"]) + 1)
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{path}: not a learner's checkpoint ({error}); start with --fresh") from error
        self.group.say(
            f"continues from {path.name}: epoch {self.epoch:,}, {self.algorithm.updates:,} updates, policy v{self.version}"
        )

    def _become_one(self) -> None:
        """The same weights and version as rank 0's, to be sure; random numbers of its own, which follow from rank 0's."""
        self.version = self.group.total(0 if self.group.rank else self.version)
        self._equalise()
        if self.group.rank:
            torch.manual_seed(int(torch.randint(2**62, ())) + self.group.rank)

    def _equalise(self) -> None:
        """The same parameters as rank 0's."""
        modules = self.algorithm.modules().values()
        self.group.equalise(parameter for module in modules for parameter in module.parameters())
