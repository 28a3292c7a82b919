"""A NES with Super Mario Bros. in C, several times as fast as retro's: nes.c says what it leaves out. Each console is one block
of memory, so that a process may have any number of them, and a saved state is a copy.

A frame ends where nes-py's does, after the game has read the buttons and before it computes what they do.
"""

from __future__ import annotations

import ctypes
import zlib
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from actors.compiling import load
from actors.envs.mario.console import HEIGHT, PALETTE, RAM_BYTES, WIDTH, Console, Grey, cartridge, grey_table
from actors.errors import EnvError

SOURCE = Path(__file__).with_name("nes.c")


class NativeConsole(Console):
    """One block of memory: RAM first, the picture last."""

    keeps_states = True

    def __init__(self) -> None:
        """Raises EnvError where the emulator cannot be compiled."""
        self._library = _library()
        size, picture = self._library.nes_size(), self._library.nes_picture()
        self._block = (ctypes.c_uint8 * size)()
        self._memory = memoryview(self._block).cast("B")
        self._ram, self._state = self._memory[:RAM_BYTES], self._memory[:picture]
        pixels = np.frombuffer(self._memory, np.uint8, HEIGHT * WIDTH, picture)
        self._picture = pixels.reshape(HEIGHT, WIDTH)  # colours of the NES palette
        self._buttons = 0
        self.power_on()

    @property
    def ram(self) -> memoryview:
        return self._ram

    @property
    def frame(self) -> np.ndarray:
        return _colours()[self._picture].view(np.uint8).reshape(HEIGHT, WIDTH, 4)

    def draw_grey(self, rows: np.ndarray, grey: Grey) -> None:
        cv2.LUT(self._picture[-len(rows) :], _greys(grey), dst=rows)

    def press(self, buttons: int) -> None:
        self._buttons = buttons

    def advance(self, frames: int) -> None:
        """Runs the emulator; only the last frame is drawn."""
        self._library.nes_run(self._block, frames, self._buttons)

    def power_on(self) -> None:
        self._library.nes_power_on(self._block)

    def save(self) -> bytes:
        return self._state.tobytes() + zlib.compress(self._picture.tobytes(), 1)

    def restore(self, state: bytes) -> None:
        size = len(self._state)
        self._state[:] = state[:size]
        self._picture.data.cast("B")[:] = zlib.decompress(state[size:])
        self.press(0)

    def close(self) -> None:
        """Does nothing: the memory is freed with the console."""


def can_be_used() -> bool:
    """Whether this machine has the emulator compiled, or can compile it now."""
    try:
        load(SOURCE)
    except OSError:
        return False
    return True


@cache
def _library() -> ctypes.CDLL:
    try:
        library = load(SOURCE)
    except OSError as error:
        raise EnvError(f"mario on native: {error}; --env.backend retro and nes_py need no compiler") from error
    game = Path(cartridge()).read_bytes()
    if not library.nes_insert(game, len(game)):
        raise EnvError(f"mario on native: {cartridge()} is not the cartridge that it knows")
    return library


@cache
def _colours() -> np.ndarray:
    table = np.zeros(256, "<u4")
    table[: len(PALETTE)] = PALETTE
    return table


@cache
def _greys(grey: Grey) -> np.ndarray:
    return grey_table(grey, _colours())
