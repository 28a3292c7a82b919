"""Answers requests for actions. Those that arrive together are computed together: nothing waits for others.

The network computes in the event loop, whose other work waits meanwhile. All requests that the loop reads in one turn are one
pass, so the busier the server is, the more rows a pass has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET

from actors.envs.foreign.actions import to_env_actions
from actors.envs.foreign.plain_data import one_of, to_plain
from deploy.views.serving.messages import MOST_ROWS, ActRequest, ObservationReader, Refusal
from deploy.views.serving.recording import PendingAction, Recording
from deploy.views.serving.sessions import Session, Sessions
from deploy.views.serving.sources import PolicyInfo
from deploy.views.serving.version import Version
from deploy.views.serving.versions import Versions
from learner.algorithms.base import Mode
from replay.config import LARGEST
from transport.experience import Columns, bounded
from transport.metrics import Metrics

PROBES = 32  # observations of clients by which new versions are tried


class Work(NamedTuple):
    """Rows that wait to be computed."""

    stacked: Columns  # {name: [K, stack, *shape]}
    state: Columns  # {name: [K, *shape]}
    rows: int
    version: Version
    mode: Mode
    done: asyncio.Future[Outcome]


class Outcome(NamedTuple):
    """The actions of the rows of a request."""

    version: Version  # that computed them
    action: np.ndarray  # [K, …] as stored
    columns: Columns  # {name: [K, …]}
    state: Columns


class PolicyService:
    """Acts for all clients."""

    def __init__(self, about: PolicyInfo, versions: Versions, recording: Recording | None, metrics: Metrics) -> None:
        self.about, self.versions, self.recording, self.metrics = about, versions, recording, metrics
        self.reader = ObservationReader(about.spec, about.observation_space)
        self.sessions = Sessions(about.spec)
        self.needs_session = about.spec.stack > 1 or bool(versions.current.acting.state)
        self._waiting: list[Work] = []
        self._seen = [about.zeros()]
        self._next_seen = 0

    def probes(self) -> Columns:
        """Observations [K, stack, *shape] by which a new version is tried: zeros, and what clients have sent. In any thread."""
        seen = list(self._seen)
        return {name: np.concatenate([one[name] for one in seen]) for name in seen[0]}

    async def act(self, request: ActRequest, session: Session | None, client: str) -> dict[str, Any]:
        """The answer. `client`: who decides by which version a request without a session is answered. Raises Refusal."""
        if session is None:
            return await self._act_once(request, client)
        if session.busy:
            raise Refusal(409, f"session {session.name} has a request under way: send the next one after its answer")
        if (repeated := session.answered_before(request)) is not None:
            return repeated
        if request.observations is not UNSET:
            raise Refusal(400, "a session is one environment: send one observation, or a batch without a session")
        session.busy = True
        try:
            answer = await self._act_in(session, request)
        finally:
            session.busy = False
        session.remember(request, answer)
        return answer

    async def _act_once(self, request: ActRequest, client: str) -> dict[str, Any]:
        if self.needs_session:
            raise Refusal(400, f"this policy remembers {self._memory()}: name a `session`, or use a WebSocket")
        if request.step is not UNSET or request.reward is not None or request.ended:
            raise Refusal(400, "`step`, `reward` and the end of an episode belong to a session: name one")
        stored, count, single = self.reader.rows(request)
        stacked = {name: values[:, None] for name, values in stored.items()}
        found = await self._compute(stacked, {}, count, self.versions.choose(client), _mode(request))
        actions = self._plain(found.action)
        key, value = ("action", one_of(actions, 0)) if single else ("actions", actions)
        return {key: to_plain(value), "policy_version": found.version.number}

    async def _act_in(self, session: Session, request: ActRequest) -> dict[str, Any]:
        begins = session.fresh or request.first
        self._check_result(request, begins)
        stored = self.reader.rows(request)[0] if request.observation is not UNSET or not request.ended else None
        last = self.reader.final(request) if request.final_observation is not UNSET else None
        version = None if begins or request.ended else session.version
        if version is None or not self.versions.keeps(version):
            version = self.versions.choose(session.name)
        if not begins:
            self._record(session, request, last if request.ended else stored)
        elif not session.fresh:  # the episode before has no end
            session.break_off()
        if stored is None:
            session.fresh = True
            return {"action": None, "policy_version": version.number}
        if begins or request.ended:
            session.begin(stored, version.acting)
        else:
            session.push(stored)
        state = session.state
        try:
            found = await self._compute(session.stack.stacked, state, 1, version, _mode(request))
        except Refusal:
            session.break_off()  # its stack has an observation that no action follows
            raise
        session.state = found.state
        session.version = found.version if found.state else None
        if self.recording is not None:
            session.pending = PendingAction(stored, found.action, found.version.number, found.columns | state)
        return {"action": to_plain(one_of(self._plain(found.action), 0)), "policy_version": found.version.number}

    def _check_result(self, request: ActRequest, begins: bool) -> None:
        """Raises Refusal."""
        if begins and (request.reward is not None or request.ended):
            why = "it is `first`" if request.first else "this session is at none, or is not known any more"
            raise Refusal(409, f"`reward` and the end of an episode belong to an action, and {why}: begin an episode")
        if request.reward is not None and not abs(request.reward) <= LARGEST:
            raise Refusal(400, f"the reward is not finite, or beyond {LARGEST:g}")
        if self.recording is None or not request.ended:
            return
        if request.reward is None:
            raise Refusal(400, "the end of an episode needs the `reward` of its last action")
        if not request.terminated and request.final_observation is UNSET:
            raise Refusal(400, "an episode that was truncated needs its `final_observation`: what follows is estimated from it")

    def _record(self, session: Session, request: ActRequest, after: Columns | None) -> None:
        """What the last action of the session has led to; `after` [1, *shape]: None where nothing reads it."""
        pending, session.pending = session.pending, None
        if self.recording is None or pending is None:
            return
        if request.reward is None:  # what follows cannot be recorded
            session.break_off()
            return
        if session.recorder is None:
            session.recorder = self.recording.open()
        if session.recorder is not None:
            after = pending.observation if after is None else after
            session.recorder.step(pending, after, request.reward, request.terminated, request.truncated)

    async def _compute(self, stacked: Columns, state: Columns, rows: int, version: Version, mode: Mode) -> Outcome:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._pass)
        done = loop.create_future()
        self._waiting.append(Work(stacked, state, rows, version, mode, done))
        return await done

    def _pass(self) -> None:
        """Computes what waits, MOST_ROWS at a time."""
        groups: dict[tuple[Version, Mode], list[Work]] = {}
        rows = 0
        while self._waiting and rows < MOST_ROWS:
            work = self._waiting.pop(0)
            rows += work.rows
            groups.setdefault((work.version, work.mode), []).append(work)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._pass)
        self.metrics.count("rows", rows)
        self.metrics.mean("rows_per_pass", rows)
        with self.metrics.phase("infer"):
            for (version, mode), group in groups.items():
                try:
                    self._answer(version, mode, group)
                except Exception as error:  # nobody may wait for ever
                    for work in group:
                        if not work.done.done():
                            work.done.set_exception(error)

    def _answer(self, version: Version, mode: Mode, group: Sequence[Work]) -> None:
        if not self.versions.keeps(version):  # it was taken back a moment ago
            version = self.versions.current
        stacked, state = (_joined([getattr(work, part) for work in group]) for part in ("stacked", "state"))
        found = version.act(stacked, state, mode)
        if found.faulty.any() and (other := self.versions.fallback(version)) is not None:
            again = other.act(stacked, state, mode)
            if again.batch is not None and (found.faulty & ~again.faulty).any():  # otherwise it is the observations' fault
                self.versions.take_back(version, found.fault)
                version, found = other, again
        if found.batch is None or found.faulty.any():
            self.metrics.count("unanswered", int(found.faulty.sum()))
        first = good = 0
        for work in group:
            rows = slice(first, first := first + work.rows)
            if work.done.done():  # its client has gone
                continue
            if found.batch is None or found.faulty[rows].any():
                text = found.fault if found.batch is None else "its outputs are not finite for this observation"
                work.done.set_exception(Refusal(422, f"the policy cannot act: {text}"))
                continue
            good += 1
            columns, after = ({name: values[rows] for name, values in part.items()} for part in found.batch[1:])
            work.done.set_result(Outcome(version, found.batch.action[rows], columns, after))
        self.versions.count(version, good)
        self._remember({name: values[:1] for name, values in stacked.items()})

    def _remember(self, stacked: Columns) -> None:
        if len(self._seen) < PROBES:
            self._seen.append(stacked)
        else:
            self._next_seen = self._next_seen % (PROBES - 1) + 1  # place 0 has zeros
            self._seen[self._next_seen] = stacked

    def _plain(self, actions: np.ndarray) -> Any:
        """As the environment's space has them, [K, …]."""
        return to_env_actions(self.about.action_space, bounded(self.about.spec, actions))

    def _memory(self) -> str:
        stack = self.about.spec.stack
        return f"the last {stack} observations" if stack > 1 else "its episode"


def _mode(request: ActRequest) -> Mode:
    return "greedy" if request.deterministic else "stochastic"


def _joined(parts: Sequence[Columns]) -> Columns:
    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
