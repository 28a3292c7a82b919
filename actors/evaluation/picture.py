"""Draws the observations of an agent: the stacks that an actor acts on, at a few steps of a random episode.

`python -m actors.evaluation.picture ENV [FILE.png]`, which `headrace envs --check` starts: ENV is the env section, in JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from actors.agent import Stack
from actors.config import EnvConfig
from actors.drawing import as_colours, new_figure, pixels, write_png
from actors.envs.make import leave, make_env, open_family, read_env
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from actors.errors import EnvError
from learner.algorithms.arithmetic.masks import allowed_actions, draw_allowed
from transport.experience import Categorical, Column, Columns, ExperienceSpec, MultiCategorical
from transport.files.documents import decode

MOST_STEPS = 100  # of the episode that is drawn for `headrace envs --check`
MOMENTS = 5  # steps of which the frames of an image are drawn
MAX_ENTRIES = 24  # of a vector
LINE_INCHES, WIDTH_INCHES = 0.3, 11.0
FRAMES_IN_A_ROW, LEAST_INCHES, MOST_INCHES = 5, 1.2, 2.8


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure


class _Moment(NamedTuple):
    """One step: observation, action and result."""

    step: int
    stacked: dict[str, np.ndarray]  # [stack, *shape] by field name, values
    action: np.ndarray
    reward: float
    ended: str  # "", "terminated" or "truncated"


def show(config: EnvConfig, path: Path | None = None) -> None:
    """Prints the figures of an environment's family, and writes a PNG of its map or of observations.

    Raises EnvError, or OSError for `path`.
    """
    family, env = open_family(config), make_env(config)
    for line in family.figures(env):
        print(line, flush=True)
    picture = None if path is None else family.map(env)
    env.close()
    if path is not None and picture is not None:
        write_png(path, picture)
        print(f"the workspace: {path}", flush=True)
    elif path is not None:
        draw(config, path, MOST_STEPS)
        print(f"what the agent sees: {path}", flush=True)


def draw(config: EnvConfig, path: Path, steps: int) -> None:
    """Takes `steps` random steps in one environment and writes a PNG of them. Raises EnvError, or OSError for `path`."""
    env = make_env(config)
    spec = experience_spec(env, config, codec="none")
    env.close()
    moments = _random_steps(config, spec, max(steps, 1))
    panels = [_Frames(field, moments) if _has_frames(field) else _vector_panel(field, moments) for field in spec.visible]
    panels.append(_action_panel(moments))
    figure = new_figure(max(WIDTH_INCHES, *(panel.width for panel in panels)), sum(panel.height for panel in panels) + 0.6)
    stack = "one observation at a time" if spec.stack == 1 else f"{spec.stack} observations stacked, oldest left, newest right"
    figure.suptitle(f"{config.id}: what the agent sees in {len(moments)} random steps; {stack}", fontsize=11)
    rows = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=[panel.height for panel in panels])[:, 0]
    for panel, place in zip(panels, rows, strict=True):
        panel.draw(place)
    write_png(path, pixels(figure))


def _random_steps(config: EnvConfig, spec: ExperienceSpec, steps: int) -> list[_Moment]:
    """Steps one environment at random, with the same stack that actors use."""
    random = np.random.default_rng(0)
    env, stack = VectorEnv(config, spec, 1, [0]), Stack(spec, 1)
    moments = []
    try:
        stack.reset(env.reset())
        for step in range(steps):
            action = _random_action(spec, stack.stacked, random)
            stacked = {field.name: field.decode(stack.stacked[field.name][0]) for field in spec.fields}
            result = env.step(action[None])
            ended = "terminated" if result.terminated[0] else "truncated" if result.truncated[0] else ""
            moments.append(_Moment(step, stacked, action, float(result.reward[0]), ended))
            stack.push(result.observation, result.terminated | result.truncated)
    finally:
        env.close()
    return moments


def _random_action(spec: ExperienceSpec, stacked: Columns, random: np.random.Generator) -> np.ndarray:
    if (allowed := allowed_actions(spec, stacked)) is not None:
        return draw_allowed(random, allowed)[0]  # type: ignore[no-any-return]
    if isinstance(spec.action, Categorical):
        return np.asarray(random.integers(spec.action.n))
    if isinstance(spec.action, MultiCategorical):
        return random.integers(spec.action.sizes)
    return random.uniform(spec.action.low, spec.action.high).astype(np.float32)


def _has_frames(field: Column) -> bool:
    """True if it is drawn as an image. So are images of floats, which networks read as a vector (Column.is_image)."""
    return len(field.shape) >= 2


class _Frames:
    """The stacked frames of an image field at a few moments: a row for each moment, or for several where stacks are small."""

    def __init__(self, field: Column, moments: list[_Moment]) -> None:
        chosen = sorted({round(i * (len(moments) - 1) / (MOMENTS - 1)) for i in range(MOMENTS)})
        self._field, self._moments = field, [moments[i] for i in chosen]
        self._stack = len(moments[0].stacked[field.name])
        self._in_a_row = min(max(FRAMES_IN_A_ROW // self._stack, 1), len(chosen))
        self._rows = -(-len(chosen) // self._in_a_row)
        frames = self._stack * self._in_a_row
        side = min(max(WIDTH_INCHES / frames, LEAST_INCHES), MOST_INCHES)  # of a frame
        tall = field.shape[-2] / max(field.shape[-1], 1)
        self.width = frames * side
        self.height = self._rows * (side * min(tall, 2.0) + 2 * LINE_INCHES) + LINE_INCHES

    def draw(self, place: SubFigure) -> None:
        """Draws the rows; each frame is labelled with its age in steps."""
        place.suptitle(f"{self._field.name}  {'x'.join(map(str, self._field.shape))}", fontsize=10)
        places = place.subfigures(self._rows, self._in_a_row, squeeze=False).reshape(-1)
        for moment, row in zip(self._moments, places, strict=False):
            ended = f", {moment.ended}" if moment.ended else ""
            between = "\n" if self._in_a_row > 1 else ", "
            told = f"step {moment.step}: takes action {_show(moment.action)}{between}gets reward {moment.reward:+.3f}{ended}"
            row.suptitle(told, fontsize=9)
            frames = moment.stacked[self._field.name]
            for age, (axes, frame) in enumerate(zip(row.subplots(1, self._stack, squeeze=False)[0], frames, strict=True)):
                axes.imshow(as_colours(frame).clip(0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                axes.set(xticks=[], yticks=[])
                axes.set_xlabel("newest" if age == self._stack - 1 else f"{age + 1 - self._stack}", fontsize=8)


class _Heat:
    """Entries of a vector over time: a line per entry, with colours scaled to the entry's own range."""

    def __init__(self, title: str, names: list[str], values: np.ndarray, moments: list[_Moment]) -> None:
        """`values`: [T, entries]."""
        self._title, self._names, self._values, self._moments = title, names, values, moments
        self.width, self.height = WIDTH_INCHES, len(names) * LINE_INCHES + 3 * LINE_INCHES

    def draw(self, place: SubFigure) -> None:
        """Draws the lines, and a red mark where an episode ended."""
        axes: Axes = place.subplots()
        low, high = self._values.min(0), self._values.max(0)
        span = np.where(high > low, high - low, 1.0)
        axes.imshow(((self._values - low) / span).T, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
        ranges = [f"{a:.3g} to {b:.3g}" if b > a else f"always {a:.3g}" for a, b in zip(low, high, strict=True)]
        axes.set_yticks(range(len(self._names)), [f"{n}   {r}" for n, r in zip(self._names, ranges, strict=True)], fontsize=8)
        axes.tick_params(axis="x", labelsize=8)
        ends = [moment.step for moment in self._moments if moment.ended]
        for step in ends:
            axes.axvline(step + 0.5, color="red", linewidth=2)
        axes.set_xlabel("step" + ("; red: an episode ended" if ends else ""), fontsize=8)
        axes.set_title(self._title, fontsize=10)


def _vector_panel(field: Column, moments: list[_Moment]) -> _Heat:
    values = np.stack([moment.stacked[field.name][-1].reshape(-1) for moment in moments]).astype(np.float64)  # [T, D]
    entries = min(values.shape[1], MAX_ENTRIES)
    cut = f", the first {entries}" if entries < values.shape[1] else ""
    title = f"{field.name}  {values.shape[1]} entries{cut}; dark: the least of an entry, bright: the greatest"
    return _Heat(title, [f"[{entry}]" for entry in range(entries)], values[:, :entries], moments)


def _action_panel(moments: list[_Moment]) -> _Heat:
    actions = np.stack([moment.action.reshape(-1) for moment in moments]).astype(np.float64)[:, :MAX_ENTRIES]
    names = ["action"] if actions.shape[1] == 1 else [f"action[{entry}]" for entry in range(actions.shape[1])]
    rewards = np.array([[moment.reward] for moment in moments])
    return _Heat("actions and rewards", [*names, "reward"], np.hstack([actions, rewards]), moments)


def _show(action: np.ndarray) -> str:
    return str(int(action)) if action.ndim == 0 else "[" + " ".join(f"{x:.2f}" for x in action[:8]) + "]"


def main() -> int:
    try:
        show(read_env(decode(sys.argv[1], dict)), *map(Path, sys.argv[2:]))
    except (EnvError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    leave(main)
