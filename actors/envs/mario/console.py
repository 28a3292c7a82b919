"""A NES with Super Mario Bros. in it: what MarioEnv asks of one, and the two generations of nes-py behind it.

nes-py 8.2 (Python before 3.13, a C library called by ctypes) comes with gym-super-mario-bros 7.4, nes-py 9 (Python 3.13
and up, a Cython class) with gym-super-mario-bros 9. The cartridge is the same file, byte for byte, and so are the sets of
actions. Neither package's environment is used: this file drives the emulators' own step. retro_console.py has another
emulator behind the same methods.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from abc import ABC, abstractmethod
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from actors.envs.errors import EnvError

BUTTONS = {"right": 128, "left": 64, "down": 32, "up": 16, "start": 8, "select": 4, "B": 2, "A": 1, "NOOP": 0}
ACTION_SETS = {"right": "RIGHT_ONLY", "simple": "SIMPLE_MOVEMENT", "complex": "COMPLEX_MOVEMENT"}
INSTALL = "pip install 'headrace[mario]'"


class Console(ABC):
    """One console with the cartridge in it: buttons in, frames and RAM out, one saved state."""

    @property
    @abstractmethod
    def ram(self) -> memoryview:
        """[2048], writable; its items are ints, so no uint8 arithmetic can overflow. Read it anew after any other call."""

    @property
    @abstractmethod
    def frame(self) -> np.ndarray:
        """The screen [240, 256, 4] uint8 BGRX, overwritten by every frame."""

    def draw_grey(self, rows: np.ndarray) -> None:
        """Draws the bottom of the screen into `rows` [R, 256] uint8."""
        cv2.cvtColor(self.frame[-len(rows) :], cv2.COLOR_BGRA2GRAY, dst=rows)

    @abstractmethod
    def press(self, buttons: int) -> None:
        """Holds these buttons (a sum of BUTTONS) until the next call."""

    @abstractmethod
    def advance(self, frames: int) -> None:
        """Runs the emulator. The emulator's step alone: no observation, reward or info of the frames between."""

    @abstractmethod
    def power_on(self) -> None:
        """Restarts the game at its title screen."""

    @abstractmethod
    def save(self) -> None:
        """Keeps the present state for `restore`."""

    @abstractmethod
    def restore(self) -> None:
        """Returns to the state that `save` kept, buttons released."""

    @abstractmethod
    def close(self) -> None:
        """Frees the simulator."""

    def number(self, address: int, digits: int) -> int:
        """Reads a number that the game keeps as decimal digits."""
        value = 0
        for digit in self.ram[address : address + digits]:
            value = value * 10 + digit
        return value


class NesPyConsole(Console):
    """What both generations share; `open_console` makes one of the generation that is installed."""

    def __init__(self, emulator: Any) -> None:
        """Takes the package's environment around the emulator."""
        self._emulator = emulator
        self._ram = memoryview(emulator.ram)
        self._frame = np.empty(0, np.uint8)

    @property
    def ram(self) -> memoryview:
        """The emulator's own memory."""
        return self._ram

    @property
    def frame(self) -> np.ndarray:
        """The emulator's own screen."""
        return self._frame

    def save(self) -> None:
        """Keeps the present state for `restore`."""
        self._emulator._backup()

    def restore(self) -> None:
        """Returns to the state that `save` kept, buttons released."""
        self._emulator._restore()
        self.press(0)

    def close(self) -> None:
        """Frees the emulator. `ram` and `frame` lie in its memory, so they go as well."""
        self._ram, self._frame = memoryview(b""), np.empty(0, np.uint8)
        self._emulator.close()


class Console8(NesPyConsole):
    """nes-py 8.2."""

    def __init__(self, nes_env: Any, rom: str) -> None:
        """Loads the cartridge with `nes_env`, the package's module."""
        from nes_py import _rom

        mend_rom_header(_rom.ROM)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(nes_env.NESEnv(rom))
        self._library, self._handle = nes_env._LIB, self._emulator._env
        self._buttons = self._emulator.controllers[0]
        screen = nes_env.SCREEN_TENSOR.from_address(self._library.Screen(self._handle))
        self._frame = np.frombuffer(screen, np.uint8).reshape(nes_env.SCREEN_SHAPE_32_BIT)

    def press(self, buttons: int) -> None:
        """Holds these buttons until the next call."""
        self._buttons[0] = buttons

    def advance(self, frames: int) -> None:
        """Runs the emulator."""
        step, handle = self._library.Step, self._handle
        for _ in range(frames):
            step(handle)

    def power_on(self) -> None:
        """Restarts the game at its title screen."""
        self._library.Reset(self._handle)


class Console9(NesPyConsole):
    """nes-py 9."""

    def __init__(self, nes_env: Any, rom: str) -> None:
        """Loads the cartridge with `nes_env`, the package's module."""
        super().__init__(nes_env.NESEnv(rom))
        self._native = self._emulator._env
        self._buttons = 0
        screen = self._emulator.screen[..., ::-1]  # [240, 256, 3] BGR: the package's view skips the fourth byte of each pixel
        self._frame = np.lib.stride_tricks.as_strided(screen, nes_env.SCREEN_SHAPE_32_BIT, (*screen.strides[:2], 1))

    def press(self, buttons: int) -> None:
        """Holds these buttons until the next call."""
        self._buttons = buttons

    def advance(self, frames: int) -> None:
        """Runs the emulator."""
        advance, buttons = self._native.frame_advance, self._buttons
        for _ in range(frames):
            advance(buttons)

    def power_on(self) -> None:
        """Restarts the game at its title screen."""
        self._native.reset()


GENERATIONS = {8: Console8, 9: Console9}


def open_console() -> NesPyConsole:
    """Loads the cartridge into the emulator that is installed. Raises EnvError where that is none of GENERATIONS."""
    nes_env, rom = _import_emulator()
    version = metadata.version("nes-py")
    make = GENERATIONS.get(int(version.split(".")[0]))
    if make is None:
        raise EnvError(f"mario needs nes-py 8.2 (Python before 3.13) or 9 (from 3.13), not {version}: {INSTALL}")
    return make(nes_env, rom)


def presses(name: str) -> list[int]:
    """The buttons of each action of a set, as bytes. Raises EnvError for a set that there is not."""
    if name not in ACTION_SETS:
        raise EnvError(f"env.actions {name!r}: mario has {', '.join(ACTION_SETS)}")
    _import_emulator()
    from gym_super_mario_bros import actions

    return [sum(BUTTONS[button] for button in combination) for combination in getattr(actions, ACTION_SETS[name])]


def cartridge() -> str:
    """The path of the game, which gym-super-mario-bros brings. Raises EnvError where that is not installed."""
    return _import_emulator()[1]


def _import_emulator() -> tuple[Any, str]:
    """Gives the emulator's module and the cartridge's path, both packages imported quietly."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # old gym greets with a notice
            warnings.simplefilter("ignore")
            import gym_super_mario_bros
            from nes_py import nes_env
    except ImportError as error:
        raise EnvError(f"mario needs nes-py and gym-super-mario-bros ({error}): {INSTALL}") from error
    return nes_env, str(Path(gym_super_mario_bros.__file__).parent / "_roms" / "super-mario-bros.nes")


def mend_rom_header(rom: Any) -> None:
    """Makes the sizes of nes-py 8's ROM plain ints: its uint8 * 1024 raises OverflowError under numpy 2."""
    rom.prg_rom_size = property(lambda self: 16 * int(self.header[4]))
    rom.chr_rom_size = property(lambda self: 8 * int(self.header[5]))
