"""A NES with Super Mario Bros.: the interface that MarioEnv uses, and its implementation for two major versions of nes-py.

nes-py 8.2 (Python before 3.13, a C library called through ctypes) comes with gym-super-mario-bros 7.4; nes-py 9 (Python 3.13
and up, a Cython class) comes with gym-super-mario-bros 9. Both bring the same cartridge, byte for byte, and the same sets of
actions. The packages' own environments are not used; this file calls the emulators directly. native_console.py and
retro_console.py implement the same interface with other emulators.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from actors.errors import EnvError
from learner.devices import installing

BUTTONS = {"right": 128, "left": 64, "down": 32, "up": 16, "start": 8, "select": 4, "B": 2, "A": 1, "NOOP": 0}
HEIGHT, WIDTH = 240, 256
RAM_BYTES = 2048
# nes-py's colours (RGB) by their index in the NES palette: 16 hues at four levels of brightness.
PALETTE = np.array(
    [int(colour, 16) for colour in (
        "7c7c7c 0000fc 0000bc 4428bc 940084 a80020 a81000 881400 503000 007800 006800 005800 004058 000000 000000 000000 "
        "bcbcbc 0078f8 0058f8 6844fc d800cc e40058 f83800 e45c10 ac7c00 00b800 00a800 00a844 008888 000000 000000 000000 "
        "f8f8f8 3cbcfc 6888fc 9878f8 f878f8 f85898 f87858 fca044 f8b800 b8f818 58d854 58f898 00e8d8 787878 000000 000000 "
        "fcfcfc a4e4fc b8b8f8 d8b8f8 f8b8f8 f8a4c0 f0d0b0 fce0a8 f8d878 d8f878 b8f8b8 b8f8d8 00fcfc f8d8f8 000000 000000"
    ).split()],
    np.uint32,
)  # fmt: skip
CONTRAST = np.array([[0.0, 0.3, 0.7, 0.0]], np.float32)  # weights of blue, green, red and the byte that is not used
ACTION_SETS = {"right": "RIGHT_ONLY", "simple": "SIMPLE_MOVEMENT", "complex": "COMPLEX_MOVEMENT"}
ON_WINDOWS = (
    "for Windows there is nes-py for Python 3.13 and later alone; install Headrace for that Python, or give the actors one that "
    "has it: --deploy.actor-python"
)


Grey = Callable[[np.ndarray, np.ndarray], object]  # writes the greys of BGRX [R, W, 4] uint8 into [R, W] uint8


def luma(frame: np.ndarray, rows: np.ndarray) -> None:
    """How bright a person finds a colour. Goombas are nearly as bright as the hills behind them, and Mario as the sky."""
    cv2.cvtColor(frame, cv2.COLOR_BGRA2GRAY, dst=rows)


def contrast(frame: np.ndarray, rows: np.ndarray) -> None:
    """Mostly red: Mario, his enemies and the ground are bright, hills and pipes dark, the sky is between them."""
    cv2.transform(frame, CONTRAST, dst=rows)


def grey_table(grey: Grey, colours: np.ndarray) -> np.ndarray:
    """The grey of each of 256 `colours`, BGRX as one uint32."""
    table = np.empty((1, 256), np.uint8)
    grey(colours.view(np.uint8).reshape(1, 256, 4), table)
    return table[0]


class Console(ABC):
    """One console with the cartridge: takes buttons, gives frames and RAM, and saves states."""

    keeps_states = False  # whether each result of save() can be restored, or only that of the last call

    @property
    @abstractmethod
    def ram(self) -> memoryview:
        """[2048], writable. Its items are ints, so arithmetic does not overflow as with uint8. Not valid after other calls."""

    @property
    @abstractmethod
    def frame(self) -> np.ndarray:
        """The screen [240, 256, 4] uint8 BGRX. Every frame overwrites it."""

    def draw_grey(self, rows: np.ndarray, grey: Grey) -> None:
        """Writes the bottom R rows of the screen in grey into `rows` [R, 256] uint8."""
        grey(self.frame[-len(rows) :], rows)

    @abstractmethod
    def press(self, buttons: int) -> None:
        """Holds these buttons (a sum of BUTTONS) until the next call."""

    @abstractmethod
    def advance(self, frames: int) -> None:
        """Runs the emulator for that many frames."""

    @abstractmethod
    def power_on(self) -> None:
        """Restarts the game at its title screen."""

    @abstractmethod
    def save(self) -> bytes:
        """The current state, for `restore`."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Returns to a saved state, with all buttons released."""

    @abstractmethod
    def close(self) -> None:
        """Frees the emulator."""

    def number(self, address: int, digits: int) -> int:
        """Reads a number that the game stores as decimal digits, one per byte."""
        value = 0
        for digit in self.ram[address : address + digits]:
            value = value * 10 + digit
        return value


class NesPyConsole(Console):
    """The parts that both versions of nes-py share. `open_console` makes the console of the installed version."""

    def __init__(self, emulator: Any) -> None:
        """`emulator` is the package's NESEnv."""
        self._emulator = emulator
        self._ram = memoryview(emulator.ram)
        self._frame = np.empty(0, np.uint8)

    @property
    def ram(self) -> memoryview:
        return self._ram

    @property
    def frame(self) -> np.ndarray:
        return self._frame

    def save(self) -> bytes:
        self._emulator._backup()
        return b""  # the emulator keeps it

    def restore(self, state: bytes) -> None:
        self._emulator._restore()
        self.press(0)

    def close(self) -> None:
        """Frees the emulator, and with it the memory of `ram` and `frame`."""
        self._ram, self._frame = memoryview(b""), np.empty(0, np.uint8)
        self._emulator.close()


class Console8(NesPyConsole):
    """nes-py 8.2."""

    def __init__(self, nes_env: Any, rom: str) -> None:
        """`nes_env` is the package's module, `rom` the path of the cartridge."""
        from nes_py import _rom

        patch_rom_header(_rom.ROM)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(nes_env.NESEnv(rom))
        self._library, self._handle = nes_env._LIB, self._emulator._env
        self._buttons = self._emulator.controllers[0]
        screen = nes_env.SCREEN_TENSOR.from_address(self._library.Screen(self._handle))
        self._frame = np.frombuffer(screen, np.uint8).reshape(nes_env.SCREEN_SHAPE_32_BIT)

    def press(self, buttons: int) -> None:
        self._buttons[0] = buttons

    def advance(self, frames: int) -> None:
        step, handle = self._library.Step, self._handle
        for _ in range(frames):
            step(handle)

    def power_on(self) -> None:
        self._library.Reset(self._handle)


class Console9(NesPyConsole):
    """nes-py 9."""

    def __init__(self, nes_env: Any, rom: str) -> None:
        """`nes_env` is the package's module, `rom` the path of the cartridge."""
        super().__init__(nes_env.NESEnv(rom))
        self._native = self._emulator._env
        self._buttons = 0
        screen = self._emulator.screen[..., ::-1]  # [240, 256, 3] BGR: the package's view skips the fourth byte of each pixel
        self._frame = np.lib.stride_tricks.as_strided(screen, nes_env.SCREEN_SHAPE_32_BIT, (*screen.strides[:2], 1))

    def press(self, buttons: int) -> None:
        self._buttons = buttons

    def advance(self, frames: int) -> None:
        advance, buttons = self._native.frame_advance, self._buttons
        for _ in range(frames):
            advance(buttons)

    def power_on(self) -> None:
        self._native.reset()


VERSIONS = {8: Console8, 9: Console9}  # by nes-py's major version


def open_console() -> NesPyConsole:
    """A console on the installed nes-py. Raises EnvError if it is missing, or its version is not in VERSIONS."""
    nes_env, rom = _import_emulator()
    version = metadata.version("nes-py")
    make = VERSIONS.get(int(version.split(".")[0]))
    if make is None:
        raise EnvError(
            f"mario needs nes-py 8.2 (Python before 3.13) or 9 (from 3.13), not {version}: {installing.headrace('mario')}"
        )
    return make(nes_env, rom)


def presses(name: str) -> list[int]:
    """The buttons of each action of a set, as sums of BUTTONS. Raises EnvError for an unknown set."""
    if name not in ACTION_SETS:
        raise EnvError(f"env.actions {name!r}: mario has {', '.join(ACTION_SETS)}")
    _import_emulator()
    from gym_super_mario_bros import actions

    return [sum(BUTTONS[button] for button in combination) for combination in getattr(actions, ACTION_SETS[name])]


def cartridge() -> str:
    """The path of the cartridge, which is part of gym-super-mario-bros. Raises EnvError if that is not installed."""
    return _import_emulator()[1]


def _import_emulator() -> tuple[Any, str]:
    """Imports both packages without their notices. Gives nes-py's module and the cartridge's path."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # old gym prints a notice when it is imported
            warnings.simplefilter("ignore")
            import gym_super_mario_bros
            from nes_py import nes_env
    except ImportError as error:
        way = ON_WINDOWS if sys.platform == "win32" and sys.version_info < (3, 13) else installing.headrace("mario")
        raise EnvError(f"mario needs nes-py and gym-super-mario-bros ({error}): {way}") from error
    return nes_env, str(Path(gym_super_mario_bros.__file__).parent / "_roms" / "super-mario-bros.nes")


def patch_rom_header(rom: Any) -> None:
    """Makes nes-py 8 work with numpy 2: its ROM multiplies a uint8 by 1024, which raises OverflowError there."""
    rom.prg_rom_size = property(lambda self: 16 * int(self.header[4]))
    rom.chr_rom_size = property(lambda self: 8 * int(self.header[5]))
