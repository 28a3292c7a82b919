"""From a slot to tensors: the same values, and on a CPU the same memory."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
import numpy as np
import pytest
import torch

from learner.algorithms.base import Needs, join
from learner.devices.capabilities import Capabilities
from learner.feed import batches
from learner.feed.batches import SlotCopies, as_tensors, to_batch, to_device
from learner.feed.views import SlotViews
from learner.updates.trees import leaves, mapped, part
from replay.client.base import SampledBatch
from replay.table.layout import layout
from tests.learner.examples import CPU, image, vector
from transport.experience import Categorical, Continuous, ExperienceSpec

FIELDS = (image(shape=(5, 6)), vector(size=3))


def fill(spec: ExperienceSpec, items: int) -> SampledBatch:
    """A slot of random bytes that make sense."""
    arrangement = layout(spec, items)
    arrays = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
    random = np.random.default_rng(0)
    for array in arrays.values():
        if array.dtype.kind == "f":
            array[...] = random.random(array.shape)
        elif array.dtype.kind == "b":
            array[...] = random.random(array.shape) < 0.5
        else:
            array[...] = random.integers(0, 100, array.shape)
    return SampledBatch(1, 7, arrays)


@pytest.mark.parametrize("action", [Categorical(4), Continuous((-1.0, -2.0), (1.0, 2.0))], ids=["categorical", "continuous"])
def test_a_batch_is_what_the_slot_holds(action: Categorical | Continuous) -> None:
    spec = ExperienceSpec(FIELDS, action, 16, stack=2, n_step=3)
    sampled = fill(spec, 8)
    before = {name: array.copy() for name, array in sampled.arrays.items()}
    batch = to_device(sampled, spec, CPU)
    for field in spec.fields:
        rows = batch.observation[field.name]
        assert rows.dtype == torch.from_numpy(before[f"observation/{field.name}"]).dtype, "observations go as they rest"
        assert np.array_equal(rows.numpy(), before[f"observation/{field.name}"])
    assert np.array_equal(batch.observation_index.numpy(), before["observation_index"])
    assert np.array_equal(batch.next_index.numpy(), before["next_index"])
    assert np.array_equal(batch.action.numpy(), before["action"])
    assert batch.action.dtype == (torch.int64 if isinstance(action, Categorical) else torch.float32)
    assert np.array_equal(batch.reward.numpy(), before["reward"])
    assert np.array_equal(batch.steps.numpy(), before["steps"])
    assert batch.terminated.dtype == torch.bool and np.array_equal(batch.terminated.numpy(), before["terminated"])
    assert np.array_equal(batch.probability.numpy(), before["probability"].astype(np.float32))
    assert batch.extras == {}


def test_goals_of_hindsight_come_along_and_are_parted_with_their_items() -> None:
    goals = (vector("achieved_goal", 2), vector("desired_goal", 2))
    spec = join(ExperienceSpec(goals, Continuous((-1.0,), (1.0,)), 16), Needs(goals=3))
    sampled = fill(spec, 8)
    batch = to_device(sampled, spec, CPU)
    assert batch.extras.keys() == {"hindsight_goal", "hindsight_reward"}
    parted = part(batch, 2, 5).extras
    for name, values in batch.extras.items():
        assert np.array_equal(values.numpy(), sampled.arrays[name])
        assert torch.equal(parted[name], values[2:5])


UNITS: dict[str, ExperienceSpec] = {
    "transitions": ExperienceSpec(FIELDS, Categorical(4), 16, stack=2, n_step=3),
    "sequences": ExperienceSpec(FIELDS, Continuous((-1.0,), (1.0,)), 16, n_step=2, burn_in=4, unit="sequences"),
    "rollouts": ExperienceSpec(FIELDS, Categorical(4), 16, unit="rollouts"),
}


class OneSlot:
    """Stands for a sampler."""

    batch_size = 8

    def __init__(self, spec: ExperienceSpec) -> None:
        arrangement = layout(spec, self.batch_size)
        self.memory = np.zeros(arrangement.slot_bytes, np.uint8)
        self.arrays = arrangement.view(self.memory)
        for name, values in fill(spec, self.batch_size).arrays.items():
            self.arrays[name][...] = values


@pytest.mark.parametrize("able", [True, False], ids=["one piece", "array by array"])
@pytest.mark.parametrize("unit", UNITS)
def test_a_device_without_streams_gets_one_copy_of_a_slot_if_it_sees_the_numbers_in_it(
    monkeypatch: pytest.MonkeyPatch, unit: str, able: bool
) -> None:
    monkeypatch.setattr(batches, "capabilities", lambda device: Capabilities("a device"))
    if not able:
        monkeypatch.setattr(batches, "device_views", refused)
    sampler: Any = OneSlot(UNITS[unit])
    expected = to_batch(as_tensors(fill(UNITS[unit], sampler.batch_size)), UNITS[unit], CPU)
    copies = SlotCopies(sampler, UNITS[unit], CPU)
    found = copies.batch(SampledBatch(0, 1, sampler.arrays))
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
    sampler.memory[:] = 255
    assert torch.equal(found.reward, expected.reward) == able, "it lies in memory of the device"


def refused(*given: object, **options: object) -> NoReturn:
    raise NotImplementedError("Cannot access storage of OpaqueTensorImpl")


def test_a_cpu_reads_observations_where_replay_wrote_them() -> None:
    spec = ExperienceSpec(FIELDS, Categorical(4), 16, stack=2, n_step=3)
    sampled = fill(spec, 8)
    batch = to_device(sampled, spec, CPU)
    for field in spec.fields:
        written = sampled.arrays[f"observation/{field.name}"]
        assert batch.observation[field.name].data_ptr() == written.ctypes.data


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("action", [Categorical(4), Continuous((-1.0, -2.0), (1.0, 2.0))], ids=["categorical", "continuous"])
def test_the_engine_s_views_hold_what_torch_s_batch_holds(unit: str, action: Categorical | Continuous) -> None:
    spec = msgspec.structs.replace(UNITS[unit], action=action)
    sampled = fill(spec, 4)
    tensors, arrays = to_batch(as_tensors(sampled), spec, CPU), SlotViews(spec).batch(sampled)
    assert type(tensors) is type(arrays)
    as_arrays: Any = mapped(lambda tensor: tensor.numpy(), tensors)  # type: ignore[return-value]
    for name, expected, found in zip(tensors._fields, as_arrays, arrays, strict=True):
        pairs: Any = [(expected, found)] if isinstance(found, np.ndarray) else [(expected[key], found[key]) for key in expected]
        assert isinstance(found, np.ndarray) or expected.keys() == found.keys()
        for one, other in pairs:
            assert one.dtype == other.dtype and np.array_equal(one, other), name
    if unit == "transitions":
        assert np.shares_memory(arrays.reward, sampled.arrays["reward"]), "what keeps its type is not copied"
