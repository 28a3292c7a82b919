"""Helpers for pictures. Those by matplotlib, which is an optional package, import it only when a picture is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from actors.errors import EnvError
from learner.devices import installing
from transport.files.writing import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def as_colours(image: np.ndarray) -> np.ndarray:
    """An image [H, W] or [C, H, W] -> [H, W, 3] where it has two or three channels, otherwise its last channel [H, W]."""
    if image.ndim == 2:
        return image
    if len(image) == 2:
        image = np.concatenate([image, np.zeros_like(image[:1])])
    return np.moveaxis(image, 0, -1) if len(image) == 3 else image[-1]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without a window. Raises EnvError if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvError(f"a picture needs matplotlib, which is not installed: {installing.headrace('picture')}") from error
    return Figure(figsize=(width, height), layout="constrained")


def pixels(figure: Figure) -> np.ndarray:
    """[H, W, 3] RGB uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def write_png(path: Path, picture: np.ndarray) -> None:
    """Writes [H, W, 3] RGB uint8. Raises OSError."""
    with writing(path) as file:
        file.write(png_of(picture))


def png_of(picture: np.ndarray) -> bytes:
    """The file of [H, W, 3] RGB uint8, or of [H, W] in grey."""
    _, png = cv2.imencode(".png", picture if picture.ndim == 2 else picture[:, :, ::-1])
    return png.tobytes()
