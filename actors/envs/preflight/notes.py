"""Notes of the pre-flight: what is not wrong with an environment, but often a mistake."""

from __future__ import annotations

from typing import Any

import gymnasium
import msgspec
import numpy as np
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, vector

from actors.config import EnvConfig
from actors.envs.base import Simulators
from actors.envs.foreign.masks import METHOD, MaskFromInfo
from actors.envs.preflight.parent import CODE_SCALE, ENDLESS_STEPS, may_hold_codes
from actors.envs.spec import integer_range, is_image, is_stacked, is_text, leaves, looks_like_an_image_of_integers
from transport.experience import Categorical, ExperienceSpec

IN_TURN = "env.wrappers see every step of an environment, so environments are stepped in turn, not all in one call"
SCALING = {
    "--algorithm.normalize-observation": (NormalizeObservation, vector.NormalizeObservation),
    "--algorithm.normalize-reward": (NormalizeReward, vector.NormalizeReward),
}
DARK = 32  # an image of uint8 that never reaches this value is no photograph


class Brightest:
    """The greatest value seen in each image of uint8 whose space allows up to 255."""

    def __init__(self, space: gymnasium.Space, observation: Any) -> None:
        self._space = space
        self._seen: dict[str, int] = {}
        self.see(observation)

    def see(self, observation: Any) -> None:
        for name, leaf, value in leaves(self._space, observation):
            bounds: Any = leaf
            if is_image(leaf) and str(bounds.dtype) == "uint8" and int(bounds.high.max()) == 255:
                self._seen[name] = max(self._seen.get(name, 0), int(np.max(value)))

    def scaled(self, spec: ExperienceSpec) -> ExperienceSpec:
        """The spec with small dark images read as codes, by a scale that does not depend on which of them were seen."""
        dark = {name for name, greatest in self._seen.items() if 0 < greatest < DARK}
        codes = [field.name in dark and may_hold_codes(field) for field in spec.fields]
        scaled = (
            msgspec.structs.replace(field, scale=CODE_SCALE) if code else field
            for field, code in zip(spec.fields, codes, strict=True)
        )
        return msgspec.structs.replace(spec, fields=tuple(scaled))

    def notes(self, spec: ExperienceSpec) -> tuple[str, ...]:
        scales = {field.name: field.scale for field in spec.fields}
        return tuple(
            f"{name} is an image of values up to 255, and none above {greatest} was seen: "
            + (
                f"such a small one counts as a grid of codes, divided by {1 / CODE_SCALE:g} instead of 255"
                if scales[name] == CODE_SCALE
                else f"if it is a grid of codes, wrap the environment so that its space has high={greatest}, or the network sees "
                "almost nothing of it"
            )
            for name, greatest in self._seen.items()
            if 0 < greatest < DARK
        )


def space_notes(
    env: gymnasium.Env,
    batch: Simulators | None,
    spec: ExperienceSpec,
    config: EnvConfig,
    default_stack: int,
    brightest: Brightest,
) -> tuple[str, ...]:
    """Notes about the observations and actions of an environment, and about its wrappers. `default_stack`: of its family."""
    return (
        *scaling_notes(env, batch),
        *left_out_notes(env, spec),
        *brightest.notes(spec),
        *(() if default_stack else stack_notes(env.observation_space, spec, config)),
        *_float_notes(spec),
        *integer_notes(env.observation_space),
    )


def stack_notes(space: gymnasium.Space, spec: ExperienceSpec, config: EnvConfig) -> tuple[str, ...]:
    """Notes about images that are not stacked because they are stacks of their own."""
    if spec.stack > 1 or config.stack:
        return ()
    shapes = {field.name: field.shape for field in spec.fields}
    return tuple(
        f"{name} is an image of {shapes[name][0]} channels, which counts as a stack of its own, so it is not stacked again: "
        "--env.stack 4 does so"
        for name, leaf, _ in leaves(space)
        if is_stacked(leaf)
    )


def _float_notes(spec: ExperienceSpec) -> tuple[str, ...]:
    """Notes about images of floats."""
    return tuple(
        f"{field.name} is an image of floats, which networks read as a vector: --env.quantise true stores it as bytes, and they "
        "read it with convolutions"
        for field in spec.visible
        if len(field.shape) == 3 and not field.is_image
    )


def scaling_notes(env: gymnasium.Env, batch: Simulators | None) -> tuple[str, ...]:
    """Notes about wrappers that scale by statistics of their own copy, which no checkpoint holds."""
    found: dict[str, str] = {}
    for each in (env, batch):
        inner: Any = each
        while inner is not None:
            found |= {option: type(inner).__name__ for option, kinds in SCALING.items() if isinstance(inner, kinds)}
            inner = getattr(inner, "env", None) or getattr(inner, "batch", None)
    return tuple(
        f"{name} scales by statistics of its own, which differ in each copy of the environment and are saved with no policy, so "
        f"that evaluations measure something else: leave it out, and take {option} true"
        for option, name in found.items()
    )


def left_out_notes(env: gymnasium.Env, spec: ExperienceSpec) -> tuple[str, ...]:
    """Notes about what an environment offers and no policy sees: texts, and a mask that is not in the observation."""
    space, notes = env.observation_space, list[str]()
    if isinstance(space, gymnasium.spaces.Dict):
        notes += [
            f"{name} is text, which no network reads: it is left out" for name, part in space.spaces.items() if is_text(part)
        ]
    masked = isinstance(spec.action, Categorical) and spec.action.masked
    if not masked and env.has_wrapper_attr(METHOD):
        discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
        wrapper = f"--env.wrappers {MaskFromInfo.__module__}:{MaskFromInfo.__name__} does"
        notes.append(
            f"it has {METHOD}(), which is not used: {wrapper if discrete else 'such a mask is of Discrete actions only'}"
        )
    return tuple(notes)


def integer_notes(space: gymnasium.Space) -> tuple[str, ...]:
    """Notes about images of integers, which are stored as bytes by their bounds."""
    notes = []
    for name, leaf, _ in leaves(space):
        if not looks_like_an_image_of_integers(leaf):
            continue
        box: Any = leaf
        low, width = integer_range(box)
        values = f"{name} is an image of {box.dtype} with values from {low:,} to {low + width:,}"
        advice = "if there are fewer, wrap the environment so that its space has closer bounds"
        if not is_image(leaf):
            notes.append(
                f"{values}, too many to be stored as bytes, so a network reads it as a vector of unscaled numbers: {advice}"
            )
        elif width > 255:
            notes.append(f"{values}, which are stored in 256 levels: {advice}")
    return tuple(notes)


def endless_note(env_id: str, steps: int) -> str:
    """The note about an environment whose episode has not ended in `steps` steps."""
    return (
        f"no episode of {env_id} has ended in {steps:,} random steps, and it has no limit of steps. Evaluations end theirs after "
        f"{ENDLESS_STEPS:,} steps unless --evaluator.max-episode-steps is given; --env.max-episode-steps N is for training, too"
    )
