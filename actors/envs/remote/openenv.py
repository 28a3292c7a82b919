"""An environment that a server of OpenEnv (github.com/meta-pytorch/OpenEnv) has, by its WebSocket."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.errors import EnvError
from transport.files.documents import decode
from transport.text import plain

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from actors.envs.remote.family import OpenEnvOptions

CONNECT_SECONDS = 10.0
MESSAGE_BYTES = 100_000_000


def address(url: str) -> str:
    """The WebSocket of a server, as ws://127.0.0.1:8000/ws. Raises EnvError."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise EnvError(f"openenv:{plain(url)}: name a server, as openenv:http://127.0.0.1:8000")
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/ws"


class OpenEnvClient(gymnasium.Env[np.ndarray, Any]):
    """A session of a server. Where the connection breaks, the next reset connects again."""

    def __init__(self, url: str, options: OpenEnvOptions) -> None:
        """Connects, and resets once to see what there is. Raises EnvError."""
        self._url, self._options, self._opened = url, options, ExitStack()
        self._socket: ClientConnection | None = None
        self._fields: tuple[str, ...] = options.observation
        if bool(options.choices) == bool(options.size):
            raise EnvError(
                f"{url}: say what {options.action!r} of an action is: --env.choices N (one of N), or --env.size N (N real "
                "numbers); --env.action names another field"
            )
        numbers = self._read(self._ask({"type": "reset", "data": {}}))[0]
        self.observation_space = spaces.Box(-np.inf, np.inf, numbers.shape, np.float32)
        bounds = options.low, options.high
        self.action_space = spaces.Box(*bounds, (options.size,)) if options.size else spaces.Discrete(options.choices)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Raises EnvError, as `step` does."""
        super().reset(seed=seed)
        return self._read(self._ask({"type": "reset", "data": {} if seed is None else {"seed": seed}}))[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        chosen = np.asarray(action).tolist()
        data = self._ask({"type": "step", "data": {self._options.action: chosen}})
        numbers, reward, done = self._read(data)
        return numbers, reward, done, False, {}

    def close(self) -> None:
        self._opened.close()
        self._socket = None

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        try:
            if self._socket is None:
                opening = connect(self._url, open_timeout=CONNECT_SECONDS, max_size=MESSAGE_BYTES)
                self._socket = self._opened.enter_context(opening)
            self._socket.send(json.dumps(message))
            answer = decode(self._socket.recv(self._options.answer_seconds), dict[str, Any])
        except (OSError, ValueError, WebSocketException) as error:
            self.close()
            raise EnvError(f"{self._url}: {plain(str(error)) or type(error).__name__}") from None
        data = answer.get("data")
        if not isinstance(data, dict) or answer.get("type") != "observation":
            said = data.get("message") if isinstance(data, dict) else answer
            raise EnvError(f"{self._url}: it answered {plain(str(said))[:300]}")
        return data

    def _read(self, data: dict[str, Any]) -> tuple[np.ndarray, float, bool]:
        """The numbers of the observation, the reward, and whether the episode is over."""
        seen = data.get("observation")
        if not isinstance(seen, dict):
            raise EnvError(f"{self._url}: its answer has no observation")
        self._fields = self._fields or tuple(name for name, value in seen.items() if _numbers(value) is not None)
        found = {name: _numbers(seen.get(name)) for name in self._fields}
        missing = [name for name, value in found.items() if value is None]
        if missing or not found:
            there = ", ".join(f"{name} ({type(value).__name__})" for name, value in seen.items())
            wrong = f"{missing[0]!r} is no number or list of numbers" if missing else "it has no numbers"
            raise EnvError(f"{self._url}: observation: {wrong}; it has {plain(there)[:300]}: --env.observation names fields")
        reward = data.get("reward")
        return (
            np.concatenate([value for value in found.values() if value is not None]),
            float(reward or 0.0),
            bool(data.get("done")),
        )


def _numbers(value: Any) -> np.ndarray | None:
    """As a vector; None for anything else than a number or a nested list of numbers."""
    try:
        found = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    return found.astype(np.float32).ravel() if found.dtype.kind in "biuf" and found.size else None
