"""Convolutions in numpy, against torch's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from learner.algorithms.base import find_algorithm, join, known_description
from learner.config import LearnerConfig
from learner.engine.runtime import EngineRuntime
from learner.inference.program import Program
from learner.networks.base import Body, PolicyModule
from learner.networks.convolutional import compact, nature, nature_batchnorm
from learner.networks.describe import describe
from learner.networks.inputs import Inputs
from learner.networks.parts import Fields
from learner.networks.recurrent import Lstm
from learner.program.network import learns
from tests.learner.examples import image, make_observation, make_spec, vector, weights_of
from transport.experience import Columns, ExperienceSpec, observed

BESIDE = (image("camera", (3, 37, 40)), vector(), observed("far", (9, 8), "|u1", 2 / 255, -1.0))
IMAGES = {
    "grey": (image("image", (84, 84)),),
    "small, in colour": (observed("image", (3, 7, 7), "|u1", 0.1),),
    "one pixel": (image("image", (1, 1)),),
    "42 pixels": (image("image", (42, 42)),),
    "odd, signed": (observed("image", (2, 45, 38), "|u1", 1 / 128, -1.0),),
    "several": BESIDE,
}
TORSOS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nature": (nature, {"width": 16}),
    "half": (compact, {"width": 16, "filters": 0.5}),
    "compact": (compact, {"width": 16}),
    "batch norm": (nature_batchnorm, {"width": 16}),
    "layer norm": (compact, {"width": 16, "layer_norm": True}),
    "apart": (nature, {"width": 16, "apart": True, "filters": 0.1}),
}


def policy(spec: ExperienceSpec, torso: str, memory: bool = False, **inputs: bool) -> PolicyModule:
    torch.manual_seed(1)
    given = Inputs(spec, **inputs)
    make, options = TORSOS[torso]
    body = Body(given, make(given.shapes, **options), Lstm(16, 6) if memory else None)
    made = PolicyModule(body, nn.Linear(body.features, 5)).eval()
    with torch.no_grad():
        for name, value in made.state_dict().items():
            if "normaliser" not in name and value.dim() == 1:  # biases, and a normalisation's weights and statistics
                value.add_(torch.rand_like(value))
    return made


def compare(module: PolicyModule, spec: ExperienceSpec) -> None:
    description = describe(module)
    assert description.program is not None, description.unknown
    inference = Program(description)
    inference.load(weights_of(module))
    for count in (3, 1, 5):  # buffers are used again
        seen = make_observation(spec.fields, (count, spec.stack))
        stored: Columns = {name: rows.numpy() for name, rows in seen.items()}
        before = {name: rows.copy() for name, rows in stored.items()}
        state = {name: torch.rand(count, *shape) for name, shape in inference.state.items()}
        found, after = inference(stored, {name: value.numpy() for name, value in state.items()})
        with torch.no_grad():
            expected, then = module.step(seen, state)
        largest = float(expected.abs().max())
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * largest)
        assert all(np.allclose(after[name], then[name], atol=1e-5) for name in state)
        assert all(np.array_equal(rows, before[name]) for name, rows in stored.items()), "observations are not modified"


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("torso", TORSOS)
@pytest.mark.parametrize("fields", IMAGES)
def test_every_network_of_images_computes_what_torch_does(fields: str, torso: str, stack: int) -> None:
    spec = make_spec(*IMAGES[fields], stack=stack)
    compare(policy(spec, torso), spec)


def test_a_memory_follows_convolutions_and_vectors_beside_images_are_normalised() -> None:
    spec = make_spec(*BESIDE, stack=2)
    module = policy(spec, "compact", memory=True, normalise=True)
    module.body.inputs.observe(make_observation(spec.fields, (50,)), torch.arange(50))
    compare(module, spec)


def own(*layers: nn.Module, shape: tuple[int, ...] = (2, 9, 8)) -> tuple[PolicyModule, ExperienceSpec]:
    spec = make_spec(observed("image", shape, "|u1", 1 / 255, 0.25))
    body = Body(Inputs(spec), Fields({"image": nn.Sequential(*layers)}))
    return PolicyModule(body, nn.Linear(body.features, 3)).eval(), spec


def test_windows_of_any_form_are_convolved() -> None:
    for height, width, stride, padding in itertools.product((1, 4), (2, 3), ((1, 3), (2, 1)), ((0, 0), (0, 1), (2, 0))):
        first = nn.Conv2d(2, 3, (height, width), stride, padding, bias=height == 1)
        deeper = nn.Sequential(nn.LeakyReLU(), nn.Conv2d(3, 4, (2, 1), padding=(1, 0)), nn.Tanh(), nn.Flatten())
        compare(*own(first, nn.SiLU(), deeper, nn.LazyLinear(6), nn.ReLU()))


def test_more_images_than_are_gathered_at_once_are_the_same() -> None:
    module, spec = own(nn.Conv2d(2, 8, 8, 4), nn.ReLU(), nn.Flatten(), shape=(2, 84, 84))
    inference = Program(describe(module))
    inference.load(weights_of(module))
    seen = {name: rows.numpy() for name, rows in make_observation(spec.fields, (33, 1)).items()}
    together = inference(seen, {})[0]
    for row in range(33):
        alone = inference({name: rows[row : row + 1] for name, rows in seen.items()}, {})[0]
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-5, atol=1e-6)
    apart = np.repeat(seen["image"], 2, 0)[::2]
    assert not apart.flags.c_contiguous
    np.testing.assert_array_equal(inference({"image": apart}, {})[0], together)


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(2, 4, 3, groups=2), nn.Flatten()),
        (nn.Conv2d(2, 4, 3, dilation=2), nn.Flatten()),
        (nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten()),
        (nn.Conv2d(2, 4, 3, padding="same"), nn.Flatten()),
        (nn.ReLU(), nn.Conv2d(2, 4, 3), nn.Flatten()),
        (nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Flatten()),
        (nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten()),
        (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten()),
        (nn.Conv2d(2, 4, 3), nn.LayerNorm([4, 7, 6]), nn.Flatten()),
    ],
    ids=str,
)
def test_other_convolutions_are_unknown(layers: tuple[nn.Module, ...]) -> None:
    assert describe(own(*layers)[0]).program is None


@pytest.mark.parametrize("name", ["dqn", "pqn", "ppo", "r2d2"])
@pytest.mark.parametrize("network", ["nature", "compact", "nature_batchnorm"])
def test_the_engine_leaves_convolutions_to_torch(name: str, network: str) -> None:
    found = find_algorithm(name)
    algorithm = found(found.Config(network=network))
    env = make_spec(*BESIDE)
    spec = join(env, algorithm.needs(env))
    assert algorithm.array_update(spec, EngineRuntime(LearnerConfig())) is None
    described = known_description(algorithm, spec)
    assert described is None or (described.program is not None and not learns(described.program))


def test_an_image_of_another_size_is_refused() -> None:
    module, _ = own(nn.Conv2d(2, 4, 3), nn.Flatten())
    with pytest.raises(AssertionError, match="expected images of 144 numbers"):
        Program(describe(module))({"image": np.zeros((2, 1, 2, 9, 9), np.uint8)}, {})
