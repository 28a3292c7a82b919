"""What torsos read, against what rests."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from learner.networks.inputs import Inputs, Normaliser
from tests.learner.examples import image, make_observation, make_spec, vector
from transport.experience import observed

GOAL = (vector("observation", 5), vector("achieved_goal", 3), vector("desired_goal", 3))


def test_statistics_of_many_parts_are_those_of_the_whole() -> None:
    random = np.random.default_rng(0)
    rows = random.normal([0, 1_000, -3], [1, 0.1, 50], (5_000, 3)).astype(np.float32)
    normaliser, one_by_one = Normaliser(3), Normaliser(3)
    for part in np.split(rows, [1, 7, 800, 800, 4_000]):
        normaliser.observe(torch.from_numpy(part))
    for row in rows[:100]:
        one_by_one.observe(torch.from_numpy(row[None]))
    for found, seen in ((normaliser, rows), (one_by_one, rows[:100])):
        assert float(found.count) == len(seen)
        np.testing.assert_allclose(found.mean, seen.mean(0, np.float64), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(found.variance, seen.var(0, np.float64), rtol=2e-3)
    expected = (rows[:50] - rows.mean(0, np.float64)) / rows.std(0, dtype=np.float64)
    np.testing.assert_allclose(normaliser(torch.from_numpy(rows[:50])), expected, atol=0.01)


def test_before_there_are_statistics_inputs_stay_as_they_are_and_later_outliers_are_cut_off() -> None:
    normaliser, far = Normaliser(2), torch.tensor([[1e6, -1e6], [3.0, 0.5]])
    assert torch.equal(normaliser(far), far)
    normaliser.observe(torch.randn(100, 2))
    assert normaliser(far)[0].tolist() == [10.0, -10.0]
    constant = Normaliser(1)
    constant.observe(torch.full((10, 1), 0.3))
    assert float(constant(torch.tensor([[0.3]])).abs()) < 1e-2


@pytest.mark.parametrize("odd", [math.nan, math.inf, 3e38])
def test_what_is_not_finite_or_would_not_stay_so_leaves_the_statistics_alone(odd: float) -> None:
    normaliser = Normaliser(2)
    normaliser.observe(torch.randn(100, 2))
    before = {name: value.clone() for name, value in normaliser.state_dict().items()}
    rows = torch.randn(100, 2)
    rows[3, 1] = odd
    normaliser.observe(rows)
    normaliser.observe(rows[:0])
    assert all(torch.equal(value, before[name]) for name, value in normaliser.state_dict().items())


def test_statistics_are_of_the_rows_that_are_named() -> None:
    inputs, rows = Inputs(make_spec(*GOAL), goal=True, normalise=True), make_observation(GOAL, (30,))
    inputs.observe(rows, torch.arange(30) < 20)
    assert inputs.normaliser is not None and float(inputs.normaliser.count) == 20
    mean = torch.cat([rows[field.name][:20].mean(0) for field in GOAL])
    torch.testing.assert_close(inputs.normaliser.mean[:11], mean)
    bare = Inputs(make_spec(*GOAL))
    assert not list(bare.buffers())
    bare.observe(rows, torch.arange(20))


def test_rows_that_count_more_weigh_more_in_the_statistics() -> None:
    random = np.random.default_rng(1)
    normaliser, seen, weights = Normaliser(3), [], []
    for size in (1, 40, 200):
        rows, weight = random.normal([0, 50, -3], [1, 0.1, 9], (size, 3)).astype(np.float32), random.exponential(2.0, size) + 0.01
        normaliser.observe(torch.from_numpy(rows), weight=torch.from_numpy(weight).float())
        seen.append(rows)
        weights.append(weight * size / weight.sum())  # each call counts as many rows as it has
    mean = np.average(np.concatenate(seen), 0, np.concatenate(weights))
    variance = np.average((np.concatenate(seen) - mean) ** 2, 0, np.concatenate(weights))
    assert float(normaliser.count) == 241
    np.testing.assert_allclose(normaliser.mean, mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(normaliser.variance, variance, rtol=1e-3)


@pytest.mark.parametrize("stack", [1, 3])
def test_rows_are_what_a_torso_reads_before_their_stack_is_folded_in(stack: int) -> None:
    inputs = Inputs(make_spec(*GOAL, stack=stack), goal=True, normalise=True)
    inputs.observe(make_observation(GOAL, (40,)), torch.arange(40))
    observation = make_observation(GOAL, (6, stack))
    torch.testing.assert_close(inputs.flat(inputs.rows(observation)), torch.cat(list(inputs(observation).values()), 1))


def test_the_way_to_the_goal_is_an_input_where_there_is_a_goal() -> None:
    inputs = Inputs(make_spec(*GOAL, stack=2), goal=True)
    observation = make_observation(GOAL, (7, 2))
    way = observation["desired_goal"] - observation["achieved_goal"]
    assert torch.equal(inputs.raw(observation), torch.cat([*observation.values(), way], 2))
    seen = inputs(observation)
    assert {name: (7, *shape) for name, shape in inputs.shapes.items()} == {name: value.shape for name, value in seen.items()}
    assert torch.equal(seen["goal/way"], way.flatten(1)) and list(seen) == [*observation, "goal/way"]
    assert torch.equal(inputs.flat(inputs.raw(observation)), torch.cat(list(seen.values()), 1))
    assert "goal/way" not in Inputs(make_spec(*GOAL)).shapes
    differing = (vector("achieved_goal", 2), vector("desired_goal", 3))
    assert list(Inputs(make_spec(*differing), goal=True).shapes) == ["achieved_goal", "desired_goal"]


def test_what_is_left_of_the_way_is_squeezed_by_its_usual_size() -> None:
    inputs = Inputs(make_spec(*GOAL), goal=True, normalise=True)
    observation = make_observation(GOAL, (500, 1))
    inputs.observe({name: rows[:, 0] for name, rows in observation.items()}, torch.arange(500))
    way = observation["desired_goal"] - observation["achieved_goal"]
    usual = float(way.reshape(500, 3).var(0, correction=0).mean().sqrt())
    expected = way[:, 0] / (way[:, 0].norm(dim=1, keepdim=True) + usual / 8)
    torch.testing.assert_close(inputs(observation)["goal/near"], expected, rtol=1e-4, atol=1e-5)
    assert "goal/near" not in Inputs(make_spec(*GOAL), goal=True).shapes, "there is no usual size to squeeze it by"


@pytest.mark.parametrize("normalise", [False, True])
def test_stored_values_are_dequantised(normalise: bool) -> None:
    spec = make_spec(observed("x", (4,), "|u1", 0.5, -3.0), stack=3)
    bytes_ = torch.randint(256, (5, 3, 4), dtype=torch.uint8)
    seen = Inputs(spec, normalise=normalise)({"x": bytes_})["x"]
    torch.testing.assert_close(seen, bytes_.float().flatten(1) * 0.5 - 3.0)


def test_an_images_stack_becomes_channels_and_without_images_it_is_a_vector() -> None:
    fields = (image("camera", (3, 5, 7)), image("map", (6, 6)), vector())
    spec, seen = make_spec(*fields, stack=2), make_observation(fields, (4, 2))
    inputs, flat = Inputs(spec), Inputs(spec, images=False)
    assert inputs.shapes == {"camera": (6, 5, 7), "map": (2, 6, 6), "vector": (8,)}
    assert flat.shapes == {"camera": (210,), "map": (72,), "vector": (8,)}
    for name in ("camera", "map"):
        torch.testing.assert_close(inputs(seen)[name].flatten(1), seen[name].flatten(1) / 255)
        assert torch.equal(inputs(seen)[name].flatten(1), flat(seen)[name])


def test_images_lie_as_is_asked_and_are_of_autocasts_type() -> None:
    spec = make_spec(image("camera", (3, 5, 7)), vector(), stack=2)
    seen = make_observation(spec.fields, (4, 2))
    inputs = Inputs(spec)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            given, moved = inputs(seen), inputs(seen, torch.channels_last)
        assert given["camera"].is_contiguous() and moved["camera"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(given["camera"], moved["camera"]) and moved["camera"].shape == (4, 6, 5, 7)
        assert given["camera"].dtype == moved["camera"].dtype == (torch.bfloat16 if enabled else torch.float32)
        assert given["vector"].dtype == torch.float32


def test_an_observation_of_another_shape_is_refused_where_it_goes_in() -> None:
    with pytest.raises(AssertionError, match=r"vector: expected \[N, rows, \(6,\)\], got \(5, 1, 2, 3\)"):
        Inputs(make_spec(vector(size=6)))({"vector": torch.zeros(5, 1, 2, 3)})


def test_scalars_are_vectors_of_one() -> None:
    inputs = Inputs(make_spec(observed("height", (), "<f4"), observed("count", (), "<i4"), stack=2), normalise=True)
    rows = {"height": torch.randn(9), "count": torch.arange(9, dtype=torch.int32)}
    inputs.observe(rows, torch.arange(9))
    seen = inputs({name: column.reshape(1, 9)[:, :2] for name, column in rows.items()})
    assert {name: value.shape for name, value in seen.items()} == {"height": (1, 2), "count": (1, 2)}
    assert inputs.normaliser is not None and float(inputs.normaliser.mean[1]) == 4.0
