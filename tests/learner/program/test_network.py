"""Gradients of programs, against torch's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from learner.description import Op
from learner.networks import parts
from learner.networks.base import Body, PolicyModule
from learner.networks.describe import describe
from learner.networks.inputs import Inputs
from learner.networks.mlp import mlp
from learner.program import inputs, network
from learner.program.buffers import shaped
from learner.program.network import Network, learns, trained
from tests.learner.examples import make_observation, make_spec, vector
from transport.experience import ExperienceSpec

SPECS = {"one field": (vector("observation", 5),), "two fields": (vector("observation", 4), vector("goal", 3))}
TORSOS: dict[str, dict[str, object]] = {
    "tanh": {"width": 7, "activation": "tanh"},
    "apart": {"width": 6, "apart": True},
    "layer norm": {"width": 7, "layer_norm": True, "layers": 3},
    "layer norm tanh": {"width": 7, "layer_norm": True, "activation": "tanh"},
}
HEADS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda features: nn.Sequential(nn.Linear(features, 4)),
    "dueling": lambda features: nn.Sequential(nn.Linear(features, 4), parts.Dueling()),
    "log std": lambda features: nn.Sequential(nn.Linear(features, 3), parts.LogStd(3, -0.5, -2.5, 2.0)),
    "deep": lambda features: nn.Sequential(
        *(nn.Linear(features, 6), nn.SiLU(), nn.Linear(6, 6), nn.ELU(0.7), nn.Linear(6, 6), nn.Sigmoid()),
        *(nn.LayerNorm(6, elementwise_affine=False), nn.LeakyReLU(0.3), nn.Linear(6, 5, bias=False)),
        *(nn.LayerNorm(5, bias=False), nn.Identity(), nn.Flatten()),
    ),
}


def policy(spec: ExperienceSpec, options: dict[str, object], head: Callable[[int], nn.Module]) -> PolicyModule:
    given = Inputs(spec)
    body = Body(given, mlp(given.shapes, **options))  # type: ignore[arg-type]
    return PolicyModule(body, head(body.features))


def compiled(module: PolicyModule) -> tuple[inputs.Inputs, Network, dict[str, np.ndarray]]:
    described = describe(module)
    assert described.program is not None and learns(described.program)
    tensors = {name: value.numpy() for name, value in module.state_dict().items()}
    first = described.program[0]
    given = inputs.Inputs([tensors[name] for name in first.tensors], **first.options)
    gradients = unknown({name: tensors[name] for name in trained(described.program)})
    return given, Network(described.program, given.places, tensors, gradients), gradients


def unknown(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients that have not been computed yet."""
    return {name: shaped(np.full(value.size, np.nan, np.float32), value.shape) for name, value in tensors.items()}


def arrays(observation: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in observation.items()}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("torso", TORSOS)
@pytest.mark.parametrize("fields", SPECS)
def test_gradients_are_those_of_torch(fields: str, torso: str, head: str) -> None:
    torch.manual_seed(1)
    spec = make_spec(*SPECS[fields], stack=2)
    module = policy(spec, TORSOS[torso], HEADS[head])
    given, net, gradients = compiled(module)
    assert [name for name, _ in module.named_parameters()] == list(gradients)
    for count in (9, 4, 9):  # buffers are used again
        seen = make_observation(spec.fields, (count, spec.stack))
        output = module(seen)
        weight = torch.randn(output.shape)
        module.zero_grad()
        (weight * output).sum().backward()
        found = net.forward(given.read(arrays(seen)))
        np.testing.assert_allclose(found, output.detach(), rtol=1e-4, atol=1e-5)
        net.backward(weight.numpy().copy())
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            # Rounding is relative to the terms of a sum, which may be near 0 itself: of the largest gradient, not of each.
            rounding = 1e-5 * max(1.0, float(parameter.grad.abs().max()))
            np.testing.assert_allclose(gradients[name], parameter.grad, rtol=0, atol=rounding, err_msg=name)


def test_gradients_of_the_first_rows_are_those_of_these_rows_alone() -> None:
    torch.manual_seed(2)
    spec = make_spec(*SPECS["one field"])
    given, net, gradients = compiled(policy(spec, TORSOS["layer norm tanh"], HEADS["dueling"]))
    rows, weight = (
        given.read(arrays(make_observation(spec.fields, (10, 1)))),
        np.random.default_rng(0).standard_normal((10, 3), np.float32),
    )
    net.forward(rows)
    by_input = net.backward(weight.copy(), rows=4, by_input=True)
    some = {name: value.copy() for name, value in gradients.items()}
    assert by_input is not None and by_input.shape == rows.shape
    net.forward(rows[:4].copy())
    alone = net.backward(weight[:4].copy(), by_input=True)
    assert alone is not None
    np.testing.assert_allclose(by_input[:4], alone, rtol=1e-4, atol=1e-6)
    for name, value in gradients.items():
        np.testing.assert_allclose(some[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("shared", [True, False])
def test_layers_side_by_side_are_several_networks(shared: bool) -> None:
    random = np.random.default_rng(3)

    def draw(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32)

    tensors = {"w0": draw(2, 5, 3), "b0": draw(2, 1, 5), "w1": draw(2, 1, 5), "b1": draw(2, 1, 1)}
    program = (Op("push", (), {"names": ["x"]}), Op("linear", ("w0", "b0")), Op("relu"), Op("linear", ("w1", "b1")))
    gradients = unknown(tensors)
    both = Network(program, {"x": slice(0, 3)}, tensors, gradients)
    rows, weight = draw(*(() if shared else (2,)), 6, 3), draw(2, 6, 1)
    found, by_input = both.forward(rows).copy(), both.backward(weight.copy(), by_input=True)
    assert by_input is not None
    for which in range(2):
        own = {name: value[which] if name.startswith("w") else value[which, 0] for name, value in tensors.items()}
        slopes = unknown(own)
        alone = Network(program, {"x": slice(0, 3)}, own, slopes)
        np.testing.assert_allclose(alone.forward(rows if shared else rows[which]), found[which], rtol=1e-5)
        by_own = alone.backward(weight[which].copy(), by_input=True)
        assert by_own is not None
        np.testing.assert_allclose(by_own, by_input[which], rtol=1e-5, atol=1e-6)
        for name, value in slopes.items():
            np.testing.assert_allclose(gradients[name][which].reshape(value.shape), value, rtol=1e-5, atol=1e-6)


def test_a_memory_and_a_distribution_do_not_learn() -> None:
    assert not learns([Op("inputs"), Op("push"), Op("lstm")])
    assert not learns([Op("softmax_expectation")])
    assert network.trained([Op("inputs", ("count",)), Op("linear", ("w", "b")), Op("rescale", ("scale",))]) == ["w", "b"]
