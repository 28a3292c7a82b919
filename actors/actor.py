"""An actor: steps environments with its copy of the policy, and sends experience to replay."""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import suppress
from functools import partial

import msgspec

from actors.collector import Collector
from actors.config import ActorSettings
from actors.envs.make import open_family
from actors.errors import EnvError
from actors.sessions import SessionCollector
from actors.steering import Steering
from learner.algorithms.base import make_algorithm
from learner.config import INFERENCE
from learner.inference.base import Inference
from learner.inference.choice import needs_torch
from learner.inference.open import open_inference, run_description
from learner.inference.remote import RemoteInference, StoppedWaiting
from learner.weights import follow
from learner.weights.follow import WeightFollower
from replay.client.writer import ExperienceWriter
from replay.shards import shard_of
from transport.experience import Chunk
from transport.lifetime import Lifetime
from transport.messages.control import Assignment, Look, Seen, Steer
from transport.messages.fields import LOOK_BYTES, LOOK_FIGURES, printable, printable_name
from transport.metrics import INFO, Metrics, Record
from transport.run_dir import RunDir
from transport.sockets.channel import cut
from transport.system import core_count, lower_priority, usual_priority
from transport.text import amount, say

CREDIT_WAIT_SECONDS = 0.05
BEGIN_WAIT_SECONDS = 0.01  # between two looks for the supervisor's allowance; weights are seen at once
REST_SECONDS = 0.25  # of a paused run: between two polls of the sockets
WEIGHTS_WAIT_SECONDS = 1.0
POLL_SECONDS = 0.005  # between two polls of the sockets: short beside the time that weights take, long beside the cost of a poll


def describe(record: Record) -> str:
    """The throughput line of the log."""
    get = record.get
    episode = f"return {amount(record['episode_return'])}" if "episode_return" in record else "return –"
    if get("episode_score") != get("episode_return"):  # the environment reports its own figure
        score = get("episode_score", 0)
        episode += f" · score {score:,.0f}" if abs(score) >= 10 else f" · score {score:.3g}"
    episode += "".join(f" · {name.removeprefix(INFO)} {value:.3g}" for name, value in record.items() if name.startswith(INFO))
    if get("levels"):
        episode += f" · level {get('level', 0) + 1:.0f}/{get('levels', 0):.0f}"
    if get("broken_episodes"):
        episode += f" · cut short {get('broken_episodes', 0):,.0f}"
    if get("human_steps_per_second"):
        episode += f" · by a person {record['human_steps']:,.0f} steps"
    if "programs" in record:
        episode += f" · programs {record['programs']:.0f}"
    traffic = ""
    if "raw_bytes_per_second" in record:  # a run in one process sends nothing
        raw, sent = record["raw_bytes_per_second"], get("sent_bytes_per_second", 0)
        traffic = f" · {raw / 1e6:.2f} MB/s raw, {sent / 1e6:.2f} sent ({raw / max(sent, 1):.1f}x)"
    return (
        f"{get('steps_per_second', 0):,.0f} steps/s (10 s) {get('steps_per_second_60', 0):,.0f} (60 s)"
        f" · episodes {get('episodes', 0):,.0f} · {episode}"
        f" · {follow.describe(record)} · waiting {get('wait_credit_fraction', 0):.1%}{traffic}"
    )


class Actor:
    """Steps environments under the newest weights and sends the experience. Call `run`, which returns when the process stops."""

    def __init__(self, settings: ActorSettings, run_dir: RunDir, lifetime: Lifetime) -> None:
        """Makes the environments. Raises EnvError."""
        self._settings, self._run_dir, self._lifetime = settings, run_dir, lifetime
        self._metrics: Metrics = lifetime.metrics
        spec = settings.spec
        self._assignment = lifetime.assignment or settings.assignment
        algorithm = make_algorithm(settings.algorithm)
        description, actors = run_description(run_dir, algorithm, spec), settings.process.actors
        self._remote = RemoteInference(description, spec, self._beat_while_waiting) if actors.inference == "batched" else None
        rows = actors.envs_per_actor
        self._inference: Inference = self._remote or open_inference(
            algorithm, spec, description, actors.precision, actors.threads, rows=rows
        )
        if "torch" in sys.modules:
            why = needs_torch(description, actors.precision, rows=rows) or f"a module of --algo {settings.algorithm.name} does"
            say(f"imports torch, which takes seconds and 200 MB: {why}")
        self._rollouts = spec.unit == "rollouts"
        self._yields = False
        self._take_priority()
        self._rested_seconds = 0.0  # in pauses: chunks do not become late in them
        make = partial(
            Collector,
            settings,
            algorithm,
            self._inference,
            metrics=self._metrics,
            clock=lambda: time.monotonic() - self._rested_seconds,
        )
        self._collector: Collector | SessionCollector
        if open_family(settings.env).decides_steps:
            self._collector = SessionCollector(settings, self._assignment, self._metrics, make)
        else:
            self._collector = make(place=self._assignment, beat=lifetime.beat, raised=say)
        self._outbox: deque[Chunk] = deque()
        self._next_poll = 0.0
        self._steering: Steering | None = None  # while a person steers

    def run(self) -> None:
        """Raises ReplayRefused, InferenceError."""
        lifetime, streams = self._lifetime, self._settings.process.actors.envs_per_actor
        weights = (INFERENCE,) if self._remote else ("weights", "payload")
        servers = *weights, shard_of(lifetime.name, self._settings.process.shards).name
        addresses = [self._run_dir.wait_for_endpoint(server, self._beat_while_waiting) for server in servers]
        if None in addresses:
            return
        *of_weights, replay = map(str, addresses)
        self._follower: WeightFollower | RemoteInference
        if self._remote:
            self._follower = self._remote.connect(*of_weights)
        else:
            announce, payload = of_weights
            self._follower = WeightFollower(announce, payload, self._inference, lifetime.keys)
        self._writer = ExperienceWriter(replay, lifetime.name, lifetime.incarnation, self._settings.spec, streams, lifetime.keys)
        self._wait_to_begin()
        lifetime.steps = lambda: self._writer.acknowledged_steps
        self._collector.reset()
        lifetime.measure = self._measure
        lifetime.ready()
        with suppress(StoppedWaiting):
            while not lifetime.stopping:
                if not lifetime.paused:
                    self._step()
                self._send()
                lifetime.beat()
                if time.monotonic() >= self._next_poll:
                    self._next_poll = time.monotonic() + POLL_SECONDS
                    self._writer.poll()
                    self._follower.poll()
                    if lifetime.assignment is not None and lifetime.assignment != self._assignment:
                        self._adopt(lifetime.assignment)
        self._drain()

    def _wait_to_begin(self) -> None:
        """No step before there are weights, nor where steps are limited before it is known how many may be taken: the others may
        have been allowed all that is left of the run."""
        lifetime = self._lifetime
        limited = self._settings.process.limited
        while not lifetime.stopping and (self._follower.version < 0 or (limited and lifetime.allowance is None)):
            self._follower.wait(BEGIN_WAIT_SECONDS)
            self._follower.poll()
            lifetime.beat()
            lifetime.listen()

    def _beat_while_waiting(self) -> bool:
        self._lifetime.beat()
        return self._lifetime.stopping

    def _adopt(self, assignment: Assignment) -> None:
        """Takes another place, or only another level of the curriculum, which keeps the seeds and the exploration."""
        before, self._assignment = self._assignment, assignment
        if msgspec.structs.replace(before, level=assignment.level) != assignment:
            self._take_priority()
            self._collector.take_place(assignment)
        else:
            self._collector.take_level(assignment)

    def _take_priority(self) -> None:
        """More actors than cores would leave the learner too little time: more steps, fewer updates. So they yield to it."""
        yields = self._assignment.environments > self._settings.process.actors.envs_per_actor * core_count()
        if yields != self._yields:
            self._yields = yields
            if yields:
                lower_priority()
            else:
                usual_priority()

    def _step(self) -> None:
        if self._lifetime.look is not None:
            self._look(self._lifetime.look)
        if self._lifetime.steer is not None and (chunks := self._steered(self._lifetime.steer)) is not None:
            self._outbox.extend(chunks)
        else:
            self._outbox.extend(self._collector.step(self._follower))

    def _steered(self, steer: Steer) -> list[Chunk] | None:
        """A step by a person, who gets what it has led to; None where nobody steers any more."""
        refused = ""
        try:
            algorithm = self._settings.algorithm.name
            steering = self._steering = self._steering or Steering(self._collector.steerable(), self._lifetime, algorithm)
            if (chunks := steering.step(self._follower)) is not None:
                if (number := steering.unanswered()) is not None:
                    self._look(msgspec.structs.replace(steer, number=number))
                return chunks
        except EnvError as error:  # of Steering(): a step raises none
            refused = printable(str(error))
        steer = self._lifetime.steer or steer
        self._steering = self._lifetime.steer = None
        self._look(steer, refused)
        return None

    def _look(self, look: Look | Steer, refused: str = "") -> None:
        """Sends what is about to be acted on in the first environment."""
        view = self._collector.look()
        if view is None:
            return
        seen = Seen(look.actor, look.number, self._follower.version, view.step, view.total_reward, refused=refused)
        picture = None
        if self._steering is not None:
            seen = msgspec.structs.replace(seen, steered=True, keys=self._steering.lines)
            picture = self._steering.picture()
        if (explanation := view.explanation) is not None:
            figures = tuple(map(float, explanation.figures[0, :LOOK_FIGURES]))
            kind, actions = printable_name(explanation.name), tuple(map(printable_name, view.action_names[:LOOK_FIGURES]))
            seen = msgspec.structs.replace(seen, kind=kind, figures=figures, actions=actions, bounds=explanation.bounds)
        payload = b"".join(stacked.tobytes() for stacked in view.observation.values())
        payload = payload if len(payload) <= LOOK_BYTES else b""
        if picture is not None:
            payload += picture.tobytes()
            seen = msgspec.structs.replace(seen, picture=picture.shape[:2])
        self._lifetime.show(seen, cut(payload) if payload else ())

    def _send(self) -> None:
        """Sends chunks to replay, and waits while the run is paused, its steps are used up or there is no credit: so replay slows
        its actors down.

        With rollouts the actor waits before it acts instead of after, because steps taken in the meantime would be too old. It
        then goes on under the weights that were current when the credit arrived.
        """
        waited = False
        while not self._lifetime.stopping:
            began = time.monotonic()
            used_up = self._used_up
            if used_up and not self._rollouts:  # a rollout stays whole
                self._outbox.extend(self._collector.flush())
            with self._metrics.phase("insert"):
                while self._outbox and self._writer.has_credit:
                    self._writer.insert(self._outbox.popleft())
                    self._lifetime.beat()  # a thousand large chunks take seconds
            paused = self._lifetime.paused
            if not (paused or used_up or self._outbox) and (self._writer.has_credit or not self._rollouts):
                break
            waited = True
            with self._metrics.phase("rest" if paused or used_up else "wait_credit"):
                self._writer.poll(REST_SECONDS if paused else CREDIT_WAIT_SECONDS)
            self._follower.poll()
            self._lifetime.beat(resting=paused)
            if paused:
                self._rested_seconds += time.monotonic() - began
        if waited and self._rollouts:
            with self._metrics.phase("wait_weights"):
                self._wait_for_weights()

    @property
    def _used_up(self) -> bool:
        """True if the actor has taken the steps that it may take. A rollout counts when the learner has it: until then more of
        its batch may be missing. The last steps of each stream leave with the n_step steps after them."""
        allowance, writer = self._lifetime.allowance, self._writer
        if allowance is None:
            return False
        settings = self._settings
        held = settings.spec.n_step * settings.process.actors.envs_per_actor
        taken = writer.acknowledged_steps if self._rollouts else self._metrics.value("steps") - held
        return taken >= allowance

    def _wait_for_weights(self) -> None:
        """Waits for the version that replay reports. The wait is limited: that version may be broken or already replaced."""
        deadline = time.monotonic() + WEIGHTS_WAIT_SECONDS
        while self._follower.expect(self._writer.policy_version) and time.monotonic() < deadline and not self._lifetime.stopping:
            self._follower.wait(CREDIT_WAIT_SECONDS)
            self._follower.poll()
            self._lifetime.beat()

    def _measure(self) -> None:
        metrics, writer = self._metrics, self._writer
        follow.gauge(metrics, self._follower)
        metrics.count("raw_bytes", writer.raw_bytes - metrics.value("raw_bytes"))
        metrics.count("sent_bytes", writer.sent_bytes - metrics.value("sent_bytes"))
        metrics.count("acknowledged_steps", writer.acknowledged_steps - metrics.value("acknowledged_steps"))
        self._collector.measure()

    def _drain(self) -> None:
        """Sends the remaining chunks and waits, for at most drain_seconds, until replay has acknowledged them."""
        for chunk in self._collector.drain(self._follower.version):
            self._outbox.append(chunk)
            self._lifetime.beat()
        began = time.monotonic()
        while (self._outbox or self._writer.outstanding) and time.monotonic() < began + self._lifetime.drain_seconds:
            if self._outbox and self._writer.has_credit:
                self._writer.insert(self._outbox.popleft())
            self._writer.poll(0 if self._outbox and self._writer.has_credit else CREDIT_WAIT_SECONDS)
            self._lifetime.beat()
        self._writer.close()
        self._follower.close()
        self._collector.close()
