"""Draws an episode that is played again: the environment's pictures while it is exact, then what the log holds."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import gymnasium
import numpy as np

from actors.datasets.runs import LoggedEpisode
from actors.drawing import as_colours
from actors.errors import EnvError, in_one_line
from actors.evaluation.repeat.playback_env import Departure
from actors.evaluation.video.film import picture_of
from actors.evaluation.video.overlay import GREY, GROUND, WHITE, Overlay
from transport.experience import Columns, ExperienceSpec, bounded

SIDE = 320  # pixels of a picture of the log, where there is none of the environment
MOST_ENTRIES = 32  # of a vector


class EpisodeRenderer:
    """Call `show` before each step of the episode, and after the last."""

    def __init__(
        self,
        show: Callable[[np.ndarray], None],
        episode: LoggedEpisode,
        spec: ExperienceSpec,
        env: gymnasium.Env | None,
        overlay: Overlay,
        repeats: int,
        say: Callable[[str], None],
    ) -> None:
        """`env`: None where it has no pictures. The last picture is shown `repeats` more times. `say` prints a line."""
        self._show, self._episode, self._spec, self._env = show, episode, spec, env
        self._overlay, self._repeats, self._say = overlay, repeats, say
        self._actions = bounded(spec, episode.rows["action"])
        self._vectors = {field.name: _range(episode.rows[field.name]) for field in spec.visible if not field.is_image}
        self._size: tuple[int, int] | None = None  # of all pictures: a film has one
        overlay.begin()

    def show(self, step: int, departure: Departure | None) -> None:
        """The picture after `step` actions."""
        rows, overlay = self._episode.rows, self._overlay
        if step:
            overlay.add(float(rows["reward"][step - 1]))
        picture = self._of_the_environment() if departure is None else None
        if picture is None:
            picture = self._of_the_log(step)
        if departure:
            overlay.title = f"the log, departed at step {departure.step:,}"
        self._size = self._size or picture.shape[:2]
        over = step == len(self._actions)
        if not over:
            overlay.choose(self._actions[step], None)
        frame = overlay.beside(fitted(picture, self._size), over)
        for _ in range(1 + self._repeats * over):
            self._show(frame)

    def _of_the_environment(self) -> np.ndarray | None:
        if self._env is None:
            return None
        try:
            return picture_of(self._env)
        except (EnvError, ImportError, gymnasium.error.Error) as error:
            self._say(f"the environment cannot be drawn, so this is what it observed: {in_one_line(error)}")
            self._env = None
            return None

    def _of_the_log(self, step: int) -> np.ndarray:
        over = step == len(self._actions)
        rows, row = (self._episode.last, 0) if over else (self._episode.rows, step)
        image = next((field for field in self._spec.visible if field.is_image), None)
        if image is None:
            return self._bars(rows, row)
        values = as_colours(rows[image.name][row])
        return values if values.ndim == 3 else np.repeat(values[:, :, None], 3, 2)

    def _bars(self, rows: Columns, row: int) -> np.ndarray:
        """Entries of the vectors as bars between the least and the greatest value of the episode."""
        picture = np.full((SIDE, SIDE, 3), GROUND, np.uint8)
        shares = [
            (rows[name][row].reshape(-1).astype(np.float64) - low) / np.where(high > low, high - low, 1.0)
            for name, (low, high) in self._vectors.items()
        ]
        entries = np.concatenate(shares)[:MOST_ENTRIES].clip(0, 1)
        high = SIDE / len(entries)
        for place, share in enumerate(entries.tolist()):
            top, bottom = round(place * high), max(round((place + 1) * high) - 2, round(place * high))
            cv2.rectangle(picture, (0, top), (SIDE - 1, bottom), (40, 43, 49), cv2.FILLED)
            cv2.rectangle(picture, (0, top), (round(share * (SIDE - 1)), bottom), GREY if share < 1 else WHITE, cv2.FILLED)
        return picture


def _range(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    flat = values.reshape(len(values), -1).astype(np.float64)
    return flat.min(0), flat.max(0)


def fitted(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The picture [H, W, 3] in the middle of one of `size` (height, width), its proportions kept."""
    if picture.shape[:2] == size:
        return picture
    factor = min(size[0] / picture.shape[0], size[1] / picture.shape[1])
    height, width = (max(round(side * factor), 1) for side in picture.shape[:2])
    whole = np.zeros((*size, 3), np.uint8)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    scaled = cv2.resize(np.ascontiguousarray(picture), (width, height), interpolation=cv2.INTER_NEAREST)
    whole[top : top + height, left : left + width] = scaled
    return whole
