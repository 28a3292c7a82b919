"""What stands beside the picture of a step."""

from __future__ import annotations

import numpy as np
import pytest

from actors.evaluation.video.film import Filmed, stride
from actors.evaluation.video.overlay import BAR, CHOSEN, GROUND, LEAST_HEIGHT, PANEL_WIDTH, Overlay
from learner.algorithms.base import Explanation
from tests.actors.evaluation.test_demo import Painted

FRAME = np.zeros((320, 320, 3), np.uint8)


def told(action: int, *figures: float, bounds: tuple[float, float] | None = None) -> np.ndarray:
    """A picture of a choice among actions with these figures."""
    overlay = Overlay("toy - dqn v3")
    overlay.begin()
    overlay.choose(np.asarray(action), Explanation("figure", np.array([figures]), bounds) if figures else None)
    return overlay.beside(FRAME)


def lengths(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    """Pixels of this colour in the longest row."""
    return int((picture[:, -PANEL_WIDTH:] == colour).all(2).sum(1).max())


def test_a_small_picture_is_enlarged_and_stays_as_it_is_beside_the_panel() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    picture = Overlay("toy").beside(frame)
    assert picture.shape[0] >= LEAST_HEIGHT and picture.shape[1] == 64 * 7 + PANEL_WIDTH
    np.testing.assert_array_equal(picture[3::7, 3 : 64 * 7 : 7], frame)
    assert (picture[-1, -1] == GROUND).all()


@pytest.mark.parametrize("shape", [(321, 99, 3), (480, 640, 3)])
def test_both_sides_are_even_as_films_need(shape: tuple[int, int, int]) -> None:
    picture = Overlay("toy").beside(np.zeros(shape, np.uint8), over=True)
    assert picture.shape[0] % 2 == picture.shape[1] % 2 == 0


def test_the_bar_of_the_action_that_is_taken_has_its_own_colour_and_the_length_of_its_figure() -> None:
    few, many = (told(action, 0.25, 0.75, bounds=(0.0, 1.0)) for action in (0, 1))
    assert lengths(many, CHOSEN) == pytest.approx(3 * lengths(few, CHOSEN), abs=4)
    assert lengths(few, BAR) == lengths(many, CHOSEN)


def test_figures_that_are_not_finite_or_too_many_have_no_bar() -> None:
    picture = told(1, -np.inf, 2.0, np.nan)
    assert lengths(picture, CHOSEN) and not lengths(picture, BAR)
    assert told(1, *range(500)).shape == picture.shape


def test_a_policy_that_says_nothing_has_no_bars_and_names_may_be_in_other_letters() -> None:
    overlay = Overlay("漢字")
    overlay.names = ["漢字"]
    overlay.choose(np.asarray(0), None)
    assert not lengths(overlay.beside(FRAME), BAR)
    overlay.choose(np.array([2.0, 0.0, -2.0]), None)  # continuous
    assert lengths(overlay.beside(FRAME), BAR)


def test_reward_and_return_begin_anew_with_each_episode() -> None:
    overlay, seen = Overlay("toy"), list[float]()
    filmed = Filmed(Painted(), lambda frame: seen.append(overlay.total), overlay=overlay)
    for _ in range(2):
        filmed.reset()
        while not filmed.step(0)[2]:
            pass
    assert seen == [*range(10)] * 2


def test_of_many_pictures_a_second_some_are_left_out_and_never_the_last() -> None:
    assert [stride(rate, 30.0) for rate in (10.0, 30.0, 50.0, 61.0)] == [1, 1, 2, 3]
    seen: list[int] = []
    filmed = Filmed(Painted(), lambda frame: seen.append(int(frame[0, 0, 0]) // 20), every=4)
    filmed.reset()
    while not filmed.step(0)[2]:
        pass
    assert seen == [0, 4, 8, 9]
