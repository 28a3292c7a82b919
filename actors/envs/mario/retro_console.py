"""A NES with Super Mario Bros. on stable-retro's FCEUmm core, several times as fast as nes-py.

stable-retro has one emulator per process, which all consoles of the process share (SharedEmulator). When a console is used
whose game is not in the emulator, the states are swapped first (13 kB, 6 microseconds).

stable-retro loads and runs the core. Three things come from the core's own libretro interface
(https://docs.libretro.com/development/cores/developing-cores/): writable RAM, the whole picture of 256x240 (by default the core
crops it), and colours as indices of the NES palette instead of RGB. This file maps the indices to nes-py's colours, so that
both emulators give the same observations.

Timing: the game reads the buttons and then computes a frame. nes-py's frame ends between the two, this core's frame before both.
So that both emulators play the same game, buttons take effect one frame later here. In about one frame of a thousand, when the
music begins several notes at once, the game reads the buttons so late that nes-py's frame ends before: a button that changes at
that frame takes effect one frame earlier in nes-py, and the two games differ from then on. With the music off they are equal.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from actors.envs.mario.console import BUTTONS, HEIGHT, PALETTE, RAM_BYTES, WIDTH, Console, Grey, cartridge, grey_table
from actors.errors import EnvError
from learner.devices import installing

WHERE = "(Python 3.11 or 3.12; Linux on x86-64, macOS on arm64), or --env.backend nes_py"
OPTIONS = {b"fceumm_overscan": b"disabled", b"fceumm_palette": b"raw"}  # the whole picture; colours as indices

# libretro.h
SYSTEM_RAM = 2
GET_VARIABLE, GET_VARIABLE_UPDATE = 15, 17
JOYPAD = {"B": 0, "select": 2, "start": 3, "up": 4, "down": 5, "left": 6, "right": 7, "A": 8}
ENVIRONMENT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_uint, ctypes.c_void_p)
VIDEO_REFRESH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_size_t)


class Variable(ctypes.Structure):
    """libretro's retro_variable: an option, with which the core asks for its value."""

    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


def raw_colours() -> np.ndarray:
    """A table [256] from the upper byte of a pixel to BGRX as one little-endian uint32.

    The core's palette `raw` stores the hue in red and the brightness in green, scaled to 0 to 255, and its pixels are RGB565:
    the upper byte has five bits of red and three of green, enough to distinguish all 64 colours.
    """
    number = np.arange(64)
    red, green = (number & 15) * 17 >> 3, (number >> 4) * 85 >> 5
    table = np.zeros(256, "<u4")
    table[red << 3 | green] = PALETTE
    return table


class SharedEmulator:
    """The emulator of this process. `current` is the console whose game is loaded."""

    def __init__(self) -> None:
        """Loads the cartridge. Raises EnvError if stable-retro is missing or its emulator is in use."""
        retro = _import_retro()
        try:
            self.emulator = retro.RetroEmulator(cartridge())
        except RuntimeError as error:  # other code of this process uses the emulator
            raise EnvError(f"mario on retro: {error}") from error
        core = next(Path(retro.get_core_path("Nes")).parent.glob("fceumm_libretro.*"))
        library = ctypes.CDLL(str(core))  # already loaded by stable-retro
        library.retro_get_memory_data.restype = ctypes.c_void_p
        memory = (ctypes.c_uint8 * RAM_BYTES).from_address(library.retro_get_memory_data(SYSTEM_RAM))
        self.ram = memoryview(memory).cast("B")
        self.pixels = np.zeros((HEIGHT, WIDTH, 2), np.uint8)  # RGB565, in the core's memory
        self.current: RetroConsole | None = None
        self.boot = self.emulator.get_state()
        self._address = 0
        self._options_read = False
        self._callbacks = (ENVIRONMENT(self._answer), VIDEO_REFRESH(self._show))  # kept alive as long as the core
        library.retro_set_environment(self._callbacks[0])
        library.retro_set_video_refresh(self._callbacks[1])
        self.emulator.step()
        if not self._address:
            wrong = f"stable-retro's {core.name} draws no picture of {WIDTH}x{HEIGHT} in RGB565"
            raise EnvError(f"mario on retro: {wrong}; {installing.headrace('retro')} {WHERE}")

    def switch_to(self, console: RetroConsole) -> None:
        """Saves the state of the current console; `console` then loads its own."""
        if self.current is not None:
            self.current.unload()
        self.current = console

    def _answer(self, command: int, data: int) -> bool:
        """libretro's environment callback: answers the core's requests for its options, and no others."""
        if command == GET_VARIABLE_UPDATE and not self._options_read:
            self._options_read = True
            ctypes.c_bool.from_address(data).value = True
            return True
        if command == GET_VARIABLE:
            variable = Variable.from_address(data)
            if variable.key in OPTIONS:
                variable.value = OPTIONS[variable.key]
                return True
        return False

    def _show(self, data: int | None, width: int, height: int, pitch: int) -> None:
        """libretro's video callback: notes the picture's address, which is the same for every frame. `pitch`: bytes per row."""
        if data and data != self._address and (width, height, pitch) == (WIDTH, HEIGHT, 2 * WIDTH):
            picture = (ctypes.c_uint8 * (height * pitch)).from_address(data)
            self.pixels = np.frombuffer(memoryview(picture), np.uint8).reshape(height, width, 2)
            self._address = data


class RetroConsole(Console):
    """One of the consoles that share the emulator."""

    keeps_states = True

    def __init__(self, machine: SharedEmulator) -> None:
        self._machine, self._emulator = machine, machine.emulator
        self._state: bytes = machine.boot  # used while another console is current
        self._buttons = self._applied = 0  # wanted, and set in the emulator
        self._picture = np.zeros((HEIGHT, WIDTH), np.uint8)  # upper bytes of pixels
        self._drawn = False  # whether the emulator has a newer picture

    @property
    def ram(self) -> memoryview:
        """The emulator's memory, valid until another console is used."""
        self._load()
        return self._machine.ram

    @property
    def frame(self) -> np.ndarray:
        """The screen. Colours are mapped only here, because most frames of a step are never read."""
        self._copy_picture()
        return _colours()[self._picture].view(np.uint8).reshape(HEIGHT, WIDTH, 4)

    def draw_grey(self, rows: np.ndarray, grey: Grey) -> None:
        """The same grey as that of `frame`, by one table instead of two conversions."""
        self._copy_picture()
        cv2.LUT(self._picture[-len(rows) :], _greys(grey), dst=rows)

    def press(self, buttons: int) -> None:
        """Holds these buttons from the frame after the next one until the next call."""
        self._buttons = buttons

    def advance(self, frames: int) -> None:
        """Runs the emulator. The first frame still uses the previous buttons."""
        self._load()
        step = self._emulator.step
        for _ in range(frames):
            step()
            self._drawn = True
            if self._applied != self._buttons:
                self._apply(self._buttons)

    def power_on(self) -> None:
        self._load()
        self._emulator.set_state(self._machine.boot)

    def save(self) -> bytes:
        """The emulator's state, and the picture, which is not part of that."""
        self._load()
        self._copy_picture()
        state: bytes = self._emulator.get_state()
        return state + zlib.compress(self._picture.tobytes(), 1)

    def restore(self, state: bytes) -> None:
        self._load()
        size = len(self._machine.boot)
        self._emulator.set_state(state[:size])
        self._picture.data.cast("B")[:] = zlib.decompress(state[size:])
        self._drawn = False
        self.press(0)
        self._apply(0)

    def close(self) -> None:
        """Releases the emulator for the other consoles."""
        if self._machine.current is self:
            self._machine.current = None

    def unload(self) -> None:
        """Saves the game's state, because another console is about to use the emulator."""
        self._copy_picture()
        self._state = self._emulator.get_state()

    def _load(self) -> None:
        """Loads this console's game into the emulator, unless it is the current one."""
        if self._machine.current is not self:
            self._machine.switch_to(self)
            self._emulator.set_state(self._state)
            self._apply(self._applied)

    def _apply(self, buttons: int) -> None:
        self._applied = buttons
        self._emulator.set_button_mask(_joypad(buttons))

    def _copy_picture(self) -> None:
        """Copies the upper bytes of the last picture, if it has not been copied yet."""
        if self._drawn:
            cv2.extractChannel(self._machine.pixels, 1, dst=self._picture)
            self._drawn = False


def open_retro() -> RetroConsole:
    """A console on the emulator of this process. Raises EnvError if stable-retro is missing or its emulator is in use."""
    return RetroConsole(_machine())


@cache
def _machine() -> SharedEmulator:
    return SharedEmulator()


@cache
def _colours() -> np.ndarray:
    return raw_colours()


@cache
def _greys(grey: Grey) -> np.ndarray:
    return grey_table(grey, _colours())


@cache
def _joypad(buttons: int) -> np.ndarray:
    """A sum of BUTTONS as libretro's array of buttons, [9] uint8."""
    row = np.zeros(len(JOYPAD) + 1, np.uint8)
    for name, place in JOYPAD.items():
        row[place] = bool(buttons & BUTTONS[name])
    return row


def _import_retro() -> Any:
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # keep its notices out of the run's log
            import stable_retro
    except ImportError as error:
        raise EnvError(f"mario on retro needs stable-retro ({error}): {installing.headrace('retro')} {WHERE}") from error
    return stable_retro
