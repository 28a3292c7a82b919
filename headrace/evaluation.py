"""`headrace.evaluate`: measures a policy, with the results of `headrace eval --json`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import msgspec
import numpy as np

from actors.config import EnvConfig
from actors.envs.make import make_env, open_family, read_env
from actors.envs.spec import leaves
from actors.envs.vector import VectorEnv
from actors.errors import EnvError
from actors.evaluation.evaluate import ENVIRONMENTS, SEED_OFFSET, PolicyPlayer, play
from actors.evaluation.summary import figures_of
from deploy.errors import ConfigError
from headrace.errors import ConfigurationError, raises_one_line
from headrace.names import reference
from headrace.policy import Policy, load
from learner.algorithms.base import Mode


@raises_one_line
def evaluate(
    policy: Policy | str | os.PathLike[str],
    env: gymnasium.Env | str | Callable[..., gymnasium.Env] | Mapping[str, Any] | None = None,
    episodes: int = 100,
    deterministic: bool = True,
    seed: int = 0,
    trust: bool = False,
) -> dict[str, Any]:
    """Plays `episodes` episodes and returns the document of `headrace eval --json`.

    `policy` may also be a run or a file, as `load` takes it, with `trust`. `env` is an environment, which is not closed; or an
    id, as `--env` takes it; or a function that makes an environment; or a mapping of the [env] section. None: the environment
    of training. The seeds differ from those of training. Raises ConfigurationError.
    """
    policy = policy if isinstance(policy, Policy) else load(policy, trust=trust)
    if episodes < 1:
        raise ConfigurationError(f"episodes must be at least 1, not {episodes}")
    if env is None and not trust:
        policy.check_env()
    given = gymnasium.Wrapper(env) if isinstance(env, gymnasium.Env) else None  # wrapped, it is stepped itself: see VectorEnv
    config = _of_given(policy, trust) if isinstance(env, gymnasium.Env) else policy.env if env is None else _read_env(env)
    count = 1 if given is not None else min(ENVIRONMENTS, episodes, policy.environments or ENVIRONMENTS)
    seeds = [seed + SEED_OFFSET + k for k in range(count)]

    def make(config: EnvConfig, *, evaluation: bool) -> gymnasium.Env:
        return make_env(config, evaluation=evaluation) if given is None else given

    vector = VectorEnv(config, policy.spec, count, seeds, policy.evaluator, make)
    try:
        _check_same(policy, vector.example)
        policy.seed(seed + SEED_OFFSET)
        mode: Mode = "greedy" if deterministic else "stochastic"
        player = PolicyPlayer(policy.spec, policy.acting, vector.count, mode)
        played = [episode for ended in play(vector, player, episodes) for episode in ended]
    finally:
        if given is None:
            vector.close()
    known = policy.about | {"env": "a given environment" if given is not None else config.id, "stochastic": not deterministic}
    return known | figures_of(vector, played)


def _of_given(policy: Policy, trust: bool) -> EnvConfig:
    """The configuration for an environment that the user has made: that of training, because its family knows more. Where this
    family is not installed, or is code that must not be run, one of which nothing is known."""
    try:
        if not trust:
            policy.check_env()
        open_family(policy.env)
    except (ConfigError, EnvError):
        return msgspec.structs.replace(policy.env, id="given", options=None)
    return policy.env


def _read_env(env: str | Callable[..., gymnasium.Env] | Mapping[str, Any]) -> EnvConfig:
    section = dict(env) if isinstance(env, Mapping) else {"id": env}
    return read_env(section | {"id": reference(section.get("id"), "env")})


def _check_same(policy: Policy, env: gymnasium.Env) -> None:
    """Raises ConfigurationError unless the environment's spaces have the shapes, types and choices of those of training."""
    for kind, theirs, ours in (
        ("observations", env.observation_space, policy.observation_space),
        ("actions", env.action_space, policy.action_space),
    ):
        if _shape(theirs) != _shape(ours):
            raise ConfigurationError(f"the policy was trained with {kind} {ours}; this environment has {theirs}")


def _shape(space: gymnasium.Space[Any]) -> list[tuple[str, type, tuple[int, ...] | None, np.dtype | None, Any]]:
    return [(name, type(leaf), leaf.shape, leaf.dtype, _choices(leaf)) for name, leaf, _ in leaves(space)]


def _choices(leaf: gymnasium.Space[Any]) -> Any:
    """The number of values of each choice; None if there are none but by the shape."""
    if isinstance(leaf, gymnasium.spaces.MultiDiscrete):
        return leaf.nvec.tolist()
    return int(leaf.n) if isinstance(leaf, gymnasium.spaces.Discrete) else None
