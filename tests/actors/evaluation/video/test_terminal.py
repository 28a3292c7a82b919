"""Pictures in a terminal."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

from actors.evaluation.video.terminal import UPPER, Terminal, can_show, draw

COLOUR = re.compile(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("height", "width", "columns", "lines"), [(48, 64, 40, 30), (100, 20, 80, 10), (8, 8, 80, 24), (1, 300, 80, 24)]
)
def test_a_picture_fits_and_keeps_its_proportions(height: int, width: int, columns: int, lines: int) -> None:
    found = draw(np.zeros((height, width, 3), np.uint8), columns, lines).split("\n")
    widths = {line.count(UPPER) for line in found}
    assert len(found) <= lines and widths and max(widths) <= columns and len(widths) == 1
    assert max(widths) == columns or len(found) == lines
    if min(height, width) > 4:
        assert max(widths) / (2 * len(found)) == pytest.approx(width / height, rel=0.15)


def test_a_character_has_the_colours_of_two_pixels() -> None:
    picture = np.zeros((4, 2, 3), np.uint8)
    picture[0, 0], picture[1, 0], picture[0, 1] = (255, 0, 0), (0, 0, 255), (0, 9, 0)
    first, _ = draw(picture, 2, 2).split("\n")
    assert COLOUR.findall(first) == [("255", "0", "0", "0", "0", "255"), ("0", "9", "0", "0", "0", "0")]


def test_the_cursor_comes_back_and_pictures_that_come_too_fast_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    shown = Terminal(screen, 1e9)
    for _ in range(1_000):
        shown.show(np.zeros((4, 4, 3), np.uint8))
    shown.close()
    assert screen.getvalue().endswith("\x1b[?25h\n") and 1 <= screen.getvalue().count("\x1b[H") < 100
    monkeypatch.setenv("TERM", "xterm")
    assert can_show(screen) and not can_show(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not can_show(screen)
