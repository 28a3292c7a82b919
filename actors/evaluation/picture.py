"""Draws what an agent sees: the stacks that an actor acts on, at a few moments of a random episode."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from actors.config import EnvConfig
from actors.envs.make import make_env
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from actors.stack import Stack
from transport.experience import Categorical, Continuous, ExperienceSpec, Field

MOST_STEPS = 100  # of the episode that is drawn for `headrace envs --check`
MOMENTS = 5  # rows of the picture of an image
TILE_PIXELS = 168  # height of one frame as drawn
MARGIN, LINE = 14, 20
INK, FAINT, PAPER = (30, 30, 30), (120, 120, 120), (255, 255, 255)
MAX_ENTRIES = 24  # of a vector that are drawn
MAX_COLUMNS = 120  # steps of a heat map
CELL_WIDTH, CELL_HEIGHT = 12, 20
LABEL_WIDTH = 250


class _Moment(NamedTuple):
    """One step as the agent lived it: what it saw, did and got."""

    step: int
    stacked: dict[str, np.ndarray]  # [stack, *shape] by field name, values
    action: np.ndarray
    reward: float
    ended: str  # "", "terminated" or "truncated"


def show(config: EnvConfig, path: Path | None = None) -> None:
    """Prints what a workload says of itself (it has `figures()`), and writes a PNG: its own (`map()`), or what an agent sees.

    Raises EnvError, or OSError for `path`.
    """
    env = make_env(config)
    own = env.unwrapped
    for line in own.figures() if hasattr(own, "figures") else []:
        print(line, flush=True)
    if path is not None and hasattr(own, "map"):
        _write_png(path, own.map()[:, :, ::-1])
        print(f"the workspace: {path}", flush=True)
    env.close()
    if path is not None and not hasattr(own, "map"):
        draw(config, path, MOST_STEPS)
        print(f"what the agent sees: {path}", flush=True)


def draw(config: EnvConfig, path: Path, steps: int) -> None:
    """Takes `steps` random steps in one environment and writes a PNG of them. Raises EnvError, or OSError for `path`."""
    env = make_env(config)
    spec = experience_spec(env, config, n_step=1, codec="none")
    env.close()
    moments = _live(config, spec, max(steps, 1))
    heading = f"{config.id}: what the agent sees, {len(moments)} random steps, {_describe(spec)}"
    parts = [_text(heading, 0.55, INK)]
    for field in spec.fields:
        parts.append(_images(field, moments) if _is_image(field) else _vectors(field, moments))
    parts.append(_deeds(moments))
    picture = _column(parts)
    picture = cv2.copyMakeBorder(picture, MARGIN, MARGIN, MARGIN, MARGIN, cv2.BORDER_CONSTANT, value=PAPER)
    _write_png(path, picture)


def _write_png(path: Path, picture: np.ndarray) -> None:
    written, png = cv2.imencode(".png", picture)  # blue, green, red
    assert written
    path.write_bytes(png.tobytes())


def _describe(spec: ExperienceSpec) -> str:
    return "one observation at a time" if spec.stack == 1 else f"{spec.stack} observations stacked, oldest left, newest right"


def _live(config: EnvConfig, spec: ExperienceSpec, steps: int) -> list[_Moment]:
    """Steps one environment at random through the same stack that actors use."""
    random = np.random.default_rng(0)
    env, stack = VectorEnv(config, spec, 1, [0]), Stack(spec, 1)
    moments = []
    try:
        stack.reset(env.reset())
        for step in range(steps):
            action = _random_action(spec, random)
            seen = {field.name: field.decode(stack.stacked[field.name][0]) for field in spec.fields}
            result = env.step(action[None])
            ended = "terminated" if result.terminated[0] else "truncated" if result.truncated[0] else ""
            moments.append(_Moment(step, seen, action, float(result.reward[0]), ended))
            stack.push(result.observation, result.terminated | result.truncated)
    finally:
        env.close()
    return moments


def _random_action(spec: ExperienceSpec, random: np.random.Generator) -> np.ndarray:
    if isinstance(spec.action, Categorical):
        return np.asarray(random.integers(spec.action.n))
    assert isinstance(spec.action, Continuous)
    return random.uniform(spec.action.low, spec.action.high).astype(np.float32)


def _is_image(field: Field) -> bool:
    return len(field.shape) >= 2


def _images(field: Field, moments: list[_Moment]) -> np.ndarray:
    """A row of frames per moment, oldest to newest, with a caption above."""
    chosen = sorted({round(i * (len(moments) - 1) / (MOMENTS - 1)) for i in range(MOMENTS)})
    parts = [_text(f"{field.name}  {'x'.join(map(str, field.shape))}", 0.5, FAINT)]
    for moment in (moments[i] for i in chosen):
        ended = f", {moment.ended}" if moment.ended else ""
        caption = f"step {moment.step}: sees this, takes action {_show(moment.action)}, gets reward {moment.reward:+.3f}{ended}"
        parts.append(_text(caption, 0.45, INK))
        frames = [_frame(frame) for frame in moment.stacked[field.name]]
        ages = [len(frames) - 1 - i for i in range(len(frames))]
        names = ["newest" if age == 0 else f"-{age}" for age in ages]
        parts.append(_row([_column([frame, _text(name, 0.4, FAINT)]) for frame, name in zip(frames, names, strict=True)]))
    return _column(parts)


def _frame(values: np.ndarray) -> np.ndarray:
    """One image field [H, W] or [C, H, W], values 0 to 1, as a BGR tile with a frame around it."""
    channels = values[None] if values.ndim == 2 else values
    if channels.shape[0] == 3:  # environments give red, green, blue
        picture = channels[::-1].transpose(1, 2, 0)
    else:
        picture = np.repeat(channels[-1][:, :, None], 3, axis=2)
    pixels = np.ascontiguousarray(np.clip(picture * 255, 0, 255).astype(np.uint8))
    scale = TILE_PIXELS / pixels.shape[0]
    width = max(1, round(pixels.shape[1] * scale))
    tile = cv2.resize(pixels, (width, TILE_PIXELS), interpolation=cv2.INTER_NEAREST if scale > 1 else cv2.INTER_AREA)
    return cv2.copyMakeBorder(tile, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=FAINT)


def _vectors(field: Field, moments: list[_Moment]) -> np.ndarray:
    """A heat map of the newest observation: a line per entry, a column per step, coloured over the entry's own range."""
    shown = moments[:MAX_COLUMNS]
    values = np.stack([moment.stacked[field.name][-1].reshape(-1) for moment in shown])  # [T, D]
    entries = min(values.shape[1], MAX_ENTRIES)
    cut = f", the first {entries} of {values.shape[1]} entries" if entries < values.shape[1] else ""
    parts = [_text(f"{field.name}  {values.shape[1]} entries{cut}; dark: an entry's least, bright: its greatest", 0.5, FAINT)]
    parts += [_heat_line(f"[{entry}]", values[:, entry], cv2.COLORMAP_VIRIDIS) for entry in range(entries)]
    return _column([*parts, _time_axis(shown)])


def _deeds(moments: list[_Moment]) -> np.ndarray:
    """A heat map of what was done and what came of it."""
    shown = moments[:MAX_COLUMNS]
    actions = np.stack([moment.action.reshape(-1) for moment in shown]).astype(np.float64)
    names = ["action"] if actions.shape[1] == 1 else [f"action[{entry}]" for entry in range(actions.shape[1])]
    parts = [_text("what it did, and what it got", 0.5, FAINT)]
    parts += [_heat_line(name, actions[:, i], cv2.COLORMAP_CIVIDIS) for i, name in enumerate(names[:MAX_ENTRIES])]
    parts.append(_heat_line("reward", np.array([moment.reward for moment in shown]), cv2.COLORMAP_CIVIDIS))
    return _column([*parts, _time_axis(shown)])


def _heat_line(label: str, values: np.ndarray, palette: int) -> np.ndarray:
    """One entry over time: its name and range, then a coloured cell per step."""
    low, high = float(values.min()), float(values.max())
    levels = (values - low) / (high - low) * 255 if high > low else np.full(values.shape, 128)
    colours = cv2.applyColorMap(levels.astype(np.uint8)[None], palette)
    line = np.full((CELL_HEIGHT, LABEL_WIDTH + CELL_WIDTH * len(values), 3), PAPER, np.uint8)
    cells = cv2.resize(colours, (CELL_WIDTH * len(values), CELL_HEIGHT - 2), interpolation=cv2.INTER_NEAREST)
    line[1 : 1 + cells.shape[0], LABEL_WIDTH : LABEL_WIDTH + cells.shape[1]] = cells
    _write(line, label, (0, 14), 0.42, INK)
    _write(line, f"{low:.3g} to {high:.3g}" if high > low else f"always {low:.3g}", (95, 14), 0.42, FAINT)
    return line


def _time_axis(shown: list[_Moment]) -> np.ndarray:
    """Step numbers under the cells, and a red tick where an episode ended."""
    axis = np.full((2 * LINE, LABEL_WIDTH + CELL_WIDTH * len(shown), 3), PAPER, np.uint8)
    _write(axis, "step", (0, 14), 0.42, FAINT)
    for column, moment in enumerate(shown):
        x = LABEL_WIDTH + column * CELL_WIDTH
        if column % 10 == 0:
            _write(axis, str(moment.step), (x, 14), 0.42, FAINT)
        if moment.ended:
            cv2.line(axis, (x + CELL_WIDTH - 1, 18), (x + CELL_WIDTH - 1, 34), (40, 40, 220), 2)
    if any(moment.ended for moment in shown):
        _write(axis, "red: an episode ended", (0, 32), 0.42, (40, 40, 220))
    return axis


def _show(action: np.ndarray) -> str:
    return str(int(action)) if action.ndim == 0 else "[" + " ".join(f"{x:.2f}" for x in action[:8]) + "]"


def _text(text: str, size: float, colour: tuple[int, int, int]) -> np.ndarray:
    """A line of text on a strip of its own."""
    (width, _), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, 1)
    strip = np.full((LINE + 4, width + 4, 3), PAPER, np.uint8)
    _write(strip, text, (0, 17), size, colour)
    return strip


def _write(canvas: np.ndarray, text: str, place: tuple[int, int], size: float, colour: tuple[int, int, int]) -> None:
    cv2.putText(canvas, text, place, cv2.FONT_HERSHEY_SIMPLEX, size, colour, 1, cv2.LINE_AA)


def _row(tiles: list[np.ndarray]) -> np.ndarray:
    """Tiles side by side, a little apart."""
    gap = np.full((tiles[0].shape[0], 6, 3), PAPER, np.uint8)
    spaced = [piece for tile in tiles for piece in (tile, gap)]
    return np.hstack(spaced[:-1])


def _column(parts: list[np.ndarray]) -> np.ndarray:
    """Parts one below the other, as wide as the widest."""
    width = max(part.shape[1] for part in parts)
    return np.vstack([_pad(part, width) for part in parts])


def _pad(part: np.ndarray, width: int) -> np.ndarray:
    part = part[:, :width]
    return cv2.copyMakeBorder(part, 0, 0, 0, width - part.shape[1], cv2.BORDER_CONSTANT, value=PAPER)
