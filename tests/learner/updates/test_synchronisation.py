"""An update does not wait for the device: nothing of it is read by the host, but where a line says so."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.device.updates import CASES, learning
from learner.algorithms.arithmetic.copies import copy_into
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Weighted
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.devices.capabilities import TABLE, capabilities
from learner.updates.base import Transitions
from tests.learner.algorithms.sac import test_update as test_sac
from tests.learner.examples import image, make_batch, make_spec, make_update, vector

SPEC = make_spec(image(shape=(12, 12)), vector(), n=4, stack=2, n_step=3)
META = torch.device("meta")  # shapes without numbers: whatever needs a number fails
# On a GPU these wait until what they ask for has been computed.
WAITING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique", "aten::unique")

# These wait where the index is a mask.
BY_INDEX = (
    "aten::index.Tensor",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


@pytest.fixture(autouse=True)
def _asynchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that claims to be asynchronous, as a GPU is: on an ordinary one the optimiser may read tensors, and memories do."""
    able = dataclasses.replace(capabilities(torch.device("cpu")), synchronous=False, few_shapes=True)
    monkeypatch.setitem(TABLE, "cpu", lambda device: able)


class Unread(TorchDispatchMode):
    """Refuses operations whose answer the host needs."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.name()
        by_mask = name in BY_INDEX and any(_is_mask(index) for index in args[1])
        if by_mask or name.startswith(WAITING):
            raise AssertionError(f"the host waits for {name}")
        return operation(*args, **(kwargs or {}))


class Counting(Unread):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_dispatch__(operation, types, args, kwargs)
        except AssertionError as wait:
            self.waits.append(str(wait))
            return operation(*args, **(kwargs or {}))


def refused(*arguments: object, **options: object) -> NoReturn:
    raise AssertionError("a tensor goes to the host")


def moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return {name: moved(part, device) for name, part in value.items()} if isinstance(value, dict) else value


def to(batch: Transitions, device: torch.device) -> Transitions:
    return Transitions(*(moved(value, device) for value in batch))


@pytest.mark.parametrize("network", ["nature", "nature_batchnorm"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_updates_of_dqn_are_not_read(monkeypatch: pytest.MonkeyPatch, network: str, accumulation: int) -> None:
    config = DqnConfig(hidden=16, network=network, target_update_interval=2)  # type: ignore[arg-type]
    dqn = make_update(SPEC, config, LearnerConfig(batch_size=16, accumulation=accumulation))
    batch = make_batch(SPEC, 16)
    dqn.update(batch)  # the first one looks at memory
    for name in ("cpu", "numpy", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, refused)
    with Unread():
        for _ in range(3):  # across a copy into the target
            dqn.update(batch)


def test_updates_of_sac_are_not_read() -> None:
    spec = test_sac.make_spec(hindsight=2)
    sac = make_update(spec, SacConfig(hidden=16), test_sac.LEARNER)
    batch = test_sac.make_batch(spec)
    sac.update(batch)
    with Unread():
        sac.update(batch)


OF_ROLLOUTS = ["ppo vector", "ppo normalize_reward", "ppo annealed", "ppo lstm", "pqn vector", "reppo vector"]


@pytest.mark.parametrize(("name", "most"), [*((name, 1) for name in OF_ROLLOUTS), ("ppo target_kl", 1 + 2)])
def test_updates_from_rollouts_are_read_once(name: str, most: int) -> None:
    case = CASES[name]
    made = learning(case._replace(options={**case.options, "n_epochs": 2, "minibatches": 1}), torch.device("cpu"), items=32)
    made.update.update(made.batch)
    with Counting() as mode:
        made.update.update(made.batch)
    assert len(mode.waits) == most, mode.waits


def test_a_checkpoint_has_the_learning_rate_that_follows_the_last_rollout() -> None:
    counters = []
    for asks in (False, True):  # between the updates
        case = CASES["ppo adaptive_kl"]
        made = learning(case._replace(options={**case.options, "n_epochs": 2}), torch.device("cpu"))
        for _ in range(3):
            made.update.update(made.batch)
            if asks:
                counters.append(dict(made.update.counters))
    assert made.update.counters["rate"] not in (1.0, counters[-2]["rate"])
    assert counters[-1] == made.update.counters and len({each["rate"] for each in counters}) == 3


def test_the_loss_of_dqn_and_its_gradient_need_no_number_at_all() -> None:
    dqn = make_update(SPEC, DqnConfig(hidden=16, network="nature_batchnorm"), device=META)
    batch = to(make_batch(SPEC, 8), META)
    loss, metrics, priorities = dqn.loss(Weighted(batch, batch.probability.float()))
    loss.backward()
    copy_into(dqn.target, dqn.policy)
    assert priorities.shape == (8,) and all(value.device == META for value in metrics.values())
    assert all(parameter.grad is not None for parameter in dqn.policy.parameters())
