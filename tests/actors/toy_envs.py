"""Small environments for the tests, well behaved and otherwise."""

from __future__ import annotations

import os
import signal
import time
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Camera(gymnasium.Env):
    """Colour pictures [40, 48, 3] whose pixels come of the seed, the episode and the step.

    Episodes last 5 steps and terminate; every second one lasts 7 and is truncated. At step 3 of each, info says so.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)
        self.action_space = spaces.Discrete(3, start=5)
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episode, self.now = self.episode + 1, 0
        self.base = int(self.np_random.integers(100))
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.now += 1
        odd = self.episode % 2 == 1
        info = {"is_success": odd, "score": 10.0 * self.now}
        return self._picture(), float(action), self.now >= 5 and not odd, self.now >= 7, info

    def _picture(self) -> np.ndarray:
        return np.full((40, 48, 3), (self.base, self.episode % 256, self.now), np.uint8)


class SlowReset(Camera):
    """Takes its time before each episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        time.sleep(0.3)
        return super().reset(seed=seed)


class SlowMake(Camera):
    """Takes its time to be made."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(0.3)


class Rover(gymnasium.Env):
    """Nested Dict observations and continuous actions; says terminated and truncated at once at its tenth step."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (40, 40), np.uint8),
                "joints": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
                "goal": spaces.Dict({"kind": spaces.Discrete(3, start=1), "lamps": spaces.MultiBinary(4)}),
            }
        )
        self.action_space = spaces.Box(np.array([[-1.0], [-2.0]], np.float32), np.array([[1.0], [2.0]], np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.now = 0
        self.phase = float(self.np_random.uniform())
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.now += 1
        return self._seen(), float(action.sum()), self.now >= 10, self.now >= 10, {}

    def _seen(self) -> dict[str, Any]:
        return {
            "camera": np.full((40, 40), self.now, np.uint8),
            "joints": np.sin(self.phase + self.now + np.arange(6.0)).reshape(2, 3),
            "goal": {"kind": np.int64(1 + self.now % 3), "lamps": np.array([1, 0, 0, 1], np.int8)},
        }


class Endless(gymnasium.Env):
    """Never ends by itself; what it gives can be bent by subclasses."""

    observation_space: spaces.Space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, False, False, {}


class Chatty(Endless):
    """Prints what could be taken for a report."""

    def reset(self, **options: Any) -> Any:
        print('{"phase": "make"}\nnonsense', flush=True)
        os.write(2, b"more nonsense\n")
        return super().reset(**options)


class HangsInReset(Endless):
    def reset(self, **options: Any) -> Any:
        if os.fork() == 0:  # a helper process, as simulators have them
            time.sleep(600)
        with open(os.environ["TOY_ENV_NOTE"], "w") as note:
            note.write(str(os.getpgrp()))
        while True:
            time.sleep(1)


class RaisesInReset(Endless):
    def reset(self, **options: Any) -> Any:
        raise FileNotFoundError("no level file\nlevel.bin")


class DiesInStep(Endless):
    def step(self, action: Any) -> Any:
        os.write(2, b"assertion failed in physics\n")
        os.kill(os.getpid(), signal.SIGSEGV)


class LeavesInReset(Endless):
    def reset(self, **options: Any) -> Any:
        raise SystemExit(7)


class NothingAllowed(Endless):
    action_space = spaces.Discrete(3)
    observation_space = spaces.Dict({"place": spaces.Box(0.0, 1.0, (1,)), "action_mask": spaces.MultiBinary(3)})

    def reset(self, **options: Any) -> Any:
        return {"place": np.zeros(1, np.float32), "action_mask": np.zeros(3, np.int8)}, {}


# ---- what strangers bring: spaces


class Seen(Endless):
    """Gives random observations of its space; episodes of 7 steps."""

    observation_space: spaces.Space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space: spaces.Space = spaces.Discrete(3)
    length = 7

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
        self.now = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.now += 1
        return self.observation_space.sample(), 1.0, self.now >= self.length, False, {}


class Keyboard(Seen):
    """Too many combinations of choices for one action."""

    action_space = spaces.MultiDiscrete([3] * 12, dtype=np.int16)

    def action_masks(self) -> np.ndarray:
        return np.ones(36, bool)


class Cockpit(Seen):
    """The same, in parts; its keys are in no order of the alphabet."""

    action_space = spaces.Dict(
        OrderedDict(
            rudder=spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2))]),
            levers=spaces.MultiDiscrete(np.array([[4, 5], [6, 7]]), start=np.array([[0, 1], [2, 3]])),
        )
    )


class MaskedKeyboard(Keyboard):
    observation_space = spaces.Dict({"place": Keyboard.observation_space, "action_mask": spaces.MultiBinary(36)})


class Mixture(Seen):
    """Everything at once, some of it under names that a row has already."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (20, 24, 3), np.uint8),
            "pair": spaces.Tuple([spaces.Discrete(3), spaces.Box(-5, 5, (2,), np.int8)]),
            "reward": spaces.Box(-np.inf, np.inf, (), np.float64),
            "action": spaces.MultiDiscrete([2, 3]),
        }
    )


class TinyPicture(Seen):
    observation_space = spaces.Box(0, 255, (7, 5, 3), np.uint8)


class ListedPicture(TinyPicture):
    """Gives its pictures as lists."""

    def reset(self, **options: Any) -> Any:
        seen, info = super().reset(**options)
        return seen.tolist(), info

    def step(self, action: Any) -> Any:
        seen, *result = super().step(action)
        return seen.tolist(), *result


# ---- what strangers bring, by one line each

NOTHING = np.zeros(3, np.float32)
OBSERVED: dict[str, spaces.Space] = {
    "Doubles": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
    "Halves": spaces.Box(-1, 1, (4,), np.float16),
    "Integers": spaces.Box(-(10**6), 10**6, (4,), np.int64),
    "Flags": spaces.Box(0, 1, (4,), bool),  # type: ignore[arg-type]
    "Bytes": spaces.Box(0, 255, (128,), np.uint8),
    "Scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "FloatPicture": spaces.Box(0.0, 1.0, (40, 48, 3), np.float32),
    "OnePixel": spaces.Box(0, 255, (1, 1), np.uint8),
    "StackedPictures": spaces.Box(0, 255, (2, 40, 48, 3), np.uint8),
    "HugePicture": spaces.Box(0, 255, (1080, 1920, 3), np.uint8),
    "Empty": spaces.Dict({"a": spaces.Box(-1.0, 1.0, (0,)), "b": spaces.Discrete(2)}),
    "Text": spaces.Text(5),
}
ACTIONS: dict[str, spaces.Space] = {
    "ManyChoices": spaces.MultiDiscrete([3, 2, 4], start=[0, 5, -1]),
    "Switches": spaces.MultiBinary((2, 2)),
    "Limbs": spaces.Tuple([spaces.Box(-1.0, 1.0, (2,), np.float64), spaces.Dict({"arm": spaces.Box(0.0, 3.0, (1, 2))})]),
    "MixedActions": spaces.Dict({"gear": spaces.Discrete(3), "wheel": spaces.Box(-1.0, 1.0, (1,), np.float32)}),
}
STEPS: dict[str, tuple[object, ...]] = {  # what every step gives
    "OldStep": (NOTHING, 0.0, False, {}),
    "NoInfoFromStep": (NOTHING, 0.0, False, False, None),
    "WrongShape": (np.zeros(4, np.float32), 0.0, False, False, {}),
    "NotFinite": (np.array([0, np.nan, 0], np.float32), 0.0, False, False, {}),
    "OutOfBounds": (np.array([0.0, 7.5, 0.0], np.float32), 0.0, False, False, {}),
    "NotFiniteReward": (NOTHING, float("inf"), False, False, {}),
    "OverflowingReward": (NOTHING, 1e39, False, False, {}),
    "ArrayReward": (NOTHING, np.array([1.0]), False, False, {}),
    "NoReward": (NOTHING, None, False, False, {}),
    "WholeReward": (NOTHING, 1, np.bool_(False), np.bool_(False), {"score": ("not", "a", "number"), "is_success": None}),
}
RESETS: dict[str, object] = {"NoInfoFromReset": (NOTHING, None), "NoInfo": NOTHING}
for _name, _space in OBSERVED.items():
    globals()[_name] = type(_name, (Seen,), {"observation_space": _space})
for _name, _space in ACTIONS.items():
    globals()[_name] = type(_name, (Seen,), {"action_space": _space})
for _name, _step in STEPS.items():
    globals()[_name] = type(_name, (Endless,), {"step": lambda self, action, given=_step: given})
for _name, _reset in RESETS.items():
    globals()[_name] = type(_name, (Endless,), {"reset": lambda self, given=_reset, **options: given})


# ---- what strangers bring: episodes and rewards


class OneStep(Endless):
    """A bandit: every episode is one step, and the second action is right."""

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), float(action), True, False, {}


class Reports(OneStep):
    """Says of each episode what `success` is."""

    success: Any = None

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"is_success": self.success}


class LongEpisodes(Endless):
    """Episodes of 10,000 steps."""

    now = 0

    def step(self, action: Any) -> Any:
        self.now += 1
        return np.full(3, self.now % 100 / 100, np.float32), 0.1, False, self.now % 10_000 == 0, {}


class LargeRewards(Endless):
    """A million for the right action, minus a million for the other; episodes of 20 steps."""

    now = 0

    def step(self, action: Any) -> Any:
        self.now += 1
        return np.full(3, self.now % 20 / 20, np.float32), 1e6 if action else -1e6, self.now % 20 == 0, False, {}


class BreaksDown(Endless):
    """Like a simulator of physics: sound at first, at the 30th step of an episode it gives something that is not a number. Where
    it `notices` that, the episode terminates."""

    def __init__(self, notices: bool = False) -> None:
        self.notices = notices

    def reset(self, **options: Any) -> Any:
        self.now = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.now += 1
        last = np.full(3, np.nan if self.now == 30 else self.now / 100, np.float32)
        return last, np.nan if self.now == 30 else 1.0, self.notices and self.now == 30, False, {}


class Falls(Endless):
    """Raises now and then, and is of no use after it: what its seed says at its 30th step, what `at` says in its second reset.
    Counts how many were made and closed."""

    made, closed, at = 0, 0, "step"

    def __init__(self) -> None:
        Falls.made += 1
        self.now, self.resets, self.dead = 0, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.resets += 1
        self.falls = seed == 1
        self._check(self.at == "reset" and self.resets == 2)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.now += 1
        self._check(self.at == "every step" or (self.at == "step" and self.falls and self.now == 30))
        return np.full(3, self.now, np.float32), 1.0, False, self.now % 50 == 0, {}

    def close(self) -> None:
        Falls.closed += 1

    def _check(self, falls: bool) -> None:
        self.dead |= falls
        if self.dead:
            raise ConnectionError("the simulator\nhas gone")


class Nanoseconds(Endless):
    """Sees the time, as whole numbers; its rewards are small."""

    observation_space = spaces.Box(0, 2**63 - 1, (3,), np.int64)

    def reset(self, **options: Any) -> Any:
        return np.array([0, 17 * 10**17, 5]), {}

    def step(self, action: Any) -> Any:
        return np.array([0, 0, 5]), -2.5, False, False, {}


class BreaksLater(Endless):
    """Keeps to Gymnasium's API and its space for 50 steps; then a step gives `later`."""

    now = 0
    later: tuple[object, ...] = ()

    def step(self, action: Any) -> Any:
        self.now += 1
        return super().step(action) if self.now < 50 else self.later


# ---- what strangers bring: other contracts


class NoSeed(Endless):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(3, np.float32), {}


class NoOptions(Endless):
    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return np.zeros(3, np.float32), {}


class OldGenerator(Endless):
    """Draws from numpy's older generator, which takes seeds of 32 bits."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.random = np.random.RandomState(seed)
        return self.random.uniform(-1, 1, 3).astype(np.float32), {}


class Drawn(Endless):
    """Made as Gymnasium's tutorial has it."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, size: int = 4, render_mode: str | None = None) -> None:
        assert render_mode is None or render_mode in self.metadata["render_modes"]
        self.size, self.render_mode = size, render_mode


def drawn(render_mode: str | None = None) -> gymnasium.Env:
    return Drawn(render_mode=render_mode)


class OneWindow(Endless):
    """All share what the first one closes."""

    is_open, closed = True, 0

    def close(self) -> None:
        OneWindow.closed += 1
        if not OneWindow.is_open:
            raise RuntimeError("not connected")
        OneWindow.is_open = False


class WrongDtype(Seen):
    """Says bytes, gives floats between 0 and 1."""

    observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0] / 255, {}


class NoSuchChoice(Endless):
    observation_space = spaces.Discrete(4)

    def reset(self, **options: Any) -> Any:
        return -1, {}


class Talker(Endless):
    """Prints all the time."""

    def step(self, action: Any) -> Any:
        for number in range(20):
            print("debug", number, "of", action)
        print("no end of line", end="", flush=True)
        return super().step(action)


class Slow(Endless):
    """Seconds per step."""

    def step(self, action: Any) -> Any:
        time.sleep(float(os.environ.get("TOY_ENV_SECONDS", "2")))
        return super().step(action)


class Told(Seen):
    """Is told what to do, and says which actions are allowed, as sb3-contrib has it."""

    observation_space = spaces.Dict({"place": spaces.Box(-1.0, 1.0, (2,), np.float32), "mission": spaces.Text(9)})
    action_space = spaces.Discrete(2)

    def action_masks(self) -> np.ndarray:
        return np.array([True, False])


class Flagged(OneStep):
    """Says of each step what `flag` is, as terminated."""

    flag: Any = True

    def step(self, action: Any) -> Any:
        seen, reward, _, truncated, _ = super().step(action)
        return seen, reward, self.flag, truncated, {"success": True}


class OneAtATime(Endless):
    """Has a port that no other may have while it is open. A second one on it fails where `when` says."""

    ports: set[int] = set()
    when = "make"
    numbers: tuple[int, ...] = ()

    def __init__(self, port: int = 5000, seconds: float = 0.0) -> None:
        time.sleep(seconds)
        self.port, self.second = port, port in self.ports
        self._check("make")
        self.ports.add(port)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._check("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self._check("step")
        return super().step(action)

    def close(self) -> None:
        self.ports.discard(self.port)

    def _check(self, now: str) -> None:
        if self.second and self.when == now:
            raise OSError(f"address {self.port} is in use")


def numbered(worker_index: int, env_index: int = 7, seed: int = 99, size: int = 1) -> OneAtATime:
    env = OneAtATime(5000 + 100 * worker_index + env_index)
    env.numbers = worker_index, env_index, seed, size
    return env


def scaled(reward: bool = False) -> gymnasium.Env:
    env: Any = gymnasium.wrappers.NormalizeObservation(Endless())
    return gymnasium.wrappers.NormalizeReward(env) if reward else env


def not_an_env() -> object:
    return object()


def several() -> object:
    return gymnasium.make_vec("CartPole-v1", 2)


def of_old_gym() -> object:
    return type("TimeLimit", (), {"__module__": "gym.wrappers.time_limit"})()


class Codes(Endless):
    """A grid of codes, which is declared as an image."""

    def __init__(self, greatest: int = 10, bound: int = 255) -> None:
        self.observation_space = spaces.Box(0, bound, (7, 7, 3), np.uint8)
        self._seen = np.full((7, 7, 3), greatest, np.uint8)

    def reset(self, **options: Any) -> Any:
        return self._seen, {}

    def step(self, action: Any) -> Any:
        return self._seen, 0.0, False, False, {}


def limited() -> gymnasium.Env:
    return gymnasium.wrappers.ClipReward(gymnasium.wrappers.TimeLimit(Codes(greatest=200), 5_000), 0, 1)


class Needy(Endless):
    def __init__(self, size: int) -> None:
        self.size = size


gymnasium.register("HeadraceToy-v0", f"{__name__}:Endless")
gymnasium.register("HeadraceNeedy-v0", f"{__name__}:Needy")
gymnasium.register("HeadraceServed-v0", f"{__name__}:Needy", kwargs={"size": 3})


class Plane(gymnasium.Env):
    """A goal environment: a point that is pushed about in a square for 20 steps, -1 each unless within 0.2 of the goal."""

    STEPS, SPEED, NEAR = 20, 0.25, 0.2

    def __init__(self) -> None:
        place = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({"observation": place, "achieved_goal": place, "desired_goal": place})
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.now = 0
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        self.now += 1
        self.place = np.clip(self.place + self.SPEED * action, -1, 1).astype(np.float32)
        reward = float(self.compute_reward(self.place[None], self.goal[None], {})[0])
        return self._seen(), reward, False, self.now >= self.STEPS, {"is_success": reward == 0}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return np.where(np.linalg.norm(achieved - desired, axis=-1) < self.NEAR, 0.0, -1.0)

    def _seen(self) -> dict[str, np.ndarray]:
        return {"observation": self.place, "achieved_goal": self.place, "desired_goal": self.goal}


class PlaneForOne(Plane):
    """Its compute_reward takes one goal at a time."""

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return np.array([0.0 if float(np.linalg.norm(achieved - desired)) < self.NEAR else -1.0])


class PlanePushed(Plane):
    """Its steps cost more than the goals tell."""

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward - 0.5, terminated, truncated, info


class PlaneOfInfo(Plane):
    """Its reward needs to know more than goals."""

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        self.now += 1
        return self._seen(), 0.0, False, False, {"force": 1.0}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return np.full(len(achieved), info["force"])
