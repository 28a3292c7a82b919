from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch

from learner.devices.capabilities import TABLE, Capabilities, capabilities
from learner.updates.adam import HostAdam, PlainAdam, TorchAdam, make_adam
from tests.learner.examples import CPU

BARE = Capabilities("bare")


def make_parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((7, 5), (3,), (2, 3, 4, 4))]


def groups_of(parameters: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.1}]


def steps(optimiser: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], first: int, last: int) -> None:
    for number in range(first, last):
        torch.manual_seed(100 + number)
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter) * 10.0 ** (number % 4 - 3)
        if number % 3 == 0:
            parameters[1].grad = None  # has no part in this one
        optimiser.step()


@pytest.mark.parametrize("epsilon", [1e-8, 1.5e-4])
@pytest.mark.parametrize("able", [BARE, capabilities(CPU)])
def test_adam_moves_parameters_as_torchs_does_to_rounding(able: Capabilities, epsilon: float) -> None:
    ours, theirs = make_parameters(), make_parameters()
    adam = make_adam(groups_of(ours), 0.01, epsilon, able)
    assert isinstance(adam, (PlainAdam, HostAdam))
    steps(adam, ours, 0, 20)
    steps(torch.optim.Adam(groups_of(theirs), lr=0.01, eps=epsilon, foreach=False, fused=False), theirs, 0, 20)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("to_plain", [True, False])
def test_one_implementation_continues_from_the_state_of_another(to_plain: bool) -> None:
    parameters = make_parameters()
    forms = (capabilities(CPU), BARE) if to_plain else (BARE, capabilities(CPU))
    first = make_adam(groups_of(parameters), 0.01, 1e-4, forms[0])
    steps(first, parameters, 0, 10)
    others = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    second = make_adam(groups_of(others), 0.01, 1e-4, forms[1])
    state = copy.deepcopy(first.state_dict()["state"])
    assert all(set(kept) == {"step", "exp_avg", "exp_avg_sq"} for kept in state.values())
    second.load_state_dict({"state": state, "param_groups": second.state_dict()["param_groups"]})
    steps(first, parameters, 10, 20)
    steps(second, others, 10, 20)
    for one, other in zip(parameters, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        one_step, other_step = first.state[one]["step"], second.state[other]["step"]
        assert float(one_step) == float(other_step)


def test_the_implementation_is_chosen_by_what_the_device_supports() -> None:
    for kind, expected in (("cpu", HostAdam), ("privateuseone", PlainAdam), ("mps", TorchAdam)):
        able = TABLE[kind](torch.device(kind))
        assert type(make_adam(groups_of(make_parameters()), 0.01, 1e-4, able)) is expected


ONE_STEP = """
import sys, torch
from learner.devices.capabilities import capabilities
from learner.updates.adam import make_adam
parameter = torch.nn.Parameter(torch.ones(3))
adam = make_adam([{"params": [parameter]}], 0.01, 1e-4, capabilities(torch.device("cpu")))
parameter.grad = torch.ones(3)
adam.step()
adam.zero_grad()
adam.load_state_dict(adam.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""


def test_an_optimiser_does_not_import_torchs_compiler() -> None:
    assert subprocess.run([sys.executable, "-c", ONE_STEP], stdin=subprocess.DEVNULL).returncode == 0
