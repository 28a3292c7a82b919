from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from actors.envs.spaces import describe_space, read_space
from actors.errors import EnvError

SPACES: list[spaces.Space[Any]] = [
    spaces.Box(-1.0, 1.0, (3,), np.float32),
    spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 2.5]), dtype=np.float64),
    spaces.Box(0, 255, (84, 84, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
    spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
    spaces.Box(0, 2**64 - 1, (2,), np.uint64),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3], start=np.array([1, 0])),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary((2, 3)),
    spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.MultiBinary(4)])}),
    spaces.Dict({0: spaces.Discrete(3), 1: spaces.Box(0, 1, (1,))}),  # type: ignore[dict-item]
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_is_the_same_after_a_way_through_json(space: spaces.Space) -> None:
    assert read_space(json.loads(json.dumps(describe_space(space), allow_nan=False))) == space


def test_an_image_space_is_described_in_a_few_bytes() -> None:
    assert len(json.dumps(describe_space(SPACES[2]))) < 100


@pytest.mark.parametrize("data", [{}, {"kind": "tree"}, {"kind": "box"}, {"kind": "discrete", "n": -1, "start": 0}, [], None])
def test_what_describes_no_space_is_refused(data: Any) -> None:
    with pytest.raises(EnvError, match="not a description of a space"):
        read_space(data)


def test_a_space_that_is_not_supported_is_refused() -> None:
    with pytest.raises(EnvError, match="Text spaces are not supported"):
        describe_space(spaces.Text(3))
    with pytest.raises(EnvError, match=r"a Dict space with the key \(0, 1\) is not supported"):
        describe_space(spaces.Dict({(0, 1): spaces.Discrete(3)}))  # type: ignore[dict-item]
