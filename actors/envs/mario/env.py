"""Super Mario Bros., one level per environment, or several of which each episode draws one.

Reward and info are read from the console's RAM. The addresses are those of the public disassembly of the game.

Reward "speedrun-v1", per step of `skip` frames:
  + the pixels by which x exceeds the furthest x so far, at most 7.5 per frame (30 at skip 4); none in a warp zone, which lies
    beyond the way out of its level
  - 0.001 per step
  - 25 for losing a life
  + 50 for completing the level
An episode terminates when Mario loses a life, and when the level changes (is_success). It is truncated after 300 steps
without progress, and after 4,500 steps.

An episode begins with 0 to 30 idle frames, drawn anew each time: the emulator is deterministic, and enemies move meanwhile.
With `restarts` a share of the episodes begins, without them, where an earlier one has been, each part of the level equally
often. So a policy learns what comes after a difficult place before it can pass that place.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import cv2
import gymnasium
import numpy as np

from actors.envs.mario.console import BUTTONS, Console, Grey, contrast, luma, open_console, presses
from actors.envs.mario.native_console import NativeConsole
from actors.envs.mario.retro_console import open_retro
from actors.errors import EnvError

HUD_ROWS = 32
MAX_NOOPS = 30  # the usual bound of a random start, in training as in evaluation
STALLED_STEPS = 300
MAX_STEPS = 4_500
PROGRESS_PER_FRAME = 7.5
STEP_COST = 0.001
DEATH = -25.0
COMPLETION = 50.0
PART, KEPT = 64, 4  # earlier positions: the last 4 in each 64 pixels of an area

# RAM addresses.
ENGINE = 0x0E  # state of the player, see the values below
X_PAGE, X_PIXEL = 0x6D, 0x86
Y_PAGE = 0xB5  # 1: on the screen; above 1: below it, falling
WARP_ZONE, AREA_CHANGE_TIMER = 0x6D6, 0x6DE  # the first is 0 outside of a warp zone
CLOUD_AREA = 0x743  # falling out of a cloud area leads back to the level
AREA_TYPE, AREA_NUMBER = 0x74E, 0x74F  # of the area that is loaded
LIVES, STAGE, WORLD, AREA_OFFSET = 0x75A, 0x75C, 0x75F, 0x760
MODE = 0x770  # 0 title, 1 play, 2 the end of a castle, 3 game over
SCREEN_TIMER = 0x7A0
COINS, TIME = 0x7ED, 0x7F8  # one decimal digit per byte

# Values of ENGINE.
TRANSIT = frozenset((0, 1, 2, 3, 7))  # loading, climbing off, in a pipe, entering: buttons do nothing
FLAGPOLE, WALK_OFF, LOSE_LIFE, CONTROL, DYING = 4, 5, 6, 8, 11
END_OF_CASTLE = 2
MAX_TRANSIT_FRAMES = 1_200  # a transit takes a few hundred; after this many the agent gets control in any state


VIEWS: dict[str, tuple[Grey, int]] = {"grey": (luma, HUD_ROWS), "contrast": (contrast, 0)}  # and how many rows are masked
CONSOLES: dict[str, Callable[[], Console]] = {"nes_py": open_console, "retro": open_retro, "native": NativeConsole}

Part = tuple[tuple[int, int], int]  # of a level: an area, and a multiple of PART pixels


class FrameShrinker:
    """Masks the top rows of a grey frame with 0, or none, and resizes it by area.

    Each environment has its own, whose buffer is reused: a step allocates only the result.
    """

    def __init__(self, height: int, width: int, masked_rows: int, size: int) -> None:
        """Takes frames [height, width] and gives [size, size] uint8."""
        self._grey = np.zeros((height, width), np.uint8)  # [height, width]; the masked rows stay 0
        self._masked_rows = masked_rows
        self._size = (size, size)

    def __call__(self, draw_grey: Callable[[np.ndarray], object]) -> np.ndarray:
        """A new array [size, size]. `draw_grey` writes the rows below the mask, [R, width] uint8."""
        draw_grey(self._grey[self._masked_rows :])
        return cv2.resize(self._grey, self._size, interpolation=cv2.INTER_AREA)


def noop_frames(options: Mapping[str, Any] | None, random: np.random.Generator) -> int:
    """options["noops"]: idle frames after a reset, drawn if it is not there. Raises ValueError outside 0 to 30."""
    noops = int((options or {}).get("noops", random.integers(MAX_NOOPS + 1)))
    if not 0 <= noops <= MAX_NOOPS:
        raise ValueError(f"options['noops'] must be 0 to {MAX_NOOPS}, not {noops}")
    return noops


class Level(NamedTuple):
    stage: tuple[int, int]  # world and stage, from 1
    start: bytes  # the console's state
    home: tuple[int, int]  # the area of the start
    positions: dict[Part, deque[bytes]]  # saved states


def parse_stages(text: str) -> list[tuple[int, int]]:
    """Reads "" (1-1), "WORLD-STAGE" or several of them with commas. Raises EnvError beyond worlds 1 to 8 and stages 1 to 4."""
    text = text or "1-1"
    if not re.fullmatch(r"[1-8]-[1-4](,[1-8]-[1-4])*", text):
        raise EnvError(
            f"mario:{text}: no such stage; write mario:1-1 to mario:8-4 (world 1-8, stage 1-4), or several, as in mario:1-1,4-1"
        )
    return [(int(stage[0]), int(stage[2])) for stage in text.split(",")]


class MarioEnv(gymnasium.Env):
    """A level, from its start. Observation: [size, size] uint8, one grey frame: with the status lines masked, or without them
    in greys of more contrast (`view`).

    info: x_pos, score (the furthest x in the area where the level starts), flag_get, is_success, life, world, stage, coins, time.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}
    render_mode = "rgb_array"

    def __init__(
        self,
        stage: str = "",
        actions: str = "",
        skip: int = 4,
        max_steps: int = 0,
        backend: str = "nes_py",
        restarts: float = 0.0,
        size: int = 84,
        view: str = "grey",
    ) -> None:
        """Opens a console and plays to the start of each level. Raises EnvError for an unknown stage or set of actions, or if the
        emulator is not installed. `restarts`: share of the episodes that begin from an earlier position, where the console keeps
        several states."""
        stages = parse_stages(stage)
        self._skip = skip
        self._max_steps = max_steps or MAX_STEPS
        self._presses = presses(actions or "simple")
        self.console: Console = CONSOLES[backend]()
        if len(stages) > 1 and not self.console.keeps_states:
            self.close()
            raise EnvError(f"mario:{stage}: several stages need --env.backend native or retro, not {backend}")
        self._grey, masked = VIEWS[view]
        self._shrink = FrameShrinker(240 - HUD_ROWS + masked, 256, masked, size)
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._presses))
        cv2.setNumThreads(1)  # a frame is too small for several threads, and other actors use the other cores
        self._levels: list[Level] = []
        for one in stages:
            _play_to_start(self.console, one)
            self._levels.append(Level(one, self.console.save(), self._area(), {}))
        self._level = self._levels[0]
        self._restarts = restarts if self.console.keeps_states else 0.0
        self._parts: set[Part] = set()  # that this episode has been in

    def get_action_meanings(self) -> list[str]:
        """The buttons of each action, such as right+A."""
        pressed = ([name for name, bit in BUTTONS.items() if bit & buttons] for buttons in self._presses)
        return ["+".join(names) or "NOOP" for names in pressed]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Draws a level. Returns to its start and runs 0 to 30 idle frames, options={"noops": n} or drawn, or returns to an
        earlier position."""
        super().reset(seed=seed)
        noops = noop_frames(options, self.np_random)
        if len(self._levels) > 1:
            self._level = self._levels[self.np_random.integers(len(self._levels))]
        state = self._first_state()
        self.console.restore(state)
        if state is self._level.start:
            self.console.advance(noops)
        self._lives = self.console.ram[LIVES]
        self._steps = self._last_progress = 0
        self._furthest = {self._area(): self._x()}
        self._parts = {(self._area(), self._x() // PART)}
        return self._observation(), self._info(completed=False)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Holds the action's buttons for `skip` frames, and for as long as an animation takes no input."""
        console = self.console
        console.press(self._presses[action])
        console.advance(self._skip)
        if console.ram[ENGINE] in TRANSIT:
            self._pass_transit()
        self._steps += 1
        completed = self._completed()
        died = not completed and self._died()
        reward = -STEP_COST
        if completed:
            reward += COMPLETION
        elif died:
            reward += DEATH
        if not died:  # while he dies, Mario may still move forward: that is no progress
            reward += self._progress()
            self._remember()
        terminated = completed or died
        stalled = self._steps - self._last_progress >= STALLED_STEPS
        truncated = not terminated and (stalled or self._steps >= self._max_steps)
        return self._observation(), reward, terminated, truncated, self._info(completed)

    def render(self) -> np.ndarray:  # type: ignore[override]
        """The whole screen [240, 256, 3] RGB uint8: the frame of the last observation."""
        return cv2.cvtColor(self.console.frame, cv2.COLOR_BGRA2RGB)

    def close(self) -> None:
        """Frees the emulator. A second call does nothing."""
        if self.console is not None:
            self.console.close()
            self.console = None  # type: ignore[assignment]

    def _observation(self) -> np.ndarray:
        return self._shrink(lambda rows: self.console.draw_grey(rows, self._grey))

    def _x(self) -> int:
        """Mario's x in the area, in pixels. Left of the start the page wraps to 255, which means below zero."""
        ram = self.console.ram
        x = ram[X_PAGE] * 256 + ram[X_PIXEL]
        return x - 0x10000 if x >= 0x8000 else x

    def _area(self) -> tuple[int, int]:
        return self.console.ram[AREA_TYPE], self.console.ram[AREA_NUMBER]

    def _progress(self) -> float:
        """The reward for progress. Each area (a bonus room, the way out of a tunnel) has its own x axis.

        An area's furthest x begins where Mario enters it first. The cap limits the reward of a jump within an area, as by a pipe
        back to the surface.
        """
        area, x = self._area(), self._x()
        gain = x - self._furthest.setdefault(area, x)
        if gain <= 0 or self.console.ram[WARP_ZONE]:
            return 0.0
        self._furthest[area] = x
        self._last_progress = self._steps
        return min(float(gain), PROGRESS_PER_FRAME * self._skip)

    def _first_state(self) -> bytes:
        """The start of the level, or an earlier position: parts of the level with the same probability."""
        parts = list(self._level.positions.values())
        if not parts or self.np_random.random() >= self._restarts:
            return self._level.start
        states = parts[self.np_random.integers(len(parts))]
        return states[self.np_random.integers(len(states))]

    def _remember(self) -> None:
        """Keeps the position if it is the episode's first in this part of the level, and no dead end."""
        part = self._area(), self._x() // PART
        if self._restarts and part not in self._parts and not self._completed() and not self.console.ram[WARP_ZONE]:
            self._parts.add(part)
            self._level.positions.setdefault(part, deque(maxlen=KEPT)).append(self.console.save())

    def _completed(self) -> bool:
        """True if Mario has reached the flag or the axe, or a warp has led to another level."""
        ram = self.console.ram
        if ram[ENGINE] in (FLAGPOLE, WALK_OFF) or ram[MODE] == END_OF_CASTLE:
            return True
        return (ram[WORLD] + 1, ram[STAGE] + 1) != self._level.stage

    def _died(self) -> bool:
        ram = self.console.ram
        fell = ram[Y_PAGE] > 1 and not ram[CLOUD_AREA]
        return fell or ram[ENGINE] in (LOSE_LIFE, DYING) or ram[LIVES] != self._lives

    def _pass_transit(self) -> None:
        """Runs through pipes and loading screens, with shortened waits, until Mario takes input again."""
        console = self.console
        for _ in range(MAX_TRANSIT_FRAMES):
            if console.ram[ENGINE] not in TRANSIT or self._completed() or self._died():
                return
            console.ram[SCREEN_TIMER] = 0
            if 1 < console.ram[AREA_CHANGE_TIMER] < 255:
                console.ram[AREA_CHANGE_TIMER] = 1
            console.advance(1)

    def _info(self, completed: bool) -> dict[str, Any]:
        console = self.console
        return {
            "x_pos": self._x(),
            "score": float(self._furthest.get(self._level.home, 0)),
            "flag_get": completed,
            "is_success": completed,
            "life": console.ram[LIVES],
            "world": console.ram[WORLD] + 1,
            "stage": console.ram[STAGE] + 1,
            "coins": console.number(COINS, 2),
            "time": console.number(TIME, 3),
        }


def _play_to_start(console: Console, stage: tuple[int, int]) -> None:
    """Writes the stage into RAM, presses START at the title screen, and runs until Mario takes input."""
    world, number = stage
    console.power_on()
    for frame in range(3 * MAX_TRANSIT_FRAMES):
        # START is released between two presses, and when play has begun: there it would pause the game.
        console.press(BUTTONS["start"] if console.ram[MODE] == 0 and frame % 2 else 0)
        if console.number(TIME, 3) == 0:  # the level is not loaded yet
            console.ram[WORLD], console.ram[STAGE] = world - 1, number - 1
            # In these worlds the second stage begins with a separate area, the walk into the pipe: skip it.
            console.ram[AREA_OFFSET] = number - 1 + (world in (1, 2, 4, 7) and number >= 2)
        console.ram[SCREEN_TIMER] = 0
        console.advance(1)
        if console.ram[MODE] == 1 and console.ram[ENGINE] == CONTROL and console.number(TIME, 3) > 0:
            return
    raise EnvError(f"mario:{world}-{number}: the game did not reach the level's start")
