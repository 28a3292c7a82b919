"""A NES with Super Mario Bros. in it on stable-retro's FCEUmm core, several times as fast as nes-py.

stable-retro has one emulator per process, so all consoles of a process take turns in one Machine: whoever is asked for
something while another's game is in it has the states swapped first (13 kB, 6 microseconds).

stable-retro loads and runs the core; what it does not offer is asked of the core's own libretro interface
(https://docs.libretro.com/development/cores/developing-cores/): RAM that can be written to, the whole picture of 256x240
where the core would cut its edges off, and colours by their number in the NES's palette instead of as RGB. The numbers
are given nes-py's colours here, so that an observation does not tell which emulator it is from.

The game reads the buttons and then works out a frame. A frame of nes-py ends between the two, a frame of this core before
both; so that they play alike, what is pressed here takes effect one frame later. When the music begins several notes at
once, in about one frame of a thousand, the game reads the buttons so late that nes-py's frame ends before it: what changes
just then takes effect one frame earlier there, and from that moment the two games differ. With the music off they are equal.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from actors.envs.errors import EnvError
from actors.envs.mario.console import BUTTONS, Console, cartridge

INSTALL = "pip install 'headrace[retro]' (Python 3.11 or 3.12; Linux on x86-64, macOS on arm64), or --env.backend nes_py"
HEIGHT, WIDTH = 240, 256
RAM_BYTES = 2048
OPTIONS = {b"fceumm_overscan": b"disabled", b"fceumm_palette": b"raw"}  # the whole picture, colours by number

# libretro.h
SYSTEM_RAM = 2
GET_VARIABLE, GET_VARIABLE_UPDATE = 15, 17
JOYPAD = {"B": 0, "select": 2, "start": 3, "up": 4, "down": 5, "left": 6, "right": 7, "A": 8}
ENVIRONMENT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_uint, ctypes.c_void_p)
VIDEO_REFRESH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_size_t)

# The colours of nes-py's pictures, RGB, by their number in the NES's palette: 16 hues in four degrees of brightness.
PALETTE = np.array(
    [int(colour, 16) for colour in (
        "7c7c7c 0000fc 0000bc 4428bc 940084 a80020 a81000 881400 503000 007800 006800 005800 004058 000000 000000 000000 "
        "bcbcbc 0078f8 0058f8 6844fc d800cc e40058 f83800 e45c10 ac7c00 00b800 00a800 00a844 008888 000000 000000 000000 "
        "f8f8f8 3cbcfc 6888fc 9878f8 f878f8 f85898 f87858 fca044 f8b800 b8f818 58d854 58f898 00e8d8 787878 000000 000000 "
        "fcfcfc a4e4fc b8b8f8 d8b8f8 f8b8f8 f8a4c0 f0d0b0 fce0a8 f8d878 d8f878 b8f8b8 b8f8d8 00fcfc f8d8f8 000000 000000"
    ).split()],
    np.uint32,
)  # fmt: skip


class Variable(ctypes.Structure):
    """libretro's retro_variable: an option of the core that it asks for."""

    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


def raw_colours() -> np.ndarray:
    """A pixel's upper byte -> BGRX as one little-endian uint32, [256].

    The core's palette `raw` puts a colour's hue into red and its brightness into green, spread over 0 to 255, and its
    pixels are RGB565: the upper byte holds five bits of red and three of green, enough to tell all 64 apart.
    """
    number = np.arange(64)
    red, green = (number & 15) * 17 >> 3, (number >> 4) * 85 >> 5
    table = np.zeros(256, "<u4")
    table[red << 3 | green] = PALETTE
    return table


class Machine:
    """The emulator of this process. `holder` is the console whose game is in it."""

    def __init__(self) -> None:
        """Loads the cartridge. Raises EnvError where stable-retro is missing or cannot."""
        retro = _import_retro()
        try:
            self.emulator = retro.RetroEmulator(cartridge())
        except RuntimeError as error:  # another library of this process has the one emulator
            raise EnvError(f"mario on retro: {error}") from error
        core = next(Path(retro.get_core_path("Nes")).parent.glob("fceumm_libretro.*"))
        library = ctypes.CDLL(str(core))  # the one that is loaded already
        library.retro_get_memory_data.restype = ctypes.c_void_p
        memory = (ctypes.c_uint8 * RAM_BYTES).from_address(library.retro_get_memory_data(SYSTEM_RAM))
        self.ram = memoryview(memory).cast("B")
        self.pixels = np.zeros((HEIGHT, WIDTH, 2), np.uint8)  # RGB565, in the core's memory
        self.holder: RetroConsole | None = None
        self.boot = self.emulator.get_state()
        self._address = 0
        self._options_taken = False
        self._callbacks = (ENVIRONMENT(self._answer), VIDEO_REFRESH(self._show))  # as long as the core lives
        library.retro_set_environment(self._callbacks[0])
        library.retro_set_video_refresh(self._callbacks[1])
        self.emulator.step()
        if not self._address:
            raise EnvError(
                f"mario on retro: stable-retro's {core.name} draws no picture of {WIDTH}x{HEIGHT} in RGB565; {INSTALL}"
            )

    def hand_to(self, console: RetroConsole) -> None:
        """Puts another console's game into the emulator."""
        if self.holder is not None:
            self.holder.leave()
        self.holder = console

    def _answer(self, command: int, data: int) -> bool:
        """What the core asks of its surroundings: only its options are answered, once."""
        if command == GET_VARIABLE_UPDATE and not self._options_taken:
            self._options_taken = True
            ctypes.c_bool.from_address(data).value = True
            return True
        if command == GET_VARIABLE:
            variable = Variable.from_address(data)
            if variable.key in OPTIONS:
                variable.value = OPTIONS[variable.key]
                return True
        return False

    def _show(self, data: int | None, width: int, height: int, pitch: int) -> None:
        """Notes where the core draws, `pitch` bytes a row. It is the same place for every frame."""
        if data and data != self._address and (width, height, pitch) == (WIDTH, HEIGHT, 2 * WIDTH):
            picture = (ctypes.c_uint8 * (height * pitch)).from_address(data)
            self.pixels = np.frombuffer(memoryview(picture), np.uint8).reshape(height, width, 2)
            self._address = data


class RetroConsole(Console):
    """One of the consoles that share the machine."""

    def __init__(self, machine: Machine) -> None:
        """Starts at power-on."""
        self._machine, self._emulator = machine, machine.emulator
        self._state: bytes = machine.boot  # while another console's game is in the machine
        self._buttons = self._held = 0  # wanted, and what the emulator has
        self._picture = np.zeros((HEIGHT, WIDTH), np.uint8)  # upper bytes of pixels
        self._drawn = False  # whether the machine has a newer picture
        self._saved = (self._state, self._picture.copy())

    @property
    def ram(self) -> memoryview:
        """The machine's memory, with this console's game in it until another console is used."""
        self._enter()
        return self._machine.ram

    @property
    def frame(self) -> np.ndarray:
        """The screen, coloured when it is asked for: most frames of a step are never looked at."""
        self._keep_picture()
        return _colours()[self._picture].view(np.uint8).reshape(HEIGHT, WIDTH, 4)

    def draw_grey(self, rows: np.ndarray) -> None:
        """Draws the bottom of the screen into `rows` [R, 256] uint8, each colour as grey as it would be by way of `frame`."""
        self._keep_picture()
        cv2.LUT(self._picture[-len(rows) :], _greys(), dst=rows)

    def press(self, buttons: int) -> None:
        """Holds these buttons until the next call, from the frame after the next on."""
        self._buttons = buttons

    def advance(self, frames: int) -> None:
        """Runs the emulator; the first frame is still played with the buttons of before."""
        self._enter()
        step = self._emulator.step
        for _ in range(frames):
            step()
            self._drawn = True
            if self._held != self._buttons:
                self._hold(self._buttons)

    def power_on(self) -> None:
        """Restarts the game at its title screen."""
        self._enter()
        self._emulator.set_state(self._machine.boot)

    def save(self) -> None:
        """Keeps the present state for `restore`."""
        self._enter()
        self._keep_picture()
        self._saved = (self._emulator.get_state(), self._picture.copy())

    def restore(self) -> None:
        """Returns to the state that `save` kept, buttons released."""
        self._enter()
        self._emulator.set_state(self._saved[0])
        np.copyto(self._picture, self._saved[1])
        self._drawn = False
        self.press(0)
        self._hold(0)

    def close(self) -> None:
        """Leaves the machine to the others."""
        if self._machine.holder is self:
            self._machine.holder = None

    def leave(self) -> None:
        """Takes the game out of the machine."""
        self._keep_picture()
        self._state = self._emulator.get_state()

    def _enter(self) -> None:
        """Puts the game into the machine, unless it is there."""
        if self._machine.holder is not self:
            self._machine.hand_to(self)
            self._emulator.set_state(self._state)
            self._hold(self._held)

    def _hold(self, buttons: int) -> None:
        self._held = buttons
        self._emulator.set_button_mask(_joypad(buttons))

    def _keep_picture(self) -> None:
        """Copies what is of use of the picture that the machine has drawn last."""
        if self._drawn:
            cv2.extractChannel(self._machine.pixels, 1, dst=self._picture)
            self._drawn = False


def open_retro() -> RetroConsole:
    """Gives a console on the emulator of this process. Raises EnvError where stable-retro is missing or cannot."""
    return RetroConsole(_machine())


@cache
def _machine() -> Machine:
    return Machine()


@cache
def _colours() -> np.ndarray:
    return raw_colours()


@cache
def _greys() -> np.ndarray:
    return cv2.cvtColor(_colours().view(np.uint8).reshape(1, 256, 4), cv2.COLOR_BGRA2GRAY)[0]


@cache
def _joypad(buttons: int) -> np.ndarray:
    """A sum of BUTTONS as libretro's row of buttons, [9] uint8."""
    row = np.zeros(len(JOYPAD) + 1, np.uint8)
    for name, place in JOYPAD.items():
        row[place] = bool(buttons & BUTTONS[name])
    return row


def _import_retro() -> Any:
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its notices are not for a run's log
            import stable_retro
    except ImportError as error:
        raise EnvError(f"mario on retro needs stable-retro ({error}): {INSTALL}") from error
    return stable_retro
