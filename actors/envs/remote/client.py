"""A Python program's connection: its own loop asks for actions."""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import gymnasium
import msgspec
import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from actors.envs.foreign.plain_data import one_of, read_batch, read_one, to_plain
from actors.envs.remote.messages import PROTOCOL
from actors.envs.spaces import describe_space
from transport.files.token import own_token

RETRY_SECONDS, MOST_RETRY_SECONDS = 0.2, 5.0


class Refused(RuntimeError):
    """The actor has ended the connection, and the program may not come back; one line."""


class Connection:
    """Call `act` once for each step. A broken connection is made anew, which cuts the episodes of that moment."""

    def __init__(
        self,
        address: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        environments: int | None = None,
        token: str | None = None,
        name: str = "",
        wait_seconds: float = 60.0,
    ) -> None:
        """The arguments are those of `headrace.connect`. Raises Refused, TimeoutError."""
        self._address, self._count, self._wait_seconds = address, environments, wait_seconds
        self._observation_space, self._action_space = observation_space, action_space
        hello = {
            "protocol": PROTOCOL,
            "token": own_token() if token is None else token,
            "observation": describe_space(observation_space),
            "action": describe_space(action_space),
            "name": name,
        }
        self._hello = msgspec.msgpack.encode(hello if environments is None else hello | {"environments": environments})
        self._opened = ExitStack()  # the connection, which ends with it
        self._connect()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()

    def act(
        self,
        observation: Any,
        reward: Any = None,
        terminated: Any = False,
        truncated: Any = False,
        final_observation: Any = None,
        info: Any = None,
    ) -> Any:
        """The action for `observation`, in the form of the action space; for K environments all values have one more axis.

        `reward`, `terminated`, `truncated` and `info` are the results of the last action; the first call has none. Where an
        episode has ended, `observation` is the first of the next, and `final_observation` the last of one that was truncated.
        Raises Refused, TimeoutError.
        """
        message = {"observation": _raw(self._observation_space, observation)}
        if reward is not None and not self._fresh:
            message |= {"reward": to_plain(reward), "terminated": to_plain(terminated), "truncated": to_plain(truncated)}
            message |= (
                {} if final_observation is None else {"final_observation": _raw(self._observation_space, final_observation)}
            )
            message |= {} if info is None else {"info": to_plain(info)}
        try:
            self._socket.send(msgspec.msgpack.encode(message))
            answer = self._receive()
        except (ConnectionClosed, OSError):
            self._connect()
            return self.act(observation)
        if "reset" in answer:  # the episodes of the server begin here
            self._fresh = True
            return self.act(observation)
        self._fresh = False
        if self._count is None:
            return one_of(read_one(self._action_space, answer["action"], "action"), 0)
        return read_batch(self._action_space, answer["action"], self._count, "action")

    def _receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.msgpack.decode(self._socket.recv(decode=False))
        if "close" not in answer:
            return answer
        if not answer.get("again"):
            raise Refused(str(answer["close"]))
        raise OSError(answer["close"])

    def _connect(self) -> None:
        deadline, pause = time.monotonic() + self._wait_seconds, RETRY_SECONDS
        while True:
            self.close()
            try:
                self._socket = self._opened.enter_context(connect(self._address, compression=None, max_size=None))
                self._socket.send(self._hello)
                self._receive()  # the welcome
                self._fresh = True
                return
            except (OSError, ConnectionClosed, InvalidHandshake) as error:
                if time.monotonic() + pause > deadline:
                    raise TimeoutError(f"nothing answers at {self._address}: {error}") from error
            time.sleep(pause)
            pause = min(2 * pause, MOST_RETRY_SECONDS)


def _raw(space: gymnasium.Space[Any], observation: Any) -> Any:
    """Arrays as their bytes."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _raw(part, observation[key]) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return [_raw(part, one) for part, one in zip(space.spaces, observation, strict=True)]
    found = np.asarray(observation, space.dtype)
    return found.item() if found.ndim == 0 else found.astype(found.dtype.newbyteorder("<")).tobytes()
