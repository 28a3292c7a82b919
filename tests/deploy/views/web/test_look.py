"""What an actor sees, as the page gets it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from msgspec import structs

from deploy.views.web.look import MOST_ENTRIES, shown
from transport.experience import Categorical, ExperienceSpec, observed, write_spec
from transport.messages.control import Seen
from transport.messages.fields import LOOK_BYTES
from transport.run_dir import RunDir

SEEN = Seen("actor-0", 1, 7, 3, 1.5, "action value", (0.5, float("nan"), 2.0), ("left", "right"), (0.0, 1.0))


def document(folder: Path, spec: ExperienceSpec, *arrays: np.ndarray) -> dict[str, Any]:
    run = RunDir(folder)
    run.create()
    run.spec.write_bytes(write_spec(spec))
    payload = b"".join(array.tobytes() for array in arrays)
    return shown(run, SEEN, [payload[:100], payload[100:]])


def picture(address: str) -> np.ndarray:
    """[H, W, 3] RGB, or [H, W]."""
    kind, _, data = address.partition(",")
    assert kind == "data:image/png;base64"
    found = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_UNCHANGED)
    assert found is not None
    return found[:, :, ::-1] if found.ndim == 3 else found


@pytest.mark.parametrize("scale", [1.0, 1 / 255])
def test_images_are_pictures_of_the_same_pixels(tmp_path: Path, scale: float) -> None:
    random = np.random.default_rng(0)
    shapes = ((5, 6), (3, 5, 6), (2, 5, 6))
    grey, colours, planes = (random.integers(256, size=(4, *shape), dtype=np.uint8) for shape in shapes)
    fields = tuple(observed(f"field-{number}", shape, "|u1", scale) for number, shape in enumerate(shapes))
    found = document(tmp_path, ExperienceSpec(fields, Categorical(3), 8, stack=4), grey, colours, planes)["fields"]
    for age in range(4):
        assert (picture(found[0]["frames"][age]) == grey[age]).all()
        assert (picture(found[1]["frames"][age]) == np.moveaxis(colours[age], 0, -1)).all()
        assert (picture(found[2]["frames"][age]) == np.hstack(list(planes[age]))).all(), "other channels are side by side"
    assert [each["name"] for each in found] == ["field-0", "field-1", "field-2"]


def test_vectors_are_numbers_by_entry_and_a_scaled_one_has_its_own_unit(tmp_path: Path) -> None:
    values = np.arange(2 * 60, dtype=np.float32).reshape(2, 60)
    angle = np.array([[0], [255]], np.uint8)
    fields = observed("joints", (60,), "<f4"), observed("angle", (1,), "|u1", 2 / 255, -1.0)
    found = document(tmp_path, ExperienceSpec(fields, Categorical(3), 8, stack=2), values, angle)
    joints, turned = found["fields"]
    assert joints["entries"] == values.T[:MOST_ENTRIES].tolist() and joints["more"] == 60 - MOST_ENTRIES
    assert turned["entries"] == [[-1.0, pytest.approx(1.0)]] and turned["more"] == 0
    assert (found["policy_version"], found["step"], found["return"], found["stack"]) == (7, 3, 1.5, 2)


def test_actions_have_names_where_the_environment_gives_them_and_no_figure_where_they_are_forbidden(tmp_path: Path) -> None:
    found = document(tmp_path, ExperienceSpec((observed("x", (), "<f4"),), Categorical(3), 8), np.zeros(1, np.float32))
    assert found["actions"] == [{"name": "left", "figure": 0.5}, {"name": "right", "figure": None}, {"name": "2", "figure": 2.0}]


def test_what_does_not_fit_the_spec_is_a_line(tmp_path: Path) -> None:
    spec = ExperienceSpec((observed("x", (), "<f4"),), Categorical(3), 8)
    assert list(document(tmp_path / "more", spec, np.zeros(2, np.float32))) == ["message"]
    assert list(document(tmp_path / "less", spec)) == ["message"]
    large = ExperienceSpec((observed("x", (LOOK_BYTES + 1,), "|u1"),), Categorical(3), 8)
    assert "too large to show: 3.1 MB" in document(tmp_path / "large", large)["message"]
    assert "cannot be read" in shown(RunDir(tmp_path / "none"), SEEN, ())["message"]


def test_who_steers_gets_the_picture_that_comes_behind_the_observation(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.create()
    run.spec.write_bytes(write_spec(ExperienceSpec((observed("x", (), "<f4"),), Categorical(3), 8)))
    drawn = np.random.default_rng(0).integers(256, size=(4, 7, 3), dtype=np.uint8)
    seen = structs.replace(SEEN, steered=True, keys=("left  to the left",), picture=(4, 7))
    found = shown(run, seen, [np.float32(5).tobytes(), drawn.tobytes()])
    assert (picture(found["picture"]) == drawn).all() and found["fields"][0]["entries"] == [[5.0]]
    assert found["steered"] and found["keys"] == ("left  to the left",)
    assert list(shown(run, seen, [np.float32(5).tobytes(), drawn.tobytes()[1:]])) == ["message"]
