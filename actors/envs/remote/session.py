"""A program that has connected, and its environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gymnasium
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from actors.envs.base import ProgramLeft, Simulators, SimulatorStep
from actors.envs.foreign.actions import to_env_actions
from actors.envs.foreign.plain_data import encode, one_of, to_plain
from actors.envs.remote.messages import Hello, InvalidMessage, Outcome, OutcomeReader, read_spaces
from actors.envs.spec import flatten_batch
from replay.config import LARGEST
from transport.text import plain


class Session:
    """A connection to a program that has shown the token. One thread uses it."""

    def __init__(self, connection: ServerConnection, hello: Hello, binary: bool, silence_seconds: float) -> None:
        """Raises InvalidMessage."""
        self.hello, self._connection, self._binary, self._silence_seconds = hello, connection, binary, silence_seconds
        self.observation_space, self.action_space = read_spaces(hello)
        self.reader = OutcomeReader(hello, self.observation_space)
        self.waiting: Callable[[], AbstractContextManager[object]] = nullcontext  # entered while it waits for the program
        self.peer = plain(str(connection.remote_address[0] if connection.remote_address else "?"))

    @property
    def name(self) -> str:
        return f"{plain(self.hello.name) or 'a program'} at {self.peer}"

    @property
    def environments(self) -> int:
        return self.hello.count

    def make(self) -> gymnasium.Env:
        return RemoteEnv(self, simulators=SessionSimulators(self))

    def send(self, message: dict[str, Any]) -> None:
        """Raises ProgramLeft."""
        try:
            with self.waiting():
                self._connection.send(encode(message, self._binary), text=not self._binary)
        except (ConnectionClosed, OSError) as error:
            raise ProgramLeft(_why(error)) from None

    def receive(self) -> Outcome:
        """Raises ProgramLeft."""
        try:
            with self.waiting():
                data = self._connection.recv(self._silence_seconds)
            return self.reader.read(data)
        except TimeoutError:
            raise self.refuse(f"silent for {self._silence_seconds:g} s", again=True) from None
        except (ConnectionClosed, OSError) as error:
            raise ProgramLeft(_why(error)) from None
        except InvalidMessage as error:
            raise self.refuse(str(error)) from None

    def refuse(self, why: str, again: bool = False) -> ProgramLeft:
        self.dismiss(why, again)
        return ProgramLeft(why)

    def dismiss(self, why: str, again: bool = False) -> None:
        try:
            with self.waiting():
                self._connection.send(encode({"close": why, "again": again}, self._binary), text=not self._binary)
        except (ConnectionClosed, OSError):
            pass


class RemoteEnv(gymnasium.Env[Any, Any]):
    """The first environment of a session, for the pre-flight, an evaluation or a demo. Further environments of the same program
    get the same actions. In an actor `simulators` step all of them."""

    def __init__(
        self, session: Session, on_close: Callable[[], None] = lambda: None, simulators: Simulators | None = None
    ) -> None:
        self.simulators, self._session, self._on_close = simulators, session, on_close
        self.observation_space, self.action_space = session.observation_space, session.action_space
        self._exchange = Exchange(session)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Raises ProgramLeft, as `step` does."""
        super().reset(seed=seed)
        return one_of(self._exchange.first(seed), 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        outcome = self._exchange.step(_repeated(action, self._session.environments))
        assert outcome.reward is not None
        ended = bool(outcome.truncated[0])
        seen = outcome.final_observation if ended and outcome.final_observation is not None else outcome.observation
        info = {key: values[0] for key, values in outcome.info.items() if values[0] is not None}
        return one_of(seen, 0), float(outcome.reward[0]), bool(outcome.terminated[0]), ended, info

    def close(self) -> None:
        self._session.dismiss("the check or the evaluation is over", again=True)
        self._on_close()


class Exchange:
    """Resets and steps the environments of a program, message by message."""

    def __init__(self, session: Session) -> None:
        self._session, self._asks = session, session.hello.mode == "ask"
        self._single, self._begun = session.hello.environments is None, False
        self._next: Outcome | None = None  # of one that asks: it begins the next episode

    def first(self, seed: int | None) -> Any:
        """The first observations of episodes [K, …], of all environments. Raises ProgramLeft."""
        if self._next is not None:
            found, self._next = self._next, None
            return found.observation
        if not self._begun:
            self._session.send({"welcome": {"environments": self._session.environments}})
        if self._begun or not self._asks:  # one that asks begins its first episode by itself
            self._session.send({"reset": True} if seed is None else {"reset": True, "seed": seed})
        self._begun = True
        found = self._session.receive()
        if found.reward is not None:
            raise self._session.refuse("the first message of an episode has a reward")
        return found.observation

    def step(self, actions: Any) -> Outcome:
        """Raises ProgramLeft."""
        session = self._session
        session.send({"action": to_plain(one_of(actions, 0) if self._single else actions)})
        outcome = session.receive()
        if outcome.reward is None:
            raise session.refuse("a message has no reward: it is of the last action")
        self._next = outcome if self._asks and (outcome.terminated | outcome.truncated).any() else None
        return outcome


class SessionSimulators(Simulators):
    """All environments of a session, in an actor."""

    takes_seeds = False

    def __init__(self, session: Session) -> None:
        self._session, self._exchange = session, Exchange(session)
        self._asks = session.hello.mode == "ask"
        self._next: dict[str, np.ndarray] = {}  # the first observations of the next episodes

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Raises ProgramLeft, as `step` does."""
        if self._asks and self._next:
            return {name: rows[where] for name, rows in self._next.items()}
        return self._checked(self._exchange.first(seeds[0]))

    def step(self, actions: np.ndarray) -> SimulatorStep:
        session = self._session
        outcome = self._exchange.step(to_env_actions(session.action_space, actions))
        assert outcome.reward is not None
        observation = self._checked(outcome.observation)
        if self._asks and (outcome.terminated | outcome.truncated).any():
            self._next = {name: rows.copy() for name, rows in observation.items()}
            if outcome.final_observation is not None:
                cut = outcome.truncated
                for name, rows in self._checked(outcome.final_observation, cut).items():
                    observation[name][cut] = rows[cut]
        info = outcome.info
        success = [info["success"][k] if one is None else one for k, one in enumerate(info["is_success"])]
        return SimulatorStep(
            observation, outcome.reward, outcome.terminated, outcome.truncated, info["score"], success, info=info
        )

    def close(self) -> None:
        pass  # the connection is closed when its session ends

    def _checked(self, observation: Any, where: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """By name. Raises ProgramLeft where a value is outside its space, or not finite; only `where` [K] is true, if given."""
        try:
            flat = flatten_batch(self._session.observation_space, observation)
        except (ValueError, IndexError) as error:
            raise self._session.refuse(f"an observation is outside its space: {error}") from None
        for name, rows in flat.items():
            seen = rows if where is None else rows[where]
            if seen.dtype.kind == "f" and not (np.abs(seen) <= LARGEST).all():
                raise self._session.refuse(f"{name} has a value that is not finite, or beyond {LARGEST:g}")
        return flat


def _repeated(action: Any, count: int) -> Any:
    """The same action for `count` environments."""
    if isinstance(action, dict):
        return {key: _repeated(one, count) for key, one in action.items()}
    if isinstance(action, tuple):
        return tuple(_repeated(one, count) for one in action)
    return np.repeat(np.asarray(action)[None], count, axis=0)


def _why(error: Exception) -> str:
    if isinstance(error, ConnectionClosed):
        sent = error.rcvd
        return "it has closed the connection" if sent is not None else "the connection broke"
    return f"the connection broke: {error}"
