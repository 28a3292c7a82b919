"""One loop for a whole run: steps environments until the table has a batch, updates, gives the weights to the policy that acts.

The parts are those of the processes. The learner's loop asks `TableSampler` for a batch, and that calls `SerialRun._collect`, so
a debugger sees `env.step`, the table and the loss in one stack.
"""

from __future__ import annotations

import signal
import threading
import time
from bdb import BdbQuit
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from types import TracebackType

import msgspec

from actors import actor
from actors.collector import Collector
from actors.evaluation import evaluator
from actors.settings import read_settings
from deploy import settings
from deploy.config.run import RunConfig, steps_name
from deploy.config.stop_conditions import StopConditions
from deploy.serial.reports import ACTOR, EVALUATOR, LEARNER, REPLAY, SerialReports
from deploy.serial.table import TableSampler
from deploy.signals import stop_signals
from deploy.supervision.curriculum import Curriculum
from deploy.supervision.service import BY_CTRL_C
from learner import config as learner_config
from learner import throughput_line
from learner.algorithms.base import make_algorithm
from learner.feed.open import make_feed
from learner.inference.base import Inference
from learner.inference.open import open_inference, run_description
from learner.loop import Learner
from learner.parallel.base import Group
from learner.saving.rollback import Diverged
from learner.updates.base import Update
from learner.weights.checkpoint import CheckpointError, pack, unpack
from replay.config import ReplayProcess
from transport.files.documents import read_document
from transport.lifetime import Lifetime
from transport.metrics import Metrics, Record
from transport.run_dir import RunDir


class SharedWeights:
    """The newest weights: what the learner publishes, the acting policy has at once."""

    lag = rejected = 0
    refused_version = -1

    def __init__(self, inference: Inference, metrics: Metrics, say: Callable[[str], None]) -> None:
        self._inference, self._metrics, self._say = inference, metrics, say
        self.version = -1

    def begin(self, update: Update, version: int) -> SharedWeights:
        """Publishes the policy of the update as this version."""
        self._policy, self.version = update.modules["policy"], version - 1
        self.publish()
        return self

    def publish(self) -> None:
        self.version += 1
        self._metrics.gauge("policy_version", self.version)
        try:
            self._inference.load(unpack(pack(self._policy.state_dict())))
        except CheckpointError as error:
            self.refused_version = self.version
            self._say(f"policy v{self.version} is not used: {error}")

    def close(self) -> None: ...


class Lines(Group):
    """A learner of one process whose lines go into the log."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self._line = line

    def say(self, line: str) -> None:
        self._line(line)

    def warn(self, line: str) -> None:
        self._line(line)


class SerialRun:
    """Call `run` once."""

    def __init__(self, run: RunDir, config: RunConfig, stop_conditions: StopConditions) -> None:
        """Makes everything. The run's folder has what `Launch.write` writes. Raises ValueError, EnvError, OSError, and
        what a user's code raises; then the run has failed, and everything is closed."""
        self._config, self._stop_conditions = config, stop_conditions
        self.reason, self.failed, self._planned, self._interrupts = "", False, False, 0
        self._lives: dict[str, Lifetime] = {}
        self._reports = SerialReports(run, config)
        self._log = self._reports.log.line
        with ExitStack() as closing:
            closing.callback(self._reports.log.close)
            closing.push(self._end)
            self._make(run, closing)
            self._closing = closing.pop_all()

    def _make(self, run: RunDir, closing: ExitStack) -> None:
        """Makes what steps, learns and reports. `closing` writes the last figures, then closes it."""
        config = self._config
        settings.write(run, config)
        self._reports.open_sinks(self.stop, closing)
        closing.callback(lambda: self._reports.point(self.steps))
        acting, (learning, spec) = read_settings(run), learner_config.read_settings(run)
        algorithm = make_algorithm(config.algorithm)
        self._lives = self._make_lives(run, algorithm.figures)
        metrics = {name: life.metrics for name, life in self._lives.items()}
        actors, description = config.actors, run_description(run, algorithm, spec)
        rows = actors.envs_per_actor
        self._inference = open_inference(algorithm, spec, description, actors.precision, actors.threads, rows=rows)
        self._weights = SharedWeights(self._inference, metrics[LEARNER], partial(self._log, LEARNER))
        self._place, self._curriculum = acting.assignment, Curriculum(run.curriculum)
        self._collector: Collector | None = None
        if not config.offline:
            # Chunks that leave late would depend on the time, and so would the weights.
            own = acting, algorithm, self._inference, self._place, metrics[ACTOR]
            self._collector = Collector(*own, clock=lambda: 0.0)
            closing.callback(self._collector.close)
        self._evaluator, self._evaluated, self._next_evaluation = self._make_evaluator(run), 0, 0.0
        if self._evaluator:
            closing.callback(self._evaluator.close)
        group = Lines(partial(self._log, LEARNER))
        self._learner = Learner(learning, spec, run, self._lives[LEARNER], group, self._weights.begin)
        shape = actors.envs_per_actor, learning.learner.batch_items(spec), learning.learner.slots(spec)
        replay = read_document(run.settings(REPLAY), ReplayProcess)
        shown = run.demonstrations if replay.replay.demonstrations else None
        self._sampler = TableSampler(spec, replay, *shape, metrics[REPLAY], self._collect, shown)
        closing.callback(self._sampler.close)
        self._feed = make_feed(self._sampler, spec, self._learner.runtime, metrics[LEARNER])
        self._lives[ACTOR].measure = self._measure
        self._lives[REPLAY].measure = self._sampler.table.measure
        closing.callback(self._end_records)
        closing.push(self._note)
        self._began = time.monotonic()

    def _make_lives(self, run: RunDir, figures: Mapping[str, str]) -> dict[str, Lifetime]:
        """The counters and timers of each role, as in its process."""
        lines: dict[str, Callable[[Record], str]] = {
            ACTOR: actor.describe,
            REPLAY: lambda record: "",
            LEARNER: partial(throughput_line.describe, figures=figures),
            EVALUATOR: evaluator.no_line,
        }
        return {
            name: Lifetime(name, run, partial(self._take, name, line), reports=False, signals=False)
            for name, line in lines.items()
        }

    def _make_evaluator(self, run: RunDir) -> evaluator.Evaluator | None:
        if not self._config.evaluator.enabled:
            return None
        settings, say = read_settings(run), partial(self._log, EVALUATOR)
        config = msgspec.structs.replace(settings.process.evaluator, core_share=1.0)  # no other process needs the core meanwhile
        return evaluator.Evaluator(settings, config, run, self._lives[EVALUATOR], say, renew=False)

    @property
    def steps(self) -> int:
        role, name = (REPLAY, "inserted_steps") if self._config.offline else (ACTOR, "steps")
        return int(self._lives[role].metrics.value(name)) if self._lives else 0

    def stop(self, reason: str, planned: bool = False) -> None:
        """Asks the loop to end."""
        if not self.reason:
            self.reason, self._planned = reason, planned
        for life in self._lives.values():
            life.stop()

    def run(self) -> int:
        """Runs until the end, then saves. Returns the exit status. What a user's code raises is raised."""
        with suppress(Diverged, BdbQuit), self._stopped_by_signals(), self._closing:
            self._learner.announce()
            if line := self._stop_conditions.announcement(time.time()):
                self._log("supervisor", line)
            for life in self._lives.values():
                life.ready()
            if self._collector:
                self._collector.reset()
            self._began = time.monotonic()
            while not self.reason:
                self._learner.train_epoch(self._feed)
                self._evaluate()
            self._feed.finish()
            learner, last_seconds = self._learner, self._config.evaluator.last_seconds
            if not learner.checkpoints.save(learner.epoch, learner.version):
                self.reason, self.failed = learner.checkpoints.outcome, True
            elif self._planned and self._evaluator and last_seconds:
                self._evaluator.evaluate_last(last_seconds)
        return int(self.failed)

    def _stopped_by_signals(self) -> AbstractContextManager[None]:
        if threading.current_thread() is not threading.main_thread():
            return nullcontext()
        return stop_signals(self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:  # Ctrl-C again ends it at once
            raise KeyboardInterrupt
        self.stop(BY_CTRL_C if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}")

    def _note(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Keeps why the run ends: the first failure of all that is raised until everything is closed."""
        if error is None or self.failed:
            return
        self.failed = not isinstance(error, KeyboardInterrupt | BdbQuit)
        if isinstance(error, BdbQuit):
            self.reason = "ended in the debugger"
        elif isinstance(error, KeyboardInterrupt):
            self.reason = BY_CTRL_C
        else:
            self.reason = str(error) if isinstance(error, Diverged) else f"{type(error).__name__}: {error}"

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Writes how the run has ended."""
        self._note(kind, error, trace)
        self._reports.end(self.steps, "failed" if self.failed else "stopped", self.reason)

    def _end_records(self) -> None:
        """Reads the last figures."""
        for life in self._lives.values():
            life.record_soon()
            life.beat()
            life.close()

    def _collect(self) -> None:
        """One step of every environment, if there are any; its complete chunks go into the table."""
        if self.reason:
            return
        for chunk in self._collector.step(self._weights) if self._collector else ():
            self._sampler.insert(chunk)
        self._lives[ACTOR].beat()
        self._lives[REPLAY].beat()
        self._reports.turn(self.steps)
        total = self._config.total_steps
        if total and self.steps >= total:
            self.stop(f"{self.steps:,} of {total:,} {steps_name(self._config)} done", planned=True)
        elif reason := self._stop_conditions.reason(time.monotonic() - self._began, time.time()):
            self.stop(reason, planned=True)

    def _evaluate(self) -> None:
        """Evaluates the newest weights, for `evaluator.core_share` of the time in the long run."""
        began, version = time.monotonic(), self._weights.version
        if not self._evaluator or self.reason or version == self._evaluated or began < self._next_evaluation:
            return
        self._evaluated = version
        self._evaluator.evaluate(version, self._inference.weights)
        life, share = self._lives[EVALUATOR], self._config.evaluator.core_share
        life.record_soon()
        life.beat()
        self._next_evaluation = time.monotonic() + (time.monotonic() - began) * (1 / share - 1)
        found = life.metrics.value("return_mean")
        if life.metrics.value("rounds") and (reason := self._stop_conditions.reason_after_evaluation(found)):
            self.stop(reason, planned=True)

    def _measure(self) -> None:
        self._lives[ACTOR].metrics.gauge("policy_version", self._weights.version)
        if self._collector:
            self._collector.measure()

    def _take(self, name: str, describe: Callable[[Record], str], record: Record) -> str:
        """Keeps a role's record and writes its line into the log; the Lifetime prints none."""
        self._reports.records[name] = record
        if line := describe(record):
            self._log(name, line)
        if name == ACTOR and (raised := self._curriculum.on_record(name, record)):
            self._log("supervisor", raised)
            self._place = msgspec.structs.replace(self._place, level=self._curriculum.level)
            if self._collector:
                self._collector.take_level(self._place)
        return ""
