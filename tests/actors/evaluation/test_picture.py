"""The picture of what an agent sees."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from actors.config import EnvConfig
from actors.evaluation.picture import draw


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_the_frames_fill_the_width_of_the_page(stack: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(EnvConfig(id="snake", stack=stack), tmp_path / "seen.png", 20)
    picture = cv2.imread(str(tmp_path / "seen.png"))
    assert picture is not None
    drawn = np.flatnonzero((picture < 60).all(2).sum(0) > 40)  # columns with much black: a snake's ground
    assert drawn[0] < 0.04 * picture.shape[1] and drawn[-1] > 0.96 * picture.shape[1]
    assert len(drawn) > 0.75 * picture.shape[1]
    red = (picture[..., 2] > 200) & (picture[..., :2] < 60).all(2)
    assert red.sum() > 0.02 * drawn.size * picture.shape[0], "the wall, the first of two planes"


@pytest.mark.parametrize("name", ["CartPole-v1", "tests.actors.toy_envs:Camera", "tests.actors.toy_envs:Rover"])
def test_a_picture_shows_vectors_images_and_both(name: str, tmp_path: Path) -> None:
    draw(EnvConfig(id=name), tmp_path / "seen.png", 12)
    picture = cv2.imread(str(tmp_path / "seen.png"))
    assert picture is not None and min(picture.shape[:2]) > 100 and picture.std() > 5, "something is drawn"
