"""Action values or probabilities, and the reward so far, drawn beside the picture of each step."""

from __future__ import annotations

import cv2
import numpy as np

from actors.evaluation.evaluate import PolicyPlayer
from learner.algorithms.base import ActingPolicy, Explanation
from transport.experience import ExperienceSpec
from transport.text import amount

LEAST_HEIGHT, PANEL_WIDTH = 320, 240  # pixels; smaller pictures are enlarged by a whole factor
MOST_BARS, LABEL_LETTERS = 18, 9
LEFT, TOP, LINE, BAR_LEFT, BAR_RIGHT = 10, 22, 18, 92, PANEL_WIDTH - 56
GROUND, GREY, WHITE, BAR, CHOSEN = (26, 28, 32), (150, 152, 158), (236, 236, 238), (86, 106, 142), (240, 150, 50)  # RGB


class Overlay:
    """Call begin() at each reset, choose() before each step, beside() for the picture that the step starts from, add() after."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.names: list[str] = []  # of discrete actions
        self.total = 0.0  # reward of the episode so far
        self._steps, self._reward = 0, 0.0
        self._action = np.zeros((), np.int64)
        self._explanation: Explanation | None = None
        self._seen = (np.inf, -np.inf)  # the least and the greatest figure of this episode

    def begin(self) -> None:
        """An episode begins."""
        self._steps, self._reward, self.total = 0, 0.0, 0.0
        self._seen = (np.inf, -np.inf)

    def choose(self, action: np.ndarray, explanation: Explanation | None) -> None:
        """Sets the action of the next step, an index [] or floats [A], and the policy's figures [1, n] of all actions."""
        self._action, self._explanation = action, explanation

    def add(self, reward: float) -> None:
        self._steps, self._reward, self.total = self._steps + 1, reward, self.total + reward

    def beside(self, frame: np.ndarray, over: bool = False) -> np.ndarray:
        """The frame [H, W, 3], enlarged where it is small, with the panel at its right. `over`: the episode has ended."""
        whole, panel = with_panel(frame)
        write(panel, self.title, 0, WHITE)
        write(panel, f"step {self._steps:,}", 1, GREY)
        write(panel, f"reward {self._reward:+.3g}", 2, GREY)
        write(panel, f"return {amount(self.total)}", 3, WHITE)
        if over:
            write(panel, "the episode is over", 5, WHITE)
        else:
            self._bars(panel)
        return whole

    def _bars(self, panel: np.ndarray) -> None:
        """A bar for each discrete action with its figure, that of the chosen one in another colour; or for each entry of a
        continuous action."""
        action, explanation = self._action, self._explanation
        if explanation is not None:
            title, figures = explanation.name, explanation.figures[0]
            finite = figures[np.isfinite(figures)]
            self._seen = min([self._seen[0], *finite]), max([self._seen[1], *finite])
            bounds = explanation.bounds or self._seen
        elif action.ndim:
            title, figures = "action", action
            self._seen = min([self._seen[0], *action]), max([self._seen[1], *action])
            bounds = self._seen
        else:
            write(panel, f"action {self._name(int(action))}", 5, CHOSEN)
            return
        write(panel, title, 5, GREY)
        rows = max(min((panel.shape[0] - TOP - 6 * LINE) // LINE, MOST_BARS), 0)
        for number, figure in enumerate(figures[:rows]):
            chosen = not action.ndim and number == action
            self._bar(panel, 6 + number, number, float(figure), bounds, CHOSEN if chosen else BAR)
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

    def _name(self, number: int) -> str:
        return self.names[number] if 0 <= number < len(self.names) else str(number)


def with_panel(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The frame [H, W, 3], enlarged where it is small, with an empty panel at its right; and the panel, a view of it."""
    factor = max(-(-LEAST_HEIGHT // frame.shape[0]), 1)
    frame = frame.repeat(factor, 0).repeat(factor, 1)
    height, width = frame.shape[:2]
    whole = np.zeros((height + height % 2, (width + PANEL_WIDTH + 1) // 2 * 2, 3), np.uint8)  # a film needs even sides
    whole[:height, :width], panel = frame, whole[:height, width : width + PANEL_WIDTH]
    panel[:] = GROUND
    return whole, panel


class ExplainedPlayer(PolicyPlayer):
    """A policy that plays one environment and tells the overlay what it thinks before each step."""

    def __init__(self, spec: ExperienceSpec, policy: ActingPolicy, overlay: Overlay | None) -> None:
        super().__init__(spec, policy, 1)
        self._overlay = overlay

    def actions(self) -> np.ndarray:
        explanation = None if self._overlay is None else self.explain()  # before act() changes the state
        actions = super().actions()
        if self._overlay is not None:
            self._overlay.choose(actions[0], explanation)
        return actions


def write(panel: np.ndarray, text: str, line: int, colour: tuple[int, int, int], left: int = LEFT) -> None:
    """Writes ASCII; any other letter is a question mark."""
    letters = text.encode("ascii", "replace").decode()
    cv2.putText(panel, letters, (left, TOP + line * LINE), cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, 1, cv2.LINE_AA)
