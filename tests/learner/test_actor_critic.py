from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.ppo.networks import ActorCritic, Normaliser, build_actor_critic
from learner.algorithms.ppo.rollouts import stack_index
from learner.algorithms.ppo.update import Ppo
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.networks import SoftPolicy
from learner.networks.q_network import QNetwork
from learner.weights.checkpoint import load_into, pack, unpack
from tests.learner.acting import algorithm_of
from tests.learner.examples import CPU, image, make_observation, make_spec, vector
from transport.experience import Column, Continuous, ExperienceSpec, observed

REALS = Continuous((-1.0, 0.0), (1.0, 3.0))
GOAL = (vector("observation", 5), vector("achieved_goal", 3), vector("desired_goal", 3))
SMALL = PpoConfig(hidden=16)


def reals(*fields: Column, stack: int = 1) -> ExperienceSpec:
    return ExperienceSpec(fields, REALS, 16, stack)


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


def test_statistics_travel_with_the_weights() -> None:
    spec = make_spec(*GOAL)
    network, follower = build_actor_critic(spec, SMALL), build_actor_critic(spec, SMALL)
    rows = make_observation(GOAL, (30,))
    network.observe(rows, torch.arange(30) < 20)
    load_into(follower, unpack(pack(network.state_dict())))
    assert network.inputs.normaliser is not None and follower.inputs.normaliser is not None
    assert float(follower.inputs.normaliser.count) == 20
    mean = torch.cat([rows[field.name][:20].mean(0) for field in GOAL])
    torch.testing.assert_close(follower.inputs.normaliser.mean[:11], mean)
    seen = make_observation(GOAL, (4, 1))
    assert torch.equal(network(seen)[0], follower(seen)[0])
    bare = build_actor_critic(spec, PpoConfig(hidden=16, normalise_observation=False))
    assert not list(bare.buffers())
    bare.observe(rows, torch.arange(20))


def test_the_way_to_the_goal_is_an_input_where_there_is_a_goal() -> None:
    network = build_actor_critic(reals(*GOAL, stack=2), SMALL)
    observation = make_observation(GOAL, (7, 2))
    way = observation["desired_goal"] - observation["achieved_goal"]
    expected = torch.cat([*observation.values(), way], 2)
    assert torch.equal(network.inputs.raw(observation), expected) and network.policy[0].in_features == 2 * (14 + 3)
    differing = (vector("achieved_goal", 2), vector("desired_goal", 3))
    assert build_actor_critic(reals(*differing), SMALL).policy[0].in_features == 5
    without = msgspec.structs.replace(SMALL, normalise_observation=False)  # there is no usual size to squeeze it by
    assert build_actor_critic(reals(*GOAL, stack=2), without).policy[0].in_features == 2 * 14


def test_what_is_left_of_the_way_is_squeezed_by_its_usual_size() -> None:
    network = build_actor_critic(reals(*GOAL), SMALL)
    observation = make_observation(GOAL, (500, 1))
    network.observe({name: rows[:, 0] for name, rows in observation.items()}, torch.arange(500))
    way = observation["desired_goal"] - observation["achieved_goal"]
    near = network.inputs(observation)[:, -3:]
    usual = float(way.reshape(500, 3).var(0, correction=0).mean().sqrt())
    expected = way[:, 0] / (way[:, 0].norm(dim=1, keepdim=True) + usual / 8)
    torch.testing.assert_close(near, expected, rtol=1e-4, atol=1e-5)


def test_stored_values_are_dequantised_inside_the_network() -> None:
    spec, plain = make_spec(observed("x", (4,), "|u1", 0.5, -3.0)), make_spec(vector("x"))
    stored, values = build_actor_critic(spec, SMALL), build_actor_critic(plain, SMALL)
    values.load_state_dict(stored.state_dict())
    bytes_ = torch.randint(256, (5, 1, 4), dtype=torch.uint8)
    for found, expected in zip(stored({"x": bytes_}), values({"x": bytes_.float() * 0.5 - 3.0}), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_first_policy_is_nearly_uniform_and_hidden_layers_are_orthogonal() -> None:
    torch.manual_seed(0)
    network = build_actor_critic(make_spec(vector(size=16), n=4), PpoConfig(hidden=16))
    policy, value = ([p.detach() for p in layers.parameters()] for layers in (network.policy, network.value))
    hidden = policy[0]  # weights and biases take turns
    torch.testing.assert_close(hidden @ hidden.T, 2 * torch.eye(16), atol=1e-4, rtol=1e-4)
    assert float(value[-2].norm()) == pytest.approx(1, abs=1e-4)
    assert float(policy[-2].norm(dim=1)[0]) == pytest.approx(0.01, abs=1e-5)
    assert not any(bool(parameter.any()) for name, parameter in network.named_parameters() if name.endswith("bias"))
    logits, _ = network(make_observation([vector(size=16)], (50, 1)))
    assert float(logits.detach().abs().max()) < 0.1
    assert [type(layer) for layer in network.value] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    continuous = build_actor_critic(reals(vector()), PpoConfig(log_std=-1.5))
    assert continuous.log_std is not None and continuous.log_std.tolist() == [-1.5, -1.5]


def test_log_probabilities_and_entropies_are_those_of_torchs_own_distributions() -> None:
    torch.manual_seed(0)
    categorical, continuous = build_actor_critic(make_spec(vector(), n=5), SMALL), build_actor_critic(reals(vector()), SMALL)
    logits, chosen = torch.randn(30, 5), torch.randint(5, (30,))
    theirs = torch.distributions.Categorical(logits=logits)
    found = categorical.log_prob_entropy(logits, chosen)
    torch.testing.assert_close(found[0], theirs.log_prob(chosen))
    torch.testing.assert_close(found[1], theirs.entropy())
    assert continuous.log_std is not None
    with torch.no_grad():
        continuous.log_std.copy_(torch.tensor([-9.0, 0.5]))  # the first is beyond what is allowed
    mean, action = torch.randn(30, 2), torch.randn(30, 2)
    normal = torch.distributions.Normal(mean.double(), torch.tensor([-5.0, 0.5]).exp().double())
    expected = normal.log_prob(action.double()) - torch.log(1 - torch.tanh(action.double()) ** 2)
    log_prob, entropy = continuous.log_prob_entropy(mean, action)
    torch.testing.assert_close(log_prob.double(), expected.sum(1), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(entropy.double(), normal.entropy().sum(1), rtol=1e-5, atol=1e-5)


def test_acting_draws_from_the_policy_or_does_what_is_likeliest() -> None:
    torch.manual_seed(0)
    network = build_actor_critic(make_spec(vector(), n=3), SMALL)
    with torch.no_grad():
        list(network.policy.parameters())[-1].copy_(torch.tensor([0.0, math.log(3), -1e9]))
    seen = {"vector": torch.zeros(8_000, 1, 4)}
    drawn = network.act(seen, generator=torch.Generator().manual_seed(1))
    assert torch.bincount(drawn.action, minlength=3).tolist() == pytest.approx([2_000, 6_000, 0], abs=150)
    assert set(network.act(seen, greedy=True).action.tolist()) == {1}
    assert drawn.log_prob is not None and drawn.value is not None and drawn.value.shape == (8_000,)
    torch.testing.assert_close(drawn.log_prob.exp(), torch.tensor([0.25, 0.75])[drawn.action], rtol=1e-4, atol=1e-4)
    continuous = build_actor_critic(reals(vector()), PpoConfig(hidden=16, log_std=-0.5))
    mean, _ = continuous(seen)
    assert torch.equal(continuous.act(seen, greedy=True).action, mean)
    spread = continuous.act(seen, generator=torch.Generator().manual_seed(1)).action - mean.detach()
    assert float(spread.std()) == pytest.approx(math.exp(-0.5), rel=0.03) and float(spread.mean()) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("fields", [(vector(),), (image(), vector())], ids=["vector", "image and vector"])
def test_under_autocast_what_it_gives_is_float32(fields: tuple[Column, ...]) -> None:
    torch.manual_seed(0)
    network = build_actor_critic(make_spec(*fields), SMALL)
    seen = make_observation(fields, (6, 1))
    exact = network(seen)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = network(seen)
    for found, expected in zip(rounded, exact, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
        if len(fields) == 1:
            assert torch.equal(found, expected), "there is nothing in it that is worth rounding"


def test_images_share_convolutions_and_can_be_flattened_instead() -> None:
    spec = make_spec(image(), vector(), stack=4)
    network, flat = build_actor_critic(spec, SMALL), build_actor_critic(spec, PpoConfig(hidden=16, network="mlp"))
    assert [type(layer) for layer in network.policy] == [type(layer) for layer in network.value] == [nn.Linear]
    assert network.trunk[0].in_features == 64 * 7 * 7 + 4 * 4
    assert not flat.names and flat.policy[0].in_features == 4 * (84 * 84 + 4)
    seen = make_observation(spec.fields, (2, 4))
    assert network(seen)[0].shape == flat(seen)[0].shape == (2, 3)
    with pytest.raises(ValueError, match="network nature needs an image, and no observation field is one"):
        build_actor_critic(make_spec(vector()), PpoConfig(network="nature"))


def test_an_observation_of_another_shape_is_refused_where_it_goes_in() -> None:
    network = build_actor_critic(make_spec(vector(size=6)), SMALL)
    with pytest.raises(AssertionError, match=r"vector: expected \[B, stack, \(6,\)\], got \(5, 1, 2, 3\)"):
        network({"vector": torch.zeros(5, 1, 2, 3)})


def test_scalars_are_vectors_of_one() -> None:
    spec = make_spec(observed("height", (), "<f4"), observed("count", (), "<i4"), stack=2)
    algorithm = Ppo(spec, SMALL, CPU)
    rows = {"height": torch.randn(9), "count": torch.arange(9, dtype=torch.int32)}
    algorithm.network.observe(rows, torch.arange(9))
    assert algorithm.network({name: column.reshape(1, 9)[:, :2] for name, column in rows.items()})[1].shape == (1,)
    assert algorithm.network.inputs.normaliser is not None and float(algorithm.network.inputs.normaliser.mean[1]) == 4.0


def test_stacks_look_back_no_further_than_their_episodes_first_row() -> None:
    age = torch.tensor([[5, 6, 0, 1, 2, 3], [-7, 1_000, 0, 0, 1, -7]])  # rows past the last may hold anything
    assert stack_index(age, 3).tolist() == [
        [[2, 2, 2], [2, 2, 3], [2, 3, 4], [3, 4, 5]],
        [[8, 8, 8], [9, 9, 9], [9, 9, 10], [11, 11, 11]],
    ]
    assert stack_index(age, 1).flatten().tolist() == list(range(12))


def test_an_algorithm_says_which_network_acts() -> None:
    spec = make_spec(vector())
    assert isinstance(algorithm_of(DqnConfig()).policy(spec), QNetwork)
    assert isinstance(algorithm_of(PpoConfig()).policy(spec), ActorCritic)
    reals = msgspec.structs.replace(spec, action=Continuous((-1.0,), (1.0,)))
    assert isinstance(algorithm_of(SacConfig()).policy(reals), SoftPolicy)
