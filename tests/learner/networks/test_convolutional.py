"""The torsos for images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from learner.networks.convolutional import compact, nature


@pytest.mark.parametrize("size", [84, 9], ids=["large kernels", "small kernels"])
@pytest.mark.parametrize(("filters", "expected"), [(1.0, [32, 64, 64]), (0.5, [16, 32, 32]), (0.01, [1, 1, 1])])
def test_filters_is_a_factor_of_every_convolution_and_at_least_one_filter_is_left(
    size: int, filters: float, expected: list[int]
) -> None:
    torso = nature({"image": (4, size, size), "vector": (3,)}, width=16, layer_norm=True, filters=filters)
    assert [module.out_channels for module in torso.modules() if isinstance(module, nn.Conv2d)] == expected
    answer = torso({"image": torch.rand(2, 4, size, size), "vector": torch.rand(2, 3)})
    assert answer.shape == (2, 16)


def test_compact_has_few_convolutions_and_the_same_small_kernels() -> None:
    torso = compact({"image": (4, 84, 84), "vector": (3,)}, width=16, layer_norm=True)
    found = [module for module in torso.modules() if isinstance(module, nn.Conv2d)]
    assert [(module.out_channels, module.kernel_size, module.stride) for module in found] == [
        (32, (5, 5), (5, 5)),
        (64, (5, 5), (5, 5)),
    ]
    answer = torso({"image": torch.rand(2, 4, 84, 84), "vector": torch.rand(2, 3)})
    assert answer.shape == (2, 16)
    finer = compact({"image": (4, 42, 42)}, width=16)
    strides = [module.stride[0] for module in finer.modules() if isinstance(module, nn.Conv2d)]
    assert strides == [3, 2, 1] and finer(dict(image=torch.rand(2, 4, 42, 42))).shape == (2, 16), "84 pixels' would leave one"
    small = [[str(module) for module in make({"image": (4, 9, 9)}, width=16).modules()][1:] for make in (compact, nature)]
    assert small[0] == small[1]


@pytest.mark.parametrize("filters", [0.0, -1.0, float("nan")])
def test_a_factor_that_leaves_no_filter_is_refused(filters: float) -> None:
    with pytest.raises(ValueError, match="leaves its convolutions none"):
        nature({"image": (4, 84, 84)}, filters=filters)
