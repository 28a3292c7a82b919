"""`headrace.load`: a learned policy that acts on plain Gymnasium observations."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np

from actors.agent import Agent, policy_seed
from actors.config import EnvConfig, EvaluatorConfig
from actors.envs.foreign.actions import to_env_action, to_env_actions
from actors.envs.make import read_env
from actors.envs.spaces import read_spaces
from actors.envs.spec import flatten_batch, leaves
from actors.evaluation.evaluate import load_policy
from actors.exports.onnx.read import is_onnx
from actors.exports.onnx.read import load as load_onnx
from actors.settings import EVALUATOR, read_settings
from deploy.config.trust import check_exported, check_run
from deploy.views.sharing.named import policy_file
from headrace.errors import ConfigurationError, one_line, raises_one_line
from headrace.names import run_folder
from learner.algorithms.base import ActingPolicy
from learner.saving.export import load as load_exported
from transport.experience import Columns, ExperienceSpec, bounded, read_spec
from transport.files.documents import decode, read_bytes, read_document
from transport.run_dir import RunDir

UNKNOWN_VERSION = -1
LIMITS = ("max_episode_steps", "max_idle_steps")  # of an episode of an evaluation, in the evaluator's section


class Policy:
    """A learned policy.

    A policy with a stack of observations or with memory keeps both between calls of `predict`: call `reset` where an episode
    begins. All other policies depend on the observation alone.
    """

    spec: ExperienceSpec
    env: EnvConfig  # the environment of training
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    about: dict[str, Any]  # run, env, algorithm, policy_version

    def __init__(
        self,
        spec: ExperienceSpec,
        acting: ActingPolicy,
        env: EnvConfig,
        spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]],
        about: dict[str, Any],
        check_env: Callable[[], None] = lambda: None,
        environments: int = 0,
        evaluator: EvaluatorConfig = EvaluatorConfig(),  # noqa: B008
    ) -> None:
        """`check_env` raises ConfigError where `env` names code that must not be run. `environments`: the most in a process; 0:
        not known. `evaluator` has the limits of an episode of an evaluation."""
        self.check_env, self.environments, self.evaluator = check_env, environments, evaluator
        self.spec, self.env, self.about = spec, env, about
        self.observation_space, self.action_space = spaces
        self.acting = acting
        self._agent: Agent | None = None
        self._count = 0  # observations of the last predict()
        self._started = np.ones(0, bool)  # [count] where the next observation begins an episode
        self.seed(secrets.randbits(31))

    def __repr__(self) -> str:
        version, algorithm = self.about.get("policy_version"), self.about.get("algorithm")
        return f"<headrace.Policy {algorithm} for {self.about.get('env')}, version {version}>"

    def seed(self, seed: int) -> None:
        """Seeds the random actions of predict(…, deterministic=False)."""
        self.acting.assign(policy_seed(seed), 0, max(self._count, 1), max(self._count, 1))

    def reset(self, ended: Any = None) -> None:
        """Forgets earlier observations and memory: call it where an episode begins. `ended` [K] bool: only for these of the K
        environments of a batch. Raises ConfigurationError if `ended` has another shape."""
        if ended is None or self._agent is None:
            self._started = np.ones(self._count, bool)
            return
        where = np.asarray(ended, bool)
        if where.shape != (self._count,):
            raise ConfigurationError(
                f"reset: `ended` has the shape {where.shape}, but the last predict() had {self._count} observations"
            )
        self._started |= where

    def predict(self, observation: Any, deterministic: bool = True) -> Any:
        """The action for one observation of `observation_space`, or the actions [K, …] for a batch of K (one more axis in front).

        Actions have the form of `action_space`: an int for Discrete, a dict or tuple for Dict or Tuple, else an array. Those of a
        batch have arrays with one more axis, and it is computed at once. If K differs from the last call, all episodes begin
        anew. Raises ConfigurationError for an observation of another shape.
        """
        with one_line():
            batch, single = _as_batch(self.observation_space, observation)
            flat = flatten_batch(self.observation_space, batch)
            stored = {field.name: field.encode(flat[field.name]) for field in self.spec.fields}
            agent = self._observe(stored, len(next(iter(stored.values()))))
            chosen, _ = agent.act("greedy" if deterministic else "stochastic")
            actions = bounded(self.spec, chosen)
            if not single:
                return to_env_actions(self.action_space, actions)
            action = to_env_action(self.action_space, actions[0])
            return int(action) if isinstance(action, np.integer) else action

    def _observe(self, stored: Columns, count: int) -> Agent:
        if self._agent is None or self._count != count:
            self._agent, self._count = Agent(self.spec, self.acting, count), count
            self._agent.reset(stored)
        else:
            self._agent.push(stored, self._started)
        self._started = np.zeros(count, bool)
        return self._agent


@raises_one_line
def load(path_or_run: str | os.PathLike[str], best: bool = False, trust: bool = False) -> Policy:
    """The policy of a run (a `Run`, its folder or its name), or of a file that `headrace export` has written: safetensors, or
    ONNX, which onnxruntime computes; `hub:OWNER/NAME` is one of Hugging Face.

    `best`: the run's best weights instead of its newest; not for a file. The environment need not be installed. A file, or a
    run that this account has not made on this machine, may name an algorithm or network of one's own: `trust` allows to run
    that code.
    Raises ConfigurationError.
    """
    path = policy_file(os.fspath(path_or_run))
    if best and path is not None:
        raise ConfigurationError(f"{path} holds one policy: `headrace export RUN FILE --best` writes the best of a run")
    return _load_run(RunDir(run_folder(Path(path_or_run))), best, trust) if path is None else _load_file(path, trust)


def _load_file(path: Path, trust: bool) -> Policy:
    def check(config: dict[str, Any], section: str) -> None:
        if not trust:
            check_exported({section: config.get(section, {})}, path)

    read = load_onnx if is_onnx(path) else load_exported
    inference, spec, algorithm, metadata = read(path, check=partial(check, section="algorithm"))
    if "spaces" not in metadata:
        raise ConfigurationError(f"{path} does not describe the environment's spaces: export it again from its run")
    config = decode(metadata["config"], dict[str, Any])
    env, spaces = read_env(config["env"]), read_spaces(metadata["spaces"])
    acting, about = algorithm.acting(spec, inference), _about(metadata, env)
    limits = {name: value for name, value in config.get("evaluator", {}).items() if name in LIMITS}
    evaluator = msgspec.convert(limits, EvaluatorConfig)
    return Policy(spec, acting, env, spaces, about, partial(check, config, "env"), evaluator=evaluator)


def _load_run(run_dir: RunDir, best: bool, trust: bool) -> Policy:
    read_spec(read_bytes(run_dir.spec))  # first, because its error says so where the run is of an older version
    if not run_dir.spaces.is_file():
        raise ConfigurationError(f"{run_dir.spaces} is missing: `headrace up --run {run_dir.name}` writes it")
    path = run_dir.settings(EVALUATOR)
    config = read_document(path, dict[str, Any])

    def check(section: str) -> None:
        if not trust:
            check_run({section: config.get(section, {})}, path, run_dir, "pass trust=True")

    check("algorithm")
    settings = read_settings(run_dir)
    acting, metadata = load_policy(run_dir, settings, best)
    about = _about(metadata | {"run": run_dir.name}, settings.env)
    spaces = read_spaces(read_bytes(run_dir.spaces))
    given = settings.process.actors.envs_per_actor, settings.process.evaluator
    return Policy(settings.spec, acting, settings.env, spaces, about, partial(check, "env"), *given)


def _about(metadata: Mapping[str, str], env: EnvConfig) -> dict[str, Any]:
    return {
        "run": metadata.get("run"),
        "env": env.id,
        "algorithm": metadata.get("algorithm"),
        "policy_version": int(metadata.get("policy_version", UNKNOWN_VERSION)),
    }


def _as_batch(space: gymnasium.Space[Any], observation: Any) -> tuple[Any, bool]:
    """The observation with arrays [K, …] as its leaves, and whether it was a single one. Raises ConfigurationError."""
    try:
        found = [(name, leaf.shape or (), np.asarray(value)) for name, leaf, value in leaves(space, observation)]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigurationError(f"the observation does not fit {space} ({type(error).__name__}: {error})") from error
    _, shape, value = found[0]
    single = value.ndim == len(shape)
    count = () if single or not value.ndim else (len(value),)
    for name, shape, value in found:
        if value.shape != (*count, *shape):
            wanted = f"{list(shape)}, with one more axis for a batch"
            raise ConfigurationError(f"{name} has the shape {list(value.shape)}; the policy needs {wanted}")
    return _map(space, observation, single), single


def _map(space: gymnasium.Space[Any], observation: Any, single: bool) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: _map(part, observation[name], single) for name, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_map(part, value, single) for part, value in zip(space.spaces, observation, strict=True))
    return np.asarray(observation)[None] if single else np.asarray(observation)
