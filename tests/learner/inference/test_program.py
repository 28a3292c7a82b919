"""What numpy computes by a description, against the module that was described."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from learner.algorithms.base import find_algorithm
from learner.description import Op, PolicyDescription, read_description
from learner.devices.errors import DeviceError
from learner.inference.module import Module, infer_by
from learner.inference.open import open_inference
from learner.inference.program import Program
from learner.networks import parts
from learner.networks.base import Body, PolicyModule
from learner.networks.describe import describe
from learner.networks.inputs import Inputs
from learner.networks.mlp import linear, mlp
from learner.networks.recurrent import Gru, Lstm
from learner.weights.checkpoint import CheckpointError
from tests.learner.examples import image, make_observation, make_spec, vector, weights_of
from tests.learner.networks.own import Torso
from transport.experience import Column, Columns, ExperienceSpec, observed

GOAL = (vector("observation", 5), vector("achieved_goal", 3), vector("desired_goal", 3))
MIXED = (vector(), observed("angle", (3,), "|u1", 0.02, -2.5), observed("count", (), "<i4"))
FIELDS = {"goal": GOAL, "mixed": MIXED, "one": (vector(),), "image": (image(shape=(4, 5)), vector())}


def rescale(scale: float) -> parts.Rescale:
    made = parts.Rescale()
    made.scale.fill_(scale)
    return made


HEADS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda features: nn.Linear(features, 4),
    "no bias": lambda features: nn.Linear(features, 4, bias=False),
    "dueling": lambda features: nn.Sequential(nn.Linear(features, 4), parts.Dueling()),
    "rescaled": lambda features: nn.Sequential(nn.Linear(features, 4), parts.Dueling(), rescale(2.5)),
    "log std": lambda features: nn.Sequential(nn.Linear(features, 4), parts.LogStd(4, -0.5, -2.5, 2.0)),
    "quantiles": lambda features: nn.Sequential(nn.Linear(features, 12), nn.Unflatten(1, (4, 3)), parts.MeanOverLast()),
    "distribution": lambda features: nn.Sequential(
        nn.Linear(features, 12), nn.Unflatten(-1, (4, 3)), parts.SoftmaxExpectation([-1.0, 0.0, 2.0])
    ),
    "deep": lambda features: nn.Sequential(
        *(nn.LayerNorm(features), nn.SiLU(), nn.Sequential(nn.Linear(features, 6), nn.Identity()), nn.ELU(0.7)),
        *(nn.LayerNorm(6, bias=False), nn.Sigmoid(), nn.LayerNorm(6, elementwise_affine=False), nn.LeakyReLU(0.3)),
        *(nn.Dropout(), nn.Linear(6, 4)),
    ),
}


def policy(spec: ExperienceSpec, head: Callable[[int], nn.Module], memory: type | None = None, **inputs: bool) -> PolicyModule:
    torch.manual_seed(1)
    read = Inputs(spec, images=False, **inputs)
    body = Body(read, mlp(read.shapes, 8, activation="tanh"), None if memory is None else memory(8, 6))
    made = PolicyModule(body, head(body.features))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made.eval()


def arrays(spec: ExperienceSpec, count: int = 7) -> Columns:
    return {name: rows.numpy() for name, rows in make_observation(spec.fields, (count, spec.stack)).items()}


def tensors(columns: Columns) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(rows) for name, rows in columns.items()}


def agrees(module: PolicyModule, spec: ExperienceSpec) -> None:
    inference, seen = infer_by(module), arrays(spec)
    assert isinstance(inference, Program)
    before = {name: rows.copy() for name, rows in seen.items()}
    found, after = inference(seen, {})
    assert found.dtype == np.float32 and after == {}
    with torch.no_grad():
        np.testing.assert_allclose(found, module(tensors(seen)), rtol=1e-4, atol=1e-5)
    assert all(np.array_equal(rows, before[name]) for name, rows in seen.items()), "what was observed is not its to change"


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_it_answers_what_the_module_answers(head: Callable[[int], nn.Module]) -> None:
    spec = make_spec(*MIXED, stack=2)
    agrees(policy(spec, head), spec)


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(
    "fields", [GOAL, MIXED, (vector(),), (image(shape=(4, 5)), vector())], ids=["goal", "mixed", "one", "image"]
)
def test_it_reads_what_the_module_reads(fields: tuple[Column, ...], normalise: bool, stack: int, statistics: bool) -> None:
    spec = make_spec(*fields, stack=stack)
    module = policy(spec, HEADS["linear"], goal=True, normalise=normalise)
    if statistics:
        rows = {name: (3 * values).to(values.dtype) for name, values in make_observation(fields, (50,)).items()}
        module.body.inputs.observe(rows, torch.arange(50))
    agrees(module, spec)


@pytest.mark.parametrize("stack", [1, 2])
def test_an_image_that_is_read_as_a_vector_is_one(stack: int) -> None:
    spec = make_spec(vector(), image(shape=(3, 4, 5)), vector("more", 2), stack=stack)
    inputs = Inputs(spec)
    assert [len(shape) for shape in inputs.shapes.values()] == [1, 3, 1]
    body = Body(inputs, mlp(inputs.shapes, 8))
    agrees(PolicyModule(body, nn.Linear(8, 3)).eval(), spec)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.SiLU])
def test_what_is_observed_stays_as_it_is_where_no_layer_comes_first(activation: type[nn.Module]) -> None:
    spec = make_spec(vector())
    inputs = Inputs(spec)
    agrees(PolicyModule(Body(inputs, nn.Sequential(parts.Concat(), activation())), nn.Linear(4, 3)), spec)


@pytest.mark.parametrize("memory", [Lstm, Gru])
def test_it_remembers_as_the_module_does(memory: type) -> None:
    spec = make_spec(vector())
    module = policy(spec, HEADS["linear"], memory)
    inference = infer_by(module)
    assert isinstance(inference, Program) and inference.state == module.body.state
    state = {name: np.zeros((7, *shape), np.float32) for name, shape in inference.state.items()}
    theirs: Mapping[str, torch.Tensor] = {name: torch.from_numpy(values) for name, values in state.items()}
    itself = Module(module)
    for _ in range(3):
        seen = arrays(spec)
        in_torch, also = itself(seen, state)
        found, state = inference(seen, state)
        with torch.no_grad():
            expected, theirs = module.step(tensors(seen), theirs)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(in_torch, expected, rtol=1e-4, atol=1e-5)
        for name, values in state.items():
            np.testing.assert_allclose(values, theirs[name], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(also[name], values, rtol=1e-4, atol=1e-5)


class Doubled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def test_what_a_part_may_do_otherwise_is_unknown() -> None:
    spec = make_spec(vector())
    inputs = Inputs(spec)

    def unknown(torso: nn.Module, head: nn.Module) -> str:
        description = describe(PolicyModule(Body(inputs, torso), head))
        assert (description.program is None) == bool(description.unknown)
        return description.unknown

    plain, last = linear(inputs.shapes), nn.Linear(4, 3)
    assert unknown(plain, last) == ""
    assert unknown(plain, Doubled(4, 3)) == f"{__name__}:Doubled"
    assert unknown(Torso(inputs.shapes), nn.Linear(8, 3)) == "tests.learner.networks.own:Torso"
    hooked, replaced = nn.Linear(4, 3), nn.Linear(4, 3)
    hooked.register_forward_hook(lambda module, given, answer: 2 * answer)
    replaced.forward = lambda input: input  # type: ignore[method-assign]
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    for head in (hooked, replaced, normed, nn.Sequential(last, nn.Flatten(0)), nn.Sequential(nn.Softplus(), last)):
        assert unknown(plain, head) != ""
    assert describe(nn.Linear(4, 3)).unknown == "torch.nn.modules.linear:Linear"
    beside = Inputs(make_spec(image(shape=(2, 2)), vector()), normalise=True)
    assert "image beside vectors" in describe(PolicyModule(Body(beside, linear(beside.shapes)), nn.Linear(8, 3))).unknown


@pytest.mark.parametrize("torso", ["Torso", "known"])
def test_an_unknown_part_is_acted_by_in_torch_and_known_ones_in_numpy(torso: str) -> None:
    spec = make_spec(vector())
    kind = find_algorithm("dqn")
    algorithm = kind(kind.Config(network=f"tests.learner.networks.own:{torso}"))
    module = algorithm.policy(spec)
    inference = open_inference(algorithm, spec, describe(module), "auto")
    assert isinstance(inference, Module if torso == "Torso" else Program)
    inference.load(weights_of(module))
    seen = arrays(spec)
    with torch.no_grad():
        np.testing.assert_allclose(inference(seen, {})[0], module(tensors(seen)), rtol=1e-4, atol=1e-5)
    assert {name: values.tolist() for name, values in inference.weights.items()} == {
        name: values.tolist() for name, values in weights_of(module).items()
    }
    with pytest.raises(DeviceError, match="precision float16 is not available for acting: use one of auto, float32"):
        open_inference(algorithm, spec, describe(module), "float16")


@pytest.mark.parametrize(
    "program",
    [
        (Op("inputs", (), {"fields": [], "stack": 1, "goal": []}), Op("push", (), {"names": []}), Op("convolve")),
        (Op("inputs", ("head.weight",), {"fields": []}),),
        (Op("inputs", ("none",), {"fields": [], "stack": 1, "goal": []}),),
        (),
    ],
    ids=["kind", "options", "tensor", "nothing"],
)
def test_a_damaged_description_is_refused_in_one_line(program: tuple[Op, ...]) -> None:
    kind = find_algorithm("dqn")
    description = PolicyDescription({"head.weight": ((3, 4), "float32")}, program)
    with pytest.raises(CheckpointError, match="not the description of a policy") as refusal:
        open_inference(kind(kind.Config()), make_spec(vector()), description)
    assert "\n" not in str(refusal.value)


def test_weights_are_taken_up_whole_or_not_at_all() -> None:
    spec = make_spec(vector())
    module = policy(spec, HEADS["dueling"])
    inference, good = infer_by(module), weights_of(module)
    name = next(iter(good))
    for wrong, reason in (
        ({key: value for key, value in good.items() if key != name}, f"they lack {name}"),
        (good | {"more": np.zeros(2, np.float32)}, "they have an unknown more"),
        (good | {name: good[name][:-1]}, rf"{name} is float32 \[7, 4\], not float32 \[8, 4\]"),
        (good | {name: good[name].astype(np.float64)}, f"{name} is float64"),
    ):
        changed = {key: value + 1 for key, value in wrong.items()}
        with pytest.raises(CheckpointError, match=reason):
            inference.load(changed)
    assert all(np.array_equal(value, good[key]) for key, value in inference.weights.items())


def test_a_description_is_the_same_after_a_file() -> None:
    spec = make_spec(*GOAL, stack=2)
    description = describe(policy(spec, HEADS["quantiles"], Gru, goal=True, normalise=True))
    assert read_description(msgspec.json.encode(description)) == description
    for text in (b"{", b"[]", b'{"tensors": {}, "more": 1}', b"[" * 10_000):
        with pytest.raises(CheckpointError, match="not the description of a policy"):
            read_description(text)


@pytest.mark.parametrize("memory", [Lstm, Gru])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_a_head_that_begins_with_an_activation_leaves_the_memorys_state_alone(memory: type, activation: type) -> None:
    spec = make_spec(vector())
    module = policy(spec, lambda features: nn.Sequential(activation(), nn.Linear(features, 4)), memory)
    inference, seen = infer_by(module), arrays(spec)
    assert isinstance(inference, Program)
    before = {name: np.zeros((7, *shape), np.float32) for name, shape in inference.state.items()}
    found, after = inference(seen, before)
    with torch.no_grad():
        expected, state = module.step(tensors(seen), tensors(before))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    for name, value in state.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-5)
