"""Behaviour cloning: before a new run learns, its policy imitates the demonstrations.

Pomerleau 1991 (doi:10.1162/neco.1991.3.1.88).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from learner.algorithms.base import Algorithm
from learner.weights.checkpoint import CheckpointError, Weights, as_array
from replay.config import ReplayConfig
from replay.log.demonstrations import Demonstrations
from replay.shards import WHOLE
from replay.table.layout import layout
from transport.experience import Categorical, ExperienceSpec, MultiCategorical
from transport.run_dir import RunDir

if TYPE_CHECKING:
    from torch import Tensor, nn

BATCH, LEARNING_RATE = 256, 1e-3
BEATS = 50  # steps between two signs of life
OBSERVED = 16_384  # rows by which inputs are normalised


def demonstration_spec(spec: ExperienceSpec) -> ExperienceSpec:
    """How a run's demonstrations are cut: as its experience, but as single steps where that is rollouts."""
    if spec.unit != "rollouts":
        return spec
    return msgspec.structs.replace(spec, unit="transitions", n_step=1, burn_in=0, goals=0, extras=())


def obstacle(algorithm: Algorithm, spec: ExperienceSpec) -> str:
    """Why the policy cannot imitate; empty if it can."""
    if not algorithm.imitates:
        return "the outputs of its network are no policy: ppo, reppo and sac have one"
    if spec.unit == "sequences" or any(column.once for column in spec.extras):  # the state before a chunk
        return "policies with a memory cannot imitate yet"
    return ""


def clone(
    algorithm: Algorithm,
    spec: ExperienceSpec,
    run_dir: RunDir,
    steps: int,
    seed: int,
    say: Callable[[str], None],
    beat: Callable[[], object],
) -> Weights:
    """The weights of a policy after so many steps. Raises CheckpointError where they are not finite, ValueError, OSError."""
    import torch

    from learner.devices.capabilities import fork_random

    shape = demonstration_spec(spec)
    shown = Demonstrations(run_dir.demonstrations, shape, ReplayConfig(selector="uniform", min_size=1), seed, WHOLE)
    batch = {name: np.zeros(size, dtype) for name, size, dtype in layout(shape, BATCH).arrays}
    with fork_random(torch.device("cpu")):
        torch.manual_seed(seed)
        policy = algorithm.policy(spec)
        _observe(policy, shown, shape)
        optimiser = torch.optim.Adam(policy.parameters(), LEARNING_RATE)
        figures = []
        for step in range(steps):
            if step % BEATS == 0:
                beat()
            shown.draw(batch, 1)
            loss, figure = _loss(policy, spec, batch)
            optimiser.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            figures.append(figure)
    weights = {name: as_array(value).copy() for name, value in policy.state_dict().items()}
    if not all(np.isfinite(array).all() for array in weights.values()):
        raise CheckpointError("cloning the demonstrations has led to weights that are not finite")
    last = float(np.mean(figures[-max(steps // 10, 1) :]))
    named = isinstance(spec.action, Categorical | MultiCategorical)
    say(f"imitates {shown.size:,} steps of demonstrations: {f'{last:.0%} of the actions' if named else f'error {last:.3g}'}")
    return weights


def _loss(policy: nn.Module, spec: ExperienceSpec, batch: dict[str, np.ndarray]) -> tuple[Tensor, float]:
    """The loss of a batch, and for people the share of equal actions, or the mean error of bounded ones."""
    import torch
    from torch.nn import functional

    from learner.algorithms.arithmetic.masks import masked
    from learner.networks.stacks import stack_windows

    windows = {field.name: torch.from_numpy(batch[f"observation/{field.name}"]) for field in spec.fields}
    seen = stack_windows(windows, torch.from_numpy(batch["observation_index"]))
    outputs, action = policy(seen), torch.from_numpy(batch["action"])
    if isinstance(spec.action, Categorical):
        logits, wanted = masked(spec, outputs, seen), action.long()
        return functional.cross_entropy(logits, wanted), (logits.argmax(1) == wanted).float().mean().item()
    if isinstance(spec.action, MultiCategorical):
        choices = list(zip(outputs.split(list(spec.action.sizes), 1), action.long().unbind(1), strict=True))
        loss = torch.stack([functional.cross_entropy(logits, wanted) for logits, wanted in choices]).sum()
        equal = torch.stack([logits.argmax(1) == wanted for logits, wanted in choices]).all(0)
        return loss, equal.float().mean().item()
    mean = outputs[:, : action.shape[1]]
    error = torch.tanh(mean) - torch.tanh(action)
    return error.square().mean(), error.abs().mean().item()


def _observe(policy: nn.Module, shown: Demonstrations, spec: ExperienceSpec) -> None:
    """Gives the statistics of the demonstrations to inputs that are normalised."""
    import torch

    from learner.networks.inputs import observe

    batch = {name: np.zeros(size, dtype) for name, size, dtype in layout(spec, OBSERVED).arrays}
    shown.draw(batch, 1)
    newest = batch["observation_index"][:, -1]
    rows = {field.name: batch[f"observation/{field.name}"][np.arange(OBSERVED), newest] for field in spec.fields}
    observe(policy, {name: torch.from_numpy(values) for name, values in rows.items()})
