"""`headrace bench updates`: every case runs by every side, and its products are those of its networks."""

from __future__ import annotations

import json

import pytest

from benchmarks.learner import updates


def test_a_short_case_of_each_algorithm_has_every_side(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["PPO 2x64, 64", "SAC 2x64, 256", "DQN 2x128", "PQN"]
    assert updates.main(["--quick", "--cases", *chosen, "--jax-python", "no/such/python", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {(each["case"], each["metric"]): each["value"] for each in document["results"]}
    sides = (updates.NUMPY, updates.TORCH, updates.BARE, updates.PRODUCTS)
    cases = ("PPO 2x64, 64", "SAC 2x64, 256", "DQN 2x128, 128", "PQN 2x128, 128")
    assert sorted(found) == sorted((case, side) for case in cases for side in sides)
    assert all(value > 0 for value in found.values())
    assert len(document["ratios"]) == len(cases) * (len(sides) - 1)
    assert "no JAX: there is no no/such/python" in document["notes"]


def test_products_are_those_of_forward_and_backward_passes() -> None:
    shapes = list(updates.shapes_of(32, (4, 64, 2), 3, 1, 0))
    forward, backward = [(32, 4, 64), (32, 64, 2)], [(4, 32, 64), (64, 32, 2), (32, 2, 64)]
    assert sorted(shapes) == sorted(3 * forward + backward)
