"""The stack that an actor acts on, against one built the naive way."""

from __future__ import annotations

import numpy as np
import pytest

from actors.agent import Stack
from transport.experience import Categorical, ExperienceSpec, observed


def naive_stack(history: list[np.ndarray], depth: int) -> np.ndarray:
    """The last `depth` of one episode's observations; missing ones repeat the first."""
    return np.stack([history[max(len(history) - depth + place, 0)] for place in range(depth)])


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_a_stack_holds_the_last_observations_and_never_crosses_a_reset(depth: int) -> None:
    random = np.random.default_rng(depth)
    spec = ExperienceSpec((observed("image", (2, 3), "|u1"), observed("vector", (4,), "<f4")), Categorical(2), 8, stack=depth)
    stack = Stack(spec, 3)

    def observe() -> dict[str, np.ndarray]:
        return {"image": random.integers(256, size=(3, 2, 3)).astype(np.uint8), "vector": random.random((3, 4), np.float32)}

    seen = observe()
    stack.reset(seen)
    histories = [{name: [seen[name][k]] for name in seen} for k in range(3)]
    for _ in range(40):
        for name, stacked in stack.stacked.items():
            assert stacked.dtype == seen[name].dtype
            for k in range(3):
                assert np.array_equal(stacked[k], naive_stack(histories[k][name], depth))
        seen, started = observe(), random.random(3) < 0.2
        stack.push(seen, started)
        for k in range(3):
            for name in seen:
                histories[k][name] = [seen[name][k]] if started[k] else [*histories[k][name], seen[name][k]]


def test_a_reset_of_some_environments_leaves_the_others_alone() -> None:
    spec = ExperienceSpec((observed("x", (1,), "<f4"),), Categorical(2), 8, stack=2)
    stack = Stack(spec, 2)
    stack.reset({"x": np.array([[1.0], [2.0]], np.float32)})
    stack.push({"x": np.array([[3.0], [4.0]], np.float32)}, np.array([False, False]))
    stack.reset({"x": np.array([[9.0], [9.0]], np.float32)}, np.array([False, True]))
    assert stack.stacked["x"][..., 0].tolist() == [[1.0, 3.0], [9.0, 9.0]]


def test_a_stack_that_was_handed_out_is_never_written_again() -> None:
    spec = ExperienceSpec((observed("x", (1,), "<f4"),), Categorical(2), 8, stack=2)
    stack = Stack(spec, 1)
    stack.reset({"x": np.array([[1.0]], np.float32)})
    held = stack.stacked["x"]
    stack.push({"x": np.array([[2.0]], np.float32)}, np.array([False]))
    stack.reset({"x": np.array([[3.0]], np.float32)})
    assert held[0, :, 0].tolist() == [1.0, 1.0]
