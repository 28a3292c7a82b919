"""Acting by the inference process of this machine (learner/serving/inference.py), which has the network. No torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from learner.description import PolicyDescription
from transport.experience import Columns, ExperienceSpec
from transport.messages.replay import Refused
from transport.messages.weights import Infer, Inferred
from transport.sockets.channel import wait
from transport.sockets.client import Client

WAIT_SECONDS = 0.05  # between two beats of an actor that waits for an answer
REPEAT_SECONDS, MOST_REPEAT_SECONDS = 1.0, 8.0  # until a request is sent again; doubled each time
ASK_SECONDS, EXPECT_SECONDS = 0.25, 0.01  # between two questions for the version, where it is not known from answers; expected
MESSAGES_PER_TURN = 64
FLOAT, OUTPUTS = np.dtype(np.float32), "outputs"


class InferenceError(RuntimeError):
    """The inference process cannot do what this process needs; one line."""


class StoppedWaiting(RuntimeError):
    """This process stops, and there is no answer to its last request."""


class Part(NamedTuple):
    """An array of a request or an answer; `shape` is that of one environment."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def bytes(self, count: int) -> int:
        return count * math.prod(self.shape) * self.dtype.itemsize


def observation_parts(spec: ExperienceSpec) -> list[Part]:
    return [Part(field.name, (spec.stack, *field.shape), np.dtype(field.dtype)) for field in spec.fields]


def state_parts(policy: PolicyDescription) -> list[Part]:
    return [Part(name, tuple(shape), FLOAT) for name, shape in policy.state.items()]


def send_arrays(parts: Sequence[Part], arrays: Mapping[str, np.ndarray]) -> list[memoryview]:
    """The raw parts of a message."""
    return [np.ascontiguousarray(arrays[part.name], part.dtype).data.cast("B") for part in parts]


def read_arrays(parts: Sequence[Part], raw: Sequence[bytes], count: int) -> Columns | None:
    """The arrays of a message, which cannot be written to; None where its raw parts have other lengths."""
    if [len(data) for data in raw] != [part.bytes(count) for part in parts]:
        return None
    pairs = zip(parts, raw, strict=True)
    return {part.name: np.frombuffer(data, part.dtype).reshape(count, *part.shape) for part, data in pairs}


class RemoteInference:
    """An Inference whose network is in another process, and the follower of its version (as learner/weights/follow.py is).

    `version` is that of the weights by which the last outputs were computed, until poll() hears of a newer one. A call waits as
    long as it takes: also while the inference process is started again, which answers the repeated request.
    """

    rejected = 0  # it is the inference process that checks weights

    def __init__(self, policy: PolicyDescription, spec: ExperienceSpec, stopping: Callable[[], bool]) -> None:
        """`stopping()` is called in every wait, several times a second: a call then raises StoppedWaiting when it is True."""
        self.state: Mapping[str, tuple[int, ...]] = policy.state
        self.version = self.newest = -1
        self._request, self._state, self._stopping = observation_parts(spec), state_parts(policy), stopping
        self._number, self._answered, self._asked = 0, -math.inf, -math.inf

    def connect(self, address: str) -> RemoteInference:
        """To be called before the first use. Connects in the background."""
        self._client = Client(address)
        return self

    @property
    def lag(self) -> int:
        """Versions that the weights of the inference process are behind the newest announced."""
        return max(self.newest - self.version, 0)

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        raise InferenceError("this acting policy reads weights, which it cannot with --actors.inference batched: use local")

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        raise InferenceError("only the inference process loads weights")

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        self._number += 1
        parts = [*send_arrays(self._request, observation), *send_arrays(self._state, state)]
        request = Infer(self._number, len(observation[self._request[0].name]))
        repeat_at, repeat_seconds = -math.inf, REPEAT_SECONDS
        while True:
            if time.monotonic() >= repeat_at:
                self._client.send(request, parts)
                repeat_at, repeat_seconds = time.monotonic() + repeat_seconds, min(2 * repeat_seconds, MOST_REPEAT_SECONDS)
            arrived = self._client.receive(WAIT_SECONDS)
            if arrived is not None and (answer := self._take(*arrived, request)) is not None:
                return answer
            if self._stopping():
                raise StoppedWaiting

    def expect(self, version: int) -> bool:
        """Asks for the version, where `version` has been published but not been used here yet. True until it is in use."""
        if self.version >= version:
            return False
        self._ask(EXPECT_SECONDS)
        return True

    def wait(self, timeout_seconds: float) -> None:
        """Waits until a message has arrived, or the timeout is over."""
        wait([self._client], min(timeout_seconds, EXPECT_SECONDS))

    def poll(self) -> bool:
        """Takes what has arrived, and asks for the version where no answer has told it lately. True when it changed."""
        before = self.version
        for _ in range(MESSAGES_PER_TURN):
            if (arrived := self._client.receive()) is None:
                break
            self._take(*arrived, None)
        if time.monotonic() > self._answered + ASK_SECONDS:
            self._ask(ASK_SECONDS)
        return self.version != before

    def close(self) -> None:
        self._client.close()

    def _ask(self, least_seconds: float) -> None:
        if time.monotonic() > self._asked + least_seconds:
            self._asked = time.monotonic()
            self._client.send(Infer(self._number, 0))

    def _take(self, message: object, raw: Sequence[bytes], request: Infer | None = None) -> tuple[np.ndarray, Columns] | None:
        """Outputs and next state, from the answer to `request`; None for any other message. Raises InferenceError."""
        if isinstance(message, Refused):
            raise InferenceError(f"the inference process refuses this actor: {message.reason}")
        if not isinstance(message, Inferred):
            return None
        if not raw:  # the answer to a question for the version
            self._note(message)
            return None
        if request is None or message.number != request.number:  # the second answer to a request that was repeated
            return None
        width = len(raw[0]) // (FLOAT.itemsize * request.count)
        arrays = read_arrays([Part(OUTPUTS, (width,), FLOAT), *self._state], raw, request.count)
        if arrays is None:
            return None
        self._note(message)
        after = {name: array.copy() for name, array in arrays.items()}
        return after.pop(OUTPUTS), after

    def _note(self, answer: Inferred) -> None:
        self.version, self.newest, self._answered = answer.version, answer.newest, time.monotonic()
