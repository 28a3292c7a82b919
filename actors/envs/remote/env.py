"""The environments of a program that has connected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from actors.envs.base import Simulators, SimulatorStep
from actors.envs.foreign.actions import to_env_actions
from actors.envs.foreign.plain_data import one_of, to_plain
from actors.envs.remote.messages import Outcome
from actors.envs.remote.server import Session
from actors.envs.spec import flatten_batch


class RemoteEnv(gymnasium.Env[Any, Any]):
    """The first environment of a session, for the pre-flight, an evaluation or a demo: further ones of the same program are
    given the same actions."""

    def __init__(self, session: Session, on_close: Callable[[], None] = lambda: None) -> None:
        self.session, self._on_close = session, on_close
        self.observation_space, self.action_space = session.observation_space, session.action_space
        self._steps = SessionSteps(session)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Raises ProgramLeft, as `step` does."""
        super().reset(seed=seed)
        return one_of(self._steps.first(seed), 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        outcome = self._steps.step(_repeated(action, self.session.environments))
        assert outcome.reward is not None
        ended = bool(outcome.truncated[0])
        seen = outcome.final_observation if ended and outcome.final_observation is not None else outcome.observation
        info = {key: values[0] for key, values in outcome.info.items() if values[0] is not None}
        return one_of(seen, 0), float(outcome.reward[0]), bool(outcome.terminated[0]), ended, info

    def close(self) -> None:
        self.session.dismiss("the check or the evaluation is over", again=True)
        self._on_close()


class ConnectedEnv(RemoteEnv):
    """The environments of a session in an actor, which steps them by `simulators`."""

    def simulators(self) -> Simulators:
        return SessionSimulators(self.session)


class ConnectedProgram(Session):
    """A session in an actor."""

    def make(self) -> gymnasium.Env:
        return ConnectedEnv(self)


class SessionSteps:
    """The order of messages: what a program has sent already, and what it is still to be asked for."""

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
        self._session, self._steps, self._count = session, SessionSteps(session), session.environments
        self._asks = session.hello.mode == "ask"
        self._next: dict[str, np.ndarray] = {}  # the first observations of the next episodes

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Raises ProgramLeft, as `step` does."""
        if self._asks and self._next:
            return {name: rows[where] for name, rows in self._next.items()}
        return self._checked(self._steps.first(seeds[0]))

    def step(self, actions: np.ndarray) -> SimulatorStep:
        session = self._session
        outcome = self._steps.step(to_env_actions(session.action_space, actions))
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
            if seen.dtype.kind == "f" and not np.isfinite(seen).all():
                raise self._session.refuse(f"{name} has a value that is not finite")
        return flat


def _repeated(action: Any, count: int) -> Any:
    """The same action for `count` environments."""
    if isinstance(action, dict):
        return {key: _repeated(one, count) for key, one in action.items()}
    if isinstance(action, tuple):
        return tuple(_repeated(one, count) for one in action)
    return np.repeat(np.asarray(action)[None], count, axis=0)
