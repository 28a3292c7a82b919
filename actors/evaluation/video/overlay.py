"""What a policy thinks of its actions, and the reward so far, drawn beside the picture of each step."""

from __future__ import annotations

from typing import Any

import cv2
import gymnasium
import numpy as np

from actors.evaluation.evaluate import PolicyPlayer
from actors.evaluation.figures import amount
from learner.algorithms.base import Explanation

LEAST_HEIGHT, PANEL_WIDTH = 320, 240  # pixels; smaller pictures are enlarged by a whole factor
MOST_BARS, LABEL_LETTERS = 18, 9
LEFT, TOP, LINE, BAR_LEFT, BAR_RIGHT = 10, 22, 18, 92, PANEL_WIDTH - 56
GROUND, GREY, WHITE, BAR, CHOSEN = (26, 28, 32), (150, 152, 158), (236, 236, 238), (86, 106, 142), (240, 150, 50)  # RGB


class Overlay:
    """Call begin() at each reset, explain() before each step, beside() for the picture that the step starts from, add() after."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._explanation: Explanation | None = None
        self._names: list[str] = []
        self._bounds = (0.0, 0.0)  # of the bars: of continuous actions, or of what has been seen of the figures in this episode
        self._space: gymnasium.Space[Any] | None = None
        self._steps, self._reward, self.total = 0, 0.0, 0.0

    def begin(self, env: gymnasium.Env) -> None:
        """An episode begins in `env`."""
        meanings = getattr(env.unwrapped, "get_action_meanings", None)
        self._names = [str(name) for name in meanings()] if callable(meanings) else []
        self._space = env.action_space
        self._explanation, self._bounds = None, (np.inf, -np.inf)
        self._steps, self._reward, self.total = 0, 0.0, 0.0

    def explain(self, explanation: Explanation | None) -> None:
        """What the policy thinks at the next step; figures [1, n]."""
        self._explanation = explanation

    def add(self, reward: float) -> None:
        self._steps, self._reward, self.total = self._steps + 1, reward, self.total + reward

    def beside(self, frame: np.ndarray, action: Any) -> np.ndarray:
        """The frame [H, W, 3], enlarged where it is small, with the panel at its right. `action` None: the episode is over."""
        factor = max(-(-LEAST_HEIGHT // frame.shape[0]), 1)
        frame = frame.repeat(factor, 0).repeat(factor, 1)
        panel = np.full((frame.shape[0], PANEL_WIDTH, 3), GROUND, np.uint8)
        write(panel, self.title, 0, WHITE)
        write(panel, f"step {self._steps:,}", 1, GREY)
        write(panel, f"reward {self._reward:+.3g}", 2, GREY)
        write(panel, f"return {amount(self.total)}", 3, WHITE)
        if action is None:
            write(panel, "the episode is over", 5, WHITE)
        else:
            self._bars(panel, np.asarray(action))
        whole = np.hstack([frame, panel])
        return np.ascontiguousarray(
            np.pad(whole, ((0, len(whole) % 2), (0, whole.shape[1] % 2), (0, 0)))
        )  # a film needs even sides

    def _bars(self, panel: np.ndarray, action: np.ndarray) -> None:
        """A bar for each action with its figure, that of `action` in another colour; or for each entry of a continuous action."""
        if self._explanation is not None:
            title, figures, chosen = self._explanation.name, self._explanation.figures[0], int(self._chosen(action))
            known = figures[np.isfinite(figures)]
            low, high = self._explanation.bounds or (min([self._bounds[0], *known]), max([self._bounds[1], *known]))
            self._bounds = (low, high)
        elif isinstance(self._space, gymnasium.spaces.Box):
            title, figures, chosen = "action", action.reshape(-1), -1
            low, high = float(self._space.low.min()), float(self._space.high.max())
        else:
            write(panel, f"action {self._name(int(self._chosen(action)))}", 5, CHOSEN)
            return
        write(panel, title, 5, GREY)
        rows = max(min((panel.shape[0] - TOP - 6 * LINE) // LINE, MOST_BARS), 0)
        for number, figure in enumerate(figures[:rows]):
            self._bar(panel, 6 + number, number, float(figure), (low, high), CHOSEN if number == chosen else BAR)
        if len(figures) > rows:
            write(panel, f"and {len(figures) - rows} more", 6 + rows, GREY)

    def _bar(
        self, panel: np.ndarray, row: int, number: int, figure: float, bounds: tuple[float, float], colour: tuple[int, int, int]
    ) -> None:
        write(panel, self._name(number)[:LABEL_LETTERS], row, WHITE if colour == CHOSEN else GREY)
        if not np.isfinite(figure):
            write(panel, "not allowed", row, GREY, BAR_LEFT)
            return
        low, high = bounds
        share = (figure - low) / (high - low) if np.isfinite(high - low) and high > low else 1.0
        base, right = TOP + row * LINE, BAR_LEFT + round(min(max(share, 0.0), 1.0) * (BAR_RIGHT - BAR_LEFT))
        cv2.rectangle(panel, (BAR_LEFT, base - 10), (max(right, BAR_LEFT + 1), base), colour, cv2.FILLED)
        write(panel, f"{figure:.3g}", row, GREY, BAR_RIGHT + 6)

    def _chosen(self, action: np.ndarray) -> int:
        """The index of a discrete action; -1 for another."""
        start = int(getattr(self._space, "start", 0))
        return int(action) - start if action.ndim == 0 else -1

    def _name(self, number: int) -> str:
        return self._names[number] if 0 <= number < len(self._names) else str(number)


class ExplainedPlayer(PolicyPlayer):
    """A policy that plays one environment and tells the overlay what it thinks before each step."""

    overlay: Overlay | None = None

    def actions(self) -> np.ndarray:
        if self.overlay is not None:
            self.overlay.explain(self.explain())
        return super().actions()


def write(panel: np.ndarray, text: str, line: int, colour: tuple[int, int, int], left: int = LEFT) -> None:
    """Writes ASCII; any other letter is a question mark."""
    letters = text.encode("ascii", "replace").decode()
    cv2.putText(panel, letters, (left, TOP + line * LINE), cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, 1, cv2.LINE_AA)
