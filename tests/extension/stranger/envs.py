"""Environments of someone else's module: factories with options, a wrapper, a family."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from msgspec import Meta, Struct

from actors.envs.base import EnvironmentFamily, Setup, Simulators, SimulatorStep, variant
from transport.names import FIXED

MODULE = "tests.extension.stranger.envs"


class Line(gymnasium.Env):
    """A walk along a line of `size` places; its options are kept, for tests to look at."""

    def __init__(self, size: int = 5, **options: Any) -> None:
        self.size, self.options = size, options
        self.observation_space = spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place = max(self.place + (1 if action else -1), 0)
        return self._seen(), float(action), self.place == self.size - 1, False, {}

    def _seen(self) -> np.ndarray:
        return np.eye(self.size, dtype=np.float32)[self.place]


def make_maze(
    size: int = 5,
    slip: float = 0.0,
    walls: bool = False,
    look: Literal["near", "far"] = "far",
    rooms: tuple[int, ...] = (),
    title: str | None = None,
    anything: Any = None,
) -> gymnasium.Env:
    return Line(size, slip=slip, walls=walls, look=look, rooms=rooms, title=title, anything=anything)


def needy(size: int, color: str = "blue") -> gymnasium.Env:
    return Line(size, color=color)


def by_defaults(size=7, slip=0.25, walls=True, name="x"):  # type: ignore[no-untyped-def]
    return Line(size, slip=slip, walls=walls, name=name)


def by_taken_names(
    skip: int = 4,
    backend: str = "own",
    tier: str = "easy",
    stack: int = 2,
    check: bool = True,
    urdf: tuple[int, ...] = (1,),
    look: Literal["50%", "[a b]"] = "50%",
) -> gymnasium.Env:
    return Line()


class LineOptions(Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=2, description="places")] = 4


def by_struct(options: LineOptions) -> gymnasium.Env:
    return Line(options.size, whole=options)


class Doubled(gymnasium.ObservationWrapper):
    """Each observation twice."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        assert env.observation_space.shape is not None
        self.observation_space = spaces.Box(0.0, 1.0, (2 * env.observation_space.shape[0],), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.concatenate([observation, observation])


class First(gymnasium.ObservationWrapper):
    """The first entry alone."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[:1]


class CorridorOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Corridors."""

    length: Annotated[int, Meta(ge=2, description="places of the corridor", extra=FIXED)] = 5
    backend: Annotated[Literal["auto", "slow", "fast"], Meta(description="what steps it")] = "auto"


class Corridors(EnvironmentFamily):
    """Lines, many stepped as one."""

    about = "corridors"
    Options = CorridorOptions
    options: CorridorOptions
    default_stack = 3

    def make(self, setup: Setup) -> gymnasium.Env:
        name = variant(self.env_id)
        return Line(self.options.length, variant=name, evaluation=setup.evaluation, steps=setup.max_episode_steps)

    def resolve_options(self) -> CorridorOptions:
        return CorridorOptions(self.options.length, "fast" if self.options.backend == "auto" else self.options.backend)

    def simulators(self, env: gymnasium.Env, count: int) -> Simulators | None:
        return Together(count, self.options.length) if self.options.backend == "fast" else None

    def figures(self, env: gymnasium.Env) -> list[str]:
        return [f"{self.options.length} places"]


class Together(Simulators):
    """K lines by arrays."""

    def __init__(self, count: int, length: int) -> None:
        self.place, self.eye = np.zeros(count, np.int64), np.eye(length, dtype=np.float32)

    def reset(self, where: np.ndarray, seeds: Any) -> dict[str, np.ndarray]:
        self.place[where] = 0
        return {"observation": self.eye[self.place[where]]}

    def step(self, actions: np.ndarray) -> SimulatorStep:
        self.place = np.maximum(self.place + np.where(actions == 1, 1, -1), 0)
        ended, none = self.place == len(self.eye) - 1, [None] * len(actions)
        return SimulatorStep(
            {"observation": self.eye[self.place]}, actions.astype(np.float32), ended, np.zeros_like(ended), none, none
        )

    def close(self) -> None:
        """There is nothing to free."""
