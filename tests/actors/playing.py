"""What the tests of environments share: making, stepping and refusing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.config import EnvConfig
from actors.envs.make import make_env, read_env
from actors.envs.preflight.child import write_report
from actors.envs.preflight.parent import Line, PreflightRequest, read_report
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from actors.errors import EnvError
from learner.algorithms.base import Needs
from transport.experience import Categorical, ExperienceSpec, MultiCategorical

TOYS = "tests.actors.toy_envs"


def spec_of(config: EnvConfig, needs: Needs = Needs()) -> ExperienceSpec:  # noqa: B008
    env = make_env(config)
    try:
        return experience_spec(env, config, "none", needs)
    finally:
        env.close()


def vector(env: EnvConfig | dict[str, Any] | str, count: int = 3, first_seed: int = 0, **more: Any) -> VectorEnv:
    """`count` environments of a configuration, an env section, or an id, seeded from `first_seed` on."""
    config = read_env({"id": env} if isinstance(env, str) else env) if not isinstance(env, EnvConfig) else env
    return VectorEnv(config, spec_of(config), count, range(first_seed, first_seed + count), **more)


def random_actions(spec: ExperienceSpec, count: int, random: np.random.Generator) -> np.ndarray:
    if isinstance(spec.action, Categorical):
        return random.integers(spec.action.n, size=count)
    if isinstance(spec.action, MultiCategorical):
        return random.integers(spec.action.sizes, size=(count, len(spec.action.sizes)))
    return random.uniform(spec.action.low, spec.action.high, (count, len(spec.action.low))).astype(np.float32)


def tried(folder: Path, env: dict[str, Any] | str, copies: int = 1) -> Line:
    """The last line of the pre-flight's child about an env section or a toy, here without a process of its own."""
    section = {"id": f"{TOYS}:{env}"} if isinstance(env, str) else env
    path = folder / "report"
    write_report(PreflightRequest(section, "lz4", str(path), copies))
    return read_report(path)[-1]


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The one line with which a call is refused."""
    with pytest.raises(EnvError) as refused:
        call(*arguments, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message
