"""Clients that the server knows from one request to the next: their stacks and memories, until they are silent for long."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import UNSET

from actors.agent import Stack
from deploy.views.serving.messages import ActRequest, Refusal
from deploy.views.serving.recording import PendingAction, StreamRecorder
from deploy.views.serving.version import Version
from learner.algorithms.base import ActingPolicy
from transport.experience import Columns, ExperienceSpec

MOST, LEAST, SESSION_BYTES = 4096, 64, 512 << 20  # sessions, and memory of all their observations
IDLE_SECONDS = 600.0


class Session:
    """An environment of a client. One request at a time."""

    def __init__(self, name: str, spec: ExperienceSpec) -> None:
        self.name = name  # also decides by which version it is answered during a trial
        self.stack = Stack(spec, 1)
        self.state: Columns = {}  # {name: [1, *shape]} a recurrent policy's
        self.version: Version | None = None  # of this episode, where the policy has a memory
        self.pending: PendingAction | None = None  # what waits for its result, where steps are recorded
        self.recorder: StreamRecorder | None = None
        self.fresh = True  # the next observation begins an episode
        self.busy, self.used = False, 0.0
        self._step: int | None = None  # of the next request, where the client counts them
        self._last: tuple[ActRequest, dict[str, Any]] | None = None

    def begin(self, stored: Columns, policy: ActingPolicy) -> None:
        """An episode, with stored[name] [1, *shape]."""
        self.stack.reset(stored)
        self.state = {name: np.zeros((1, *shape), np.float32) for name, shape in policy.state.items()}
        self.fresh, self.version = False, None

    def break_off(self) -> None:
        """The episode does not go on."""
        self.fresh, self.pending = True, None
        if self.recorder is not None:
            self.recorder.break_off()

    def push(self, stored: Columns) -> None:
        self.stack.push(stored, np.zeros(1, bool))

    def answered_before(self, request: ActRequest) -> dict[str, Any] | None:
        """The answer to a request that its client repeats because it got none; None for a new one. Raises Refusal for a step
        that does not follow the last."""
        if request.step is UNSET:
            return None
        if self._last is not None and request == self._last[0]:
            return self._last[1]
        if not (request.first or self.fresh) and self._step not in (None, request.step):
            raise Refusal(409, f"step {request.step} does not follow: the next request of this session has step {self._step}")
        return None

    def remember(self, request: ActRequest, answer: dict[str, Any]) -> None:
        self._step = None if request.step is UNSET else request.step + 1
        self._last = None if request.step is UNSET else (request, answer)


class Sessions:
    """By name. There are at most so many; a silent one makes room."""

    def __init__(self, spec: ExperienceSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._spec, self._clock = spec, clock
        each = spec.stack * sum(field.row_bytes for field in spec.fields) + 1
        self._most = min(max(SESSION_BYTES // each, LEAST), MOST)
        self._known: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, name: str) -> Session:
        """The session of that name, which is made if there is none. Raises Refusal where there are too many."""
        session = self._known.get(name)
        if session is None:
            self.forget()
            if len(self._known) >= self._most:
                raise Refusal(503, f"there are {self._most} sessions already; a silent one ends after {IDLE_SECONDS:.0f} s")
            session = self._known[name] = Session(name, self._spec)
        self._known.move_to_end(name)
        session.used = self._clock()
        return session

    def end(self, name: str) -> None:
        session = self._known.pop(name, None)
        if session is not None and session.recorder is not None:
            session.recorder.end()

    def forget(self) -> None:
        """Ends those that have been silent for long."""
        while self._known:
            name, oldest = next(iter(self._known.items()))
            if oldest.busy or self._clock() - oldest.used <= IDLE_SECONDS:
                return
            self.end(name)

    def end_all(self) -> None:
        for name in list(self._known):
            self.end(name)
