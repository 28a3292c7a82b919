"""A stochastic policy and its value function as networks, against torch's own distributions and what the papers say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from learner.algorithms.arithmetic.sequences import stack_index
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.ppo.networks import actor_critic, log_prob_entropy, policy_and_value
from learner.networks.parts import LogStd
from learner.weights.checkpoint import load_into, pack, unpack
from tests.learner.examples import image, make_observation, make_spec, vector
from transport.experience import Column, Continuous, ExperienceSpec

REALS = Continuous((-1.0, 0.0), (1.0, 3.0))
GOAL = (vector("observation", 5), vector("achieved_goal", 3), vector("desired_goal", 3))
SMALL = PpoConfig(hidden=16)


def reals(*fields: Column, stack: int = 1) -> ExperienceSpec:
    return ExperienceSpec(fields, REALS, 16, stack)


def linears(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def test_statistics_travel_with_the_policys_weights_and_values_do_not_travel() -> None:
    spec = make_spec(*GOAL)
    (policy, value), (follower, _) = actor_critic(spec, SMALL), actor_critic(spec, SMALL)
    rows = make_observation(GOAL, (30,))
    policy.body.inputs.observe(rows, torch.arange(30) < 20)
    load_into(follower, unpack(pack(policy.state_dict())))
    assert follower.body.inputs.normaliser is not None and float(follower.body.inputs.normaliser.count) == 20
    seen = make_observation(GOAL, (4, 1))
    assert torch.equal(policy(seen), follower(seen))
    travels = {id(parameter) for parameter in policy.parameters()}
    assert not travels & {id(parameter) for parameter in value.parameters()}


def test_the_way_to_the_goal_is_an_input_of_policy_and_values() -> None:
    policy, value = actor_critic(reals(*GOAL, stack=2), SMALL)
    assert linears(policy)[0].in_features == 2 * (14 + 3)
    assert value.torso is not None and linears(value.torso)[0].in_features == 2 * (14 + 3)
    without, _ = actor_critic(reals(*GOAL, stack=2), PpoConfig(hidden=16, normalize_observation=False))
    assert linears(without)[0].in_features == 2 * 14


def test_the_first_policy_is_nearly_uniform_and_hidden_layers_are_orthogonal() -> None:
    torch.manual_seed(0)
    policy, value = actor_critic(make_spec(vector(size=16), n=4), PpoConfig(hidden=16))
    hidden = linears(policy)[0].weight.detach()
    torch.testing.assert_close(hidden @ hidden.T, 2 * torch.eye(16), atol=1e-4, rtol=1e-4)
    assert float(value.head.weight.detach().norm()) == pytest.approx(1, abs=1e-4)
    assert float(linears(policy)[-1].weight.detach().norm(dim=1)[0]) == pytest.approx(0.01, abs=1e-5)
    named = [*policy.named_parameters(), *value.named_parameters()]
    assert not any(bool(parameter.any()) for name, parameter in named if name.endswith("bias"))
    logits = policy(make_observation([vector(size=16)], (50, 1)))
    assert float(logits.detach().abs().max()) < 0.1
    assert isinstance(value.torso, nn.Sequential)
    assert [type(layer) for layer in list(value.torso)[1:]] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh]
    continuous, _ = actor_critic(reals(vector()), PpoConfig(log_std_init=-1.5))
    assert continuous(make_observation([vector()], (3, 1)))[:, 2:].tolist() == [[-1.5, -1.5]] * 3


def test_log_probabilities_and_entropies_are_those_of_torchs_own_distributions() -> None:
    torch.manual_seed(0)
    logits, chosen = torch.randn(30, 5), torch.randint(5, (30,))
    theirs = torch.distributions.Categorical(logits=logits)
    found = log_prob_entropy(logits, chosen)
    torch.testing.assert_close(found[0], theirs.log_prob(chosen))
    torch.testing.assert_close(found[1], theirs.entropy())
    last = LogStd(2, 0.0, -9.0, 2.0)
    with torch.no_grad():
        last.log_std.copy_(torch.tensor([-9.0, 0.5]))  # the first is beyond what is allowed
    mean, action = torch.randn(30, 2), torch.randn(30, 2)
    normal = torch.distributions.Normal(mean.double(), torch.tensor([-5.0, 0.5]).exp().double())
    expected = normal.log_prob(action.double()) - torch.log(1 - torch.tanh(action.double()) ** 2)
    log_prob, entropy = log_prob_entropy(last(mean), action)
    torch.testing.assert_close(log_prob.double(), expected.sum(1), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(entropy.double(), normal.entropy().sum(1).expand(30), rtol=1e-5, atol=1e-5)


def test_noise_that_begins_below_its_bound_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^algorithm.log_std_init -3 is below algorithm.log_std_min -2.5$"):
        actor_critic(reals(vector()), PpoConfig(log_std_init=-3))


@pytest.mark.parametrize("fields", [(vector(),), (image(), vector())], ids=["vector", "image and vector"])
def test_under_autocast_what_it_gives_is_float32(fields: tuple[Column, ...]) -> None:
    torch.manual_seed(0)
    policy, value = actor_critic(make_spec(*fields), SMALL)
    seen = make_observation(fields, (6, 1))
    exact = policy_and_value(policy, value, seen)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = policy_and_value(policy, value, seen)
    for found, expected in zip(rounded, exact, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
        if len(fields) == 1:
            assert torch.equal(found, expected), "there is nothing in it that is worth rounding"


def test_images_share_convolutions_and_can_be_flattened_instead() -> None:
    spec = make_spec(image(), vector(), stack=4)
    policy, value = actor_critic(spec, SMALL)
    flat, _ = actor_critic(spec, PpoConfig(hidden=16, network="mlp"))
    assert value.torso is None and len(linears(policy.head)) == 1
    both = [actor_critic(spec, PpoConfig(hidden=16, network="mlp", shared=shared))[1].torso for shared in (False, True)]
    assert both[0] is not None and both[1] is None
    assert linears(policy)[0].in_features == 64 * 7 * 7 + 4 * 4
    assert not flat.body.inputs.images and linears(flat)[0].in_features == 4 * (84 * 84 + 4)
    seen = make_observation(spec.fields, (2, 4))
    assert policy(seen).shape == flat(seen).shape == (2, 3)
    with pytest.raises(ValueError, match="network nature cannot be built: it needs an image, but no observation field is one"):
        actor_critic(make_spec(vector()), PpoConfig(network="nature"))


def test_stacks_look_back_no_further_than_their_episodes_first_row() -> None:
    age = torch.tensor([[5, 6, 0, 1, 2, 3], [-7, 1_000, 0, 0, 1, -7]])  # rows past the last may hold anything
    assert stack_index(age, 3).tolist() == [
        [[2, 2, 2], [2, 2, 3], [2, 3, 4], [3, 4, 5]],
        [[8, 8, 8], [9, 9, 9], [9, 9, 10], [11, 11, 11]],
    ]
    assert stack_index(age, 1).flatten().tolist() == list(range(12))


def test_the_log_probability_of_several_choices_is_that_of_their_combination() -> None:
    sizes, output = (2, 3, 2), torch.randn(7, 7, dtype=torch.float64)
    action = torch.stack([torch.randint(n, (7,)) for n in sizes], 1)
    log_prob, entropy = log_prob_entropy(output, action, sizes)
    for i, (x, y, z) in enumerate(action.tolist()):
        each = [part.softmax(0) for part in output[i].split(sizes)]
        joint = torch.einsum("a,b,c->abc", *each)
        assert float(log_prob[i]) == pytest.approx(float(joint[x, y, z].log()))
        assert float(entropy[i]) == pytest.approx(float(-(joint * joint.log()).sum()))
