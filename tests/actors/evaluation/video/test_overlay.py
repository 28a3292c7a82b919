"""What stands beside the picture of a step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from actors.evaluation.video.film import Filmed, stride
from actors.evaluation.video.overlay import BAR, CHOSEN, GROUND, LEAST_HEIGHT, PANEL_WIDTH, Overlay
from learner.algorithms.base import Explanation
from tests.actors.evaluation.test_demo import Painted


def begun(space: gymnasium.Space[Any] | None = None, meanings: list[str] | None = None) -> Overlay:
    overlay, env = Overlay("toy - dqn v3"), Painted()
    if space is not None:
        env.action_space = space  # type: ignore[assignment]
    if meanings is not None:
        env.get_action_meanings = lambda: meanings  # type: ignore[attr-defined]
    overlay.begin(env)
    return overlay


def lengths(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    """Pixels of this colour in the longest row."""
    return int((picture[:, -PANEL_WIDTH:] == colour).all(2).sum(1).max())


def test_a_small_picture_is_enlarged_and_stays_as_it_is_beside_the_panel() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    picture = begun().beside(frame, np.int64(0))
    assert picture.shape[0] >= LEAST_HEIGHT and picture.shape[1] == 64 * 7 + PANEL_WIDTH
    np.testing.assert_array_equal(picture[3::7, 3 : 64 * 7 : 7], frame)
    assert (picture[-1, -1] == GROUND).all()


@pytest.mark.parametrize("shape", [(321, 99, 3), (480, 640, 3)])
def test_both_sides_are_even_as_films_need(shape: tuple[int, int, int]) -> None:
    picture = begun().beside(np.zeros(shape, np.uint8), None)
    assert picture.shape[0] % 2 == picture.shape[1] % 2 == 0


def test_the_bar_of_the_action_that_is_taken_has_its_own_colour_and_the_length_of_its_figure() -> None:
    overlay = begun()
    overlay.explain(Explanation("probability", np.array([[0.25, 0.75]]), (0.0, 1.0)))
    few = overlay.beside(np.zeros((320, 320, 3), np.uint8), np.int64(0))
    many = overlay.beside(np.zeros((320, 320, 3), np.uint8), np.int64(1))
    assert lengths(many, CHOSEN) == pytest.approx(3 * lengths(few, CHOSEN), abs=4)
    assert lengths(few, BAR) == lengths(many, CHOSEN)
    assert not lengths(overlay.beside(np.zeros((320, 320, 3), np.uint8), None), CHOSEN)


def test_figures_that_are_not_finite_or_too_many_have_no_bar() -> None:
    overlay = begun()
    overlay.explain(Explanation("action value", np.array([[-np.inf, 2.0, np.nan]])))
    picture = overlay.beside(np.zeros((320, 320, 3), np.uint8), np.int64(1))
    assert lengths(picture, CHOSEN) and not lengths(picture, BAR)
    overlay.explain(Explanation("action value", np.arange(500.0)[None]))
    assert overlay.beside(np.zeros((320, 320, 3), np.uint8), np.int64(1)).shape == picture.shape


def test_continuous_actions_and_names_in_other_letters_are_drawn() -> None:
    overlay = begun(gymnasium.spaces.Box(-2.0, 2.0, (3,)), meanings=["漢字"])
    assert lengths(overlay.beside(np.zeros((320, 320, 3), np.uint8), np.array([2.0, 0.0, -2.0])), BAR) > 0


def test_reward_and_return_begin_anew_with_each_episode() -> None:
    overlay, seen = begun(), list[float]()
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
