"""What is exported: a policy with its environment's spaces, and the parts of it that every format needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.envs.foreign.actions import choices
from actors.envs.spaces import read_spaces
from actors.envs.spec import leaves
from learner.description import Op, PolicyDescription, read_description
from learner.saving.export import read_exported
from learner.weights.checkpoint import CheckpointError, Weights
from transport.experience import Categorical, ExperienceSpec, read_spec


class PortablePolicy(NamedTuple):
    """A policy whose every part is known: its greedy action is the allowed one with the highest output, or the bounded mean."""

    spec: ExperienceSpec
    description: PolicyDescription
    weights: Weights
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, str]  # of the exported file

    @property
    def program(self) -> Sequence[Op]:
        assert self.description.program is not None
        return self.description.program

    @property
    def observations(self) -> dict[str, gymnasium.Space[Any]]:
        """The space of each part of an observation, by the name of its field."""
        return {name: space for name, space, _ in leaves(self.observation_space)}

    def action_table(self) -> np.ndarray | None:
        """[n, choices] the choices that each of n actions stands for; None where an action is an index, or no single choice."""
        if not isinstance(self.spec.action, Categorical) or isinstance(self.action_space, spaces.Discrete):
            return None
        sizes = choices(self.action_space)
        return np.stack(np.unravel_index(np.arange(self.spec.action.n), sizes), axis=-1)


def read_portable(path: Path) -> PortablePolicy:
    """Of a file that `headrace export` has written. Raises CheckpointError where other runtimes cannot compute it."""
    weights, metadata, _ = read_exported(path)
    if not {"policy", "spaces"} <= metadata.keys():
        raise CheckpointError(f"{path} does not describe its network: export it again from its run")
    description = read_description(metadata["policy"].encode())
    if description.program is None:
        raise CheckpointError(
            f"the network has a part that exports do not know: {description.unknown}. Export it as safetensors, or build it of "
            "the parts that actors compute by numpy"
        )
    observation, action = read_spaces(metadata["spaces"])
    return PortablePolicy(read_spec(metadata["spec"].encode()), description, weights, observation, action, metadata)


def normaliser(policy: PortablePolicy) -> Mapping[str, np.ndarray] | None:
    """count, mean and variance of the observations; None where they are not normalised."""
    names = policy.program[0].tensors
    return dict(zip(("count", "mean", "variance"), (policy.weights[name] for name in names), strict=True)) if names else None
