"""The regression targets of both ways to compute the loss."""

from __future__ import annotations

import torch
from torch import Tensor

from learner.algorithms.arithmetic.masked import masked
from learner.algorithms.arithmetic.returns import double_q_target, munchausen_bonus, soft_value
from learner.algorithms.arithmetic.transitions import Transition
from learner.algorithms.dqn.config import MUNCHAUSEN_LEAST, MUNCHAUSEN_TEMPERATURE, DqnConfig
from transport.experience import ExperienceSpec


class Targets:
    """Targets [b] from Q-values [b, n], of which forbidden actions are left out."""

    def __init__(self, spec: ExperienceSpec, config: DqnConfig, scale: Tensor | None) -> None:
        """`scale`: the running scale of Q-values, 0-d, if there is one."""
        self._spec, self._alpha, self._scale = spec, config.munchausen, 1.0 if scale is None else scale

    def double(self, step: Transition, selecting: Tensor, valuing: Tensor) -> Tensor:
        """Next Q-values of the network that chooses the action, and of the one that evaluates it."""
        return double_q_target(step.return_, step.discount, masked(self._spec, selecting, step.next_observation), valuing)

    def munchausen(self, step: Transition, now: Tensor, valuing: Tensor) -> Tensor:
        """The target network's Q-values of the observations and of the next ones.

        Vieillard et al. 2020 (arXiv:2007.14430, eq. 1). Of n steps the first alone has a bonus: the others' Q-values would each
        need another pass.
        """
        temperature, least = MUNCHAUSEN_TEMPERATURE * self._scale, MUNCHAUSEN_LEAST * self._scale
        bonus = munchausen_bonus(masked(self._spec, now, step.observation), step.action, temperature, least)
        bootstrap = soft_value(masked(self._spec, valuing, step.next_observation), temperature)
        return step.return_ + self._alpha * bonus + torch.where(step.discount == 0, 0.0, step.discount * bootstrap)
