"""Programs for tests: they connect from a thread, or raw, message by message."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium
import msgspec
import numpy as np
from websockets.sync.client import ClientConnection, connect

from actors.envs.foreign.plain_data import to_plain
from actors.envs.remote.client import Connection
from actors.envs.spaces import describe_space

TOKEN = "a-token-of-this-test"


def hello(env: gymnasium.Env, **other: Any) -> dict[str, Any]:
    spaces = {"observation": describe_space(env.observation_space), "action": describe_space(env.action_space)}
    return {"token": TOKEN, **spaces, **other}


class Raw:
    """A connection that sends what the test says."""

    def __init__(self, port: int, binary: bool = False, **options: Any) -> None:
        self._opened = ExitStack()
        self.socket: ClientConnection = self._opened.enter_context(connect(f"ws://127.0.0.1:{port}", compression=None, **options))
        self.binary = binary

    def send(self, message: Any) -> None:
        self.socket.send(msgspec.msgpack.encode(message) if self.binary else json.dumps(message))

    def receive(self) -> dict[str, Any]:
        data = self.socket.recv(30)
        found: dict[str, Any] = msgspec.msgpack.decode(data) if isinstance(data, bytes) else json.loads(data)
        return found

    def exchange(self, message: Any) -> dict[str, Any]:
        self.send(message)
        return self.receive()

    def close(self) -> None:
        self._opened.close()


class Asking(threading.Thread):
    """Steps K environments and asks for their actions, until it has made `steps` steps of each; then it leaves."""

    def __init__(self, port: int, envs: Sequence[gymnasium.Env], first_seed: int, steps: int, single: bool = False) -> None:
        super().__init__(daemon=True)
        self._port, self._envs, self._seed, self._steps, self._single = port, envs, first_seed, steps, single
        self.start()

    def run(self) -> None:
        envs, count = self._envs, len(self._envs)
        spaces = envs[0].observation_space, envs[0].action_space
        made = Connection(f"ws://127.0.0.1:{self._port}", *spaces, None if self._single else count, TOKEN)
        seen = np.stack([env.reset(seed=self._seed + k)[0] for k, env in enumerate(envs)])
        pick = (lambda values: values[0]) if self._single else (lambda values: values)
        actions = np.ravel(made.act(pick(seen)))
        for _ in range(self._steps):
            outcomes = [env.step(action) for env, action in zip(envs, actions, strict=True)]
            last, reward, terminated, truncated, _ = (np.array(values) for values in zip(*outcomes, strict=True))
            ended = terminated | truncated
            seen = np.stack([env.reset()[0] if ended[k] else last[k] for k, env in enumerate(envs)])
            actions = np.ravel(made.act(pick(seen), pick(reward), pick(terminated), pick(truncated), pick(last)))
        made.close()


class Serving(threading.Thread):
    """Resets and steps an environment as it is told to, for `steps` steps; then it breaks its connection."""

    def __init__(self, port: int, env: gymnasium.Env, seed: int, steps: int) -> None:
        super().__init__(daemon=True)
        self._port, self._env, self._seed, self._steps = port, env, seed, steps
        self.start()

    def run(self) -> None:
        raw, seed = Raw(self._port), self._seed
        message, steps = raw.exchange(hello(self._env, mode="serve")), 0
        assert "welcome" in message
        message = raw.receive()
        while True:
            if "reset" in message:
                seen, _ = self._env.reset(seed=seed if not steps else None)
                message = raw.exchange({"observation": to_plain(seen)})
                continue
            seen, reward, terminated, truncated, _ = self._env.step(message["action"])
            steps += 1
            outcome = {"observation": to_plain(seen), "reward": reward, "terminated": terminated, "truncated": truncated}
            if steps == self._steps:
                raw.send(outcome)
                raw.socket.close_socket()
                return
            message = raw.exchange(outcome)
