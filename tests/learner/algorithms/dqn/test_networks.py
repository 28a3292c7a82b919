from __future__ import annotations

import math

import pytest
import torch

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.networks.modes import evaluating
from tests.learner.examples import image, make_observation, make_spec, vector
from transport.experience import Continuous, ExperienceSpec

SMALL = DqnConfig(hidden=16)


@pytest.mark.parametrize("network", ["auto", "nature_batchnorm"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1, 2), (5, 40), (3, 10, 10), (35, 35), (36, 36), (84, 84), (3, 60, 100)])
def test_images_of_every_size_are_read(shape: tuple[int, ...], network: str) -> None:
    field = image(shape=shape)
    q = q_network(make_spec(field, stack=3), DqnConfig(hidden=8, network=network))(make_observation([field], (2, 3)))
    assert q.shape == (2, 3)


def test_images_under_36_pixels_get_small_kernels_and_others_the_nature_ones() -> None:
    def kernels(size: int) -> list[int]:
        network = q_network(make_spec(image(shape=(size, size))), SMALL)
        return [module.kernel_size[0] for module in network.modules() if isinstance(module, torch.nn.Conv2d)]

    assert kernels(35) == [3, 3, 3]
    assert kernels(36) == kernels(84) == [8, 4, 3]


def test_a_vector_network_has_two_hidden_layers() -> None:
    network = q_network(make_spec(vector(size=4), n=2, stack=3), DqnConfig(hidden=32))
    shapes = [tuple(module.weight.shape) for module in network.modules() if isinstance(module, torch.nn.Linear)]
    assert shapes == [(32, 12), (32, 32), (3, 32)]  # the head has V and two advantages


def test_the_batch_norm_variant_has_he_weights_no_convolution_bias_and_relu_in_place() -> None:
    network = q_network(make_spec(image(), stack=4), DqnConfig(network="nature_batchnorm"))
    convolutions = [module for module in network.modules() if isinstance(module, torch.nn.Conv2d)]
    assert len(convolutions) == 3 == sum(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())
    for convolution in convolutions:
        assert convolution.bias is None
        fan_in = convolution.weight[0].numel()
        assert float(convolution.weight.detach().std()) == pytest.approx(math.sqrt(2 / fan_in), rel=0.05)
    assert all(module.inplace for module in network.modules() if isinstance(module, torch.nn.ReLU))


def test_the_dueling_head_is_value_plus_advantage_less_its_mean() -> None:
    field = vector()
    network = q_network(make_spec(field, n=3), SMALL)
    outputs: list[torch.Tensor] = []
    assert isinstance(network.head, torch.nn.Sequential)
    network.head[0].register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    q = network(make_observation([field], (6, 1)))
    for row, output in zip(q.tolist(), outputs[0].tolist(), strict=True):
        value, *advantage = output
        assert row == pytest.approx([value + a - sum(advantage) / 3 for a in advantage], abs=1e-5)


def test_valuing_in_evaluation_mode_uses_running_statistics_and_leaves_mode_and_statistics_alone() -> None:
    field = image()
    network = q_network(make_spec(field), DqnConfig(hidden=16, network="nature_batchnorm"))
    observation = make_observation([field], (8, 1))
    network(observation)  # training mode: moves the running statistics
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert float(before["body.torso.0.branches.0.1.running_mean"].abs().sum()) > 0
    with evaluating(network):
        whole, single = network(observation), network({name: rows[:1] for name, rows in observation.items()})
    assert network.training
    torch.testing.assert_close(whole[:1], single)  # does not depend on its companions in the batch
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_evaluating_restores_the_mode_when_something_fails() -> None:
    network = q_network(make_spec(vector()), SMALL)
    with pytest.raises(KeyError), evaluating(network):
        assert not network.training
        network({})
    assert network.training


def test_what_cannot_be_built_is_refused_in_one_line() -> None:
    continuous = ExperienceSpec((vector(),), Continuous((-1.0, -1.0), (1.0, 1.0)), 16)
    with pytest.raises(ValueError, match="vector of 2 reals") as refusal:
        q_network(continuous, SMALL)
    assert "\n" not in str(refusal.value)
    for name in ("nature", "nature_batchnorm"):
        with pytest.raises(ValueError, match=f"network {name} cannot be built: it needs an image"):
            q_network(make_spec(vector()), DqnConfig(network=name))
    with pytest.raises(ValueError, match="no network is called 'natur'; did you mean nature"):
        q_network(make_spec(vector()), DqnConfig(network="natur"))


def test_a_linear_network_is_a_weighted_sum_of_what_is_observed_and_its_stack() -> None:
    spec = make_spec(image(shape=(3, 5, 5)), vector(), n=4, stack=2)
    network = q_network(spec, DqnConfig(network="linear", dueling=False))
    assert {name: tuple(value.shape) for name, value in network.state_dict().items()} == {
        "head.0.weight": (4, 2 * (75 + 4)),
        "head.0.bias": (4,),
    }
    seen = make_observation(spec.fields, (6, 2))
    inputs = torch.cat([seen["image"].flatten(1) / 255, seen["vector"].flatten(1)], 1)
    weight, bias = network.parameters()
    torch.testing.assert_close(network(seen), inputs @ weight.T + bias)
