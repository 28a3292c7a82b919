"""Continuous actions: a Gaussian, squashed by tanh into the bounds. The unbounded action, before the tanh, is what is stored."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from learner.algorithms.arithmetic.squashed import HALF_LOG_2_PI


def log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of tanh(action), [..., A] unbounded each -> [...]: sum of log N(action; mean, std) - log(1 - tanh(action)^2).

    Haarnoja et al. 2018 (arXiv:1812.05905, appendix C, eq. 26).
    """
    assert action.shape == mean.shape
    density = -0.5 * ((action - mean) * torch.exp(-log_std)).square() - log_std - HALF_LOG_2_PI
    return (density - log_slope(action)).sum(-1)


def log_slope(action: Tensor) -> Tensor:
    """log(1 - tanh(action)^2), of any shape, without overflow."""
    return 2 * (math.log(2) - action - softplus(-2 * action))


def entropy(log_std: Tensor) -> Tensor:
    """Entropy of the Gaussian before the tanh, [..., A] -> [...], in nats; that of the squashed one has no closed form."""
    return (log_std + 0.5 + HALF_LOG_2_PI).sum(-1)
