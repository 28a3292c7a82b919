"""Torsos of one's own, and bodies with memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from learner.algorithms.base import find_algorithm
from learner.networks.base import Body, NetworkError, large_convolutions, make_body, make_torso
from learner.networks.inputs import Inputs
from learner.networks.mlp import linear
from learner.networks.recurrent import Gru, Lstm, Pieces, stepwise
from tests.learner.examples import image, make_observation, make_spec, vector
from transport.experience import Continuous, ExperienceSpec

OWN = "tests.learner.networks.own"
FIELDS = (image(shape=(6, 7)), vector())
SHAPES = {"image": (2, 6, 7), "vector": (8,)}


def made(name: str, **options: Any) -> torch.nn.Module:
    return make_torso(f"{OWN}:{name}", SHAPES, options, {})


@pytest.mark.parametrize("torso", ["Torso", "known", "lazy"])
@pytest.mark.parametrize("algorithm", ["dqn", "ppo", "pqn", "reppo", "sac"])
def test_a_torso_of_ones_own_is_used_by_every_algorithm(algorithm: str, torso: str) -> None:
    reals = ExperienceSpec(FIELDS, Continuous((-1.0, 0.0), (1.0, 3.0)), 16, 2)
    kind = find_algorithm(algorithm)
    real = "categorical" not in kind.actions
    spec = reals if real else make_spec(*FIELDS, stack=2)
    policy = kind(kind.Config(network=f"{OWN}:{torso}")).policy(spec)
    answer = policy(make_observation(FIELDS, (5, 2)))
    assert answer.shape == (5, 4 if real else 3) and answer.dtype == torch.float32


def test_options_reach_the_torso_and_its_own_weights_stay() -> None:
    kind = find_algorithm("dqn")
    torch.manual_seed(0)
    expected = made("Torso", width=16)
    torch.manual_seed(0)
    algorithm = kind(kind.Config(network=f"{OWN}:Torso", network_options={"width": 16}))
    body = algorithm.policy(make_spec(*FIELDS, stack=2)).body
    assert isinstance(body, Body) and body.features == 16
    for mine, theirs in zip(body.torso.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_config_checks_and_converts_options() -> None:
    torso = made("Checked", width="6", scale=2)
    assert isinstance(torso, torch.nn.Module) and (torso.width, torso.scale) == (6, 2.0)
    assert make_torso(f"{OWN}:Checked", {"vector": (8,)}, {}, {})({"vector": torch.ones(3, 8)}).shape == (3, 4)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("Torsi", {}, "tests.learner.networks.own has no Torsi; did you mean Torso?"),
        ("Torso", {"widht": 3}, "has no option widht; did you mean width?"),
        ("Torso", {"width": "wide"}, "cannot be built: TypeError: "),
        ("Checked", {"widht": 3}, "has no option widht; did you mean width?"),
        ("Checked", {"width": "wide"}, "its options do not match its Config: Expected `int`, got `str` - at `$.width`"),
        ("raising", {}, "cannot be built: RuntimeError: no luck"),
        ("nothing", {}, "returns an int, not a torch module"),
        ("Flat", {}, "returns a tensor [1, 2, 6, 7, 1] for one row: it must map {name: [N, *shape]} to [N, features]"),
        ("Tuple", {}, "returns a tuple, not a tensor"),
        ("Masked", {"persistent": True}, "begins with a value that is not finite in mask: "),
        ("Weighted", {}, "cannot be copied (RuntimeError: "),
        ("Scripted", {}, "): leave out torch.jit.script or trace, and torch runs it as it is"),
        ("Wrong", {}, "fails on image [1, 2, 6, 7], vector [1, 8]: KeyError: 'elsewhere'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torso_that_cannot_be_used_is_refused_in_one_line(name: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(NetworkError, match=re.escape(reason)) as refusal:
        made(name, **options)
    assert "\n" not in str(refusal.value) and f"network {OWN}:{name}" in str(refusal.value)


def test_a_constant_that_is_not_finite_is_no_obstacle_where_it_is_not_saved() -> None:
    assert made("Masked")


def test_a_module_that_is_not_there_is_refused_in_one_line() -> None:
    with pytest.raises(NetworkError, match="network no.such:Torso: there is no module no"):
        make_torso("no.such:Torso", SHAPES, {}, {})


def test_built_in_torsos_take_options_over_the_algorithms() -> None:
    body = make_body(make_spec(vector()), "mlp", {"width": 3, "layers": 1}, {"mlp": {"width": 512}})
    assert body.features == 3
    with pytest.raises(NetworkError, match="network mlp has no option depth"):
        make_body(make_spec(vector()), "mlp", {"depth": 3}, {"mlp": {}})


@pytest.mark.parametrize("often", [0.0, 0.2, 0.9])
@pytest.mark.parametrize("kind", [Lstm, Gru])
def test_unrolling_is_stepping_and_forgets_where_an_episode_begins(kind: type[Lstm] | type[Gru], often: float) -> None:
    torch.manual_seed(0)
    spec = make_spec(vector())
    body = Body(Inputs(spec), linear(Inputs(spec).shapes), kind(4, 6))
    seen = {"vector": torch.randn(12, 3, 1, 4)}
    first = torch.rand(12, 3) < often
    begin = {name: torch.randn(3, *shape) for name, shape in body.state.items()}
    begin["memory/h"][0] = torch.nan  # of a row without action: the episode begins after it
    first[0, 0] = True
    with torch.no_grad():
        found = body.unroll(seen, first, begin)
        state = {name: value.clone() for name, value in begin.items()}
        for at in range(12):
            for value in state.values():
                value[first[at]] = 0
            features, following = body.step({"vector": seen["vector"][at]}, state)
            torch.testing.assert_close(found[at], features)
            state = {name: value.clone() for name, value in following.items()}
        torch.testing.assert_close(body.unroll(seen, first, begin, 5), found[5:])
    assert body.features == 6 and found.shape == (12, 3, 6)


@pytest.mark.parametrize("kind", [Lstm, Gru])
def test_whole_sequences_have_the_gradients_of_single_steps(kind: type[Lstm] | type[Gru]) -> None:
    torch.manual_seed(0)
    memory, features, first = kind(4, 6), torch.randn(12, 3, 4), torch.rand(12, 3) < 0.2
    first[0] = torch.tensor([True, False, False])
    state = {name: torch.randn(3, *shape) for name, shape in memory.state.items()}
    assert Pieces.of(first) is not None and Pieces.of(torch.ones(12, 3, dtype=torch.bool)) is not None
    assert Pieces.of(torch.tensor([[True, False, False]] * 64)) is None, "one long row would pad many short ones"
    found = []
    for unrolled in (memory.unroll(features, first, state), stepwise(memory, features, first, state)[0]):
        memory.zero_grad()
        (unrolled * torch.linspace(-1, 1, 6)).square().sum().backward()
        found.append([unrolled.detach(), *(parameter.grad for parameter in memory.parameters())])
    for fused, single in zip(*found, strict=True):
        torch.testing.assert_close(fused, single, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Lstm, Gru])
def test_units_remember_for_long_before_they_have_learned_to(kind: type[Lstm] | type[Gru]) -> None:
    torch.manual_seed(0)
    memory = kind(4, 64)
    nothing, state = torch.zeros(2, 4), {name: torch.randn(2, *shape) for name, shape in memory.state.items()}
    begun = state = {name: value.requires_grad_() for name, value in state.items()}
    for _ in range(30):
        _, state = memory(nothing, state)
    kept = torch.autograd.grad(list(state.values())[-1].sum(), list(begun.values())[-1])[0]
    assert (kept.abs() > 0.1).float().mean() > 0.2, "a fifth of the units still knows what was 30 steps ago"


@pytest.mark.parametrize("dueling", [False, True])
def test_a_head_is_computed_in_float32_whatever_autocast_makes_of_the_body(dueling: bool) -> None:
    """Near 20 the numbers of bfloat16 are an eighth apart: two actions of nearly the same value would be the same."""
    torch.manual_seed(0)
    kind = find_algorithm("dqn")
    policy: Any = kind(kind.Config(hidden=16, dueling=dueling)).policy(make_spec(image(shape=(40, 40)), n=3))
    with torch.no_grad():
        policy.head[0].bias += 20.0
    features = torch.randn(6, 16).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        body, found = policy.body(make_observation([image(shape=(40, 40))], (6, 1))), policy.head_output(features)
    assert body.dtype == torch.bfloat16
    torch.testing.assert_close(found, policy.head_output(features.float()), rtol=0.0, atol=1e-4)


def test_narrow_kernels_are_large_convolutions_where_a_device_says_so() -> None:
    wide, narrow, plain = nn.Conv2d(4, 8, 8), nn.Conv2d(4, 8, 3), nn.Linear(4, 8)
    assert [large_convolutions(each.parameters(), narrow=False) for each in (wide, narrow, plain)] == [True, False, False]
    assert [large_convolutions(each.parameters(), narrow=True) for each in (wide, narrow, plain)] == [True, True, False]
