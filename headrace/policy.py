"""`headrace.load`: a learned policy that takes and gives what a Gymnasium environment gives and takes."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import msgspec
import numpy as np

from actors.agent import Agent
from actors.config import EnvConfig
from actors.envs.errors import EnvError
from actors.envs.make import make_env, read_env, without_foreign_options
from actors.envs.spaces import read_space
from actors.envs.spec import flatten_observation, leaves, to_env_action
from actors.evaluation.evaluate import load_policy
from actors.settings import read_settings
from headrace.errors import ConfigurationError, one_line, raises_one_line
from headrace.names import run_folder
from learner.weights.export import load as load_exported
from transport.experience import Columns, bounded
from transport.run_dir import RunDir

if TYPE_CHECKING:
    from transport.experience import ExperienceSpec

UNKNOWN_VERSION = -1


class Policy:
    """A policy, and the observations that it remembers where it acts on several of them.

    Attributes: observation_space, action_space; about, what its file says of it: run, env, algorithm, policy_version.
    """

    def __init__(
        self,
        spec: ExperienceSpec,
        acting: Any,
        env: Callable[[], EnvConfig],
        spaces: tuple[gymnasium.Space, gymnasium.Space],
        about: dict[str, Any],
    ) -> None:
        self.spec, self.about = spec, about
        self._env = env  # read when it is asked for: to act, the environment's module need not be there
        self.observation_space, self.action_space = spaces
        self.acting = acting
        self._agent: Agent | None = None
        self._count = 0
        self._started = np.ones(0, bool)
        self.seed(secrets.randbits(31))

    def __repr__(self) -> str:
        version, algorithm = self.about.get("policy_version"), self.about.get("algorithm")
        return f"<headrace.Policy {algorithm} for {self.about.get('env')}, version {version}>"

    @property
    def env(self) -> EnvConfig:
        """The environment that it has learned in."""
        return self._env()

    def seed(self, seed: int) -> None:
        """Begins the stream of random choices anew: those of predict(…, deterministic=False)."""
        self.acting.assign(seed, 0, max(self._count, 1), max(self._count, 1))

    def reset(self, ended: Any = None) -> None:
        """Forgets earlier observations: call it where an episode begins. `ended` [K] bool: only in those of K environments."""
        if ended is None or self._agent is None:
            self._started = np.ones(self._count, bool)
            return
        where = np.asarray(ended, bool)
        if where.shape != (self._count,):
            raise ConfigurationError(
                f"reset: `ended` has the shape {where.shape}, but predict was given {self._count} observations"
            )
        self._started |= where

    def predict(self, observation: Any, deterministic: bool = True) -> Any:
        """The action for one observation of `observation_space`, or the actions for a batch of them (one more axis in front).

        Gives what `action_space` holds: an int, or an array; for a batch an array [K, …]. Raises ConfigurationError for an
        observation of another shape.
        """
        with one_line():
            rows, single = _rows(self.observation_space, observation)
            seen = self._stored(rows)
            chosen, _ = self._observing(seen, len(rows)).act("greedy" if deterministic else "stochastic")
            actions = [to_env_action(self.action_space, action) for action in bounded(self.spec, chosen)]
        return actions[0] if single else np.array(actions)

    def _stored(self, rows: list[Any]) -> Columns:
        """{field name: [K, *shape]} as experience rests, which is what the network was trained on."""
        values = [flatten_observation(self.observation_space, row) for row in rows]
        for field in self.spec.fields:
            for row in values:
                if row[field.name].shape != field.shape:
                    raise ConfigurationError(
                        f"{field.name} has the shape {row[field.name].shape}, the policy's has {field.shape}"
                    )
        return {field.name: np.stack([field.encode(row[field.name]) for row in values]) for field in self.spec.fields}

    def _observing(self, seen: Columns, count: int) -> Agent:
        if self._agent is None or self._count != count:
            self._agent, self._count = Agent(self.spec, self.acting, count), count
            self._agent.reset(seen)
        else:
            self._agent.push(seen, self._started)
        self._started = np.zeros(count, bool)
        return self._agent


@raises_one_line
def load(path_or_run: str | os.PathLike[str], best: bool = False) -> Policy:
    """The policy of a run (a `Run`, its folder or its name) or of a file that `headrace export` has written.

    `best`: a run's best weights instead of its newest. Raises ConfigurationError.
    """
    path = Path(path_or_run)
    return _load_file(path) if path.is_file() else _load_run(RunDir(run_folder(path)), best)


def _load_file(path: Path) -> Policy:
    inference, spec, algorithm, metadata = load_exported(path)
    config = msgspec.json.decode(metadata["config"])
    section = config["env"] if "format" in config else without_foreign_options(config["env"])
    acting = algorithm.acting(spec, inference)
    return _policy(spec, acting, metadata, metadata.get("spaces", ""), section["id"], lambda: read_env(section))


def _load_run(run_dir: RunDir, best: bool) -> Policy:
    if not run_dir.settings("evaluator").is_file():  # the run is of an older version
        from deploy import settings as files
        from deploy.config.layers import load_run_config

        files.write(run_dir, load_run_config(run_dir.config))
    settings = read_settings(run_dir)
    acting, metadata = load_policy(run_dir, settings, best)
    spaces = run_dir.spaces.read_text() if run_dir.spaces.is_file() else ""
    return _policy(settings.spec, acting, metadata | {"run": run_dir.name}, spaces, settings.env.id, lambda: settings.env)


def _policy(
    spec: ExperienceSpec, acting: Any, metadata: dict[str, str], spaces: str, env_id: str, env: Callable[[], EnvConfig]
) -> Policy:
    about = {
        "run": metadata.get("run"),
        "env": env_id,
        "algorithm": metadata.get("algorithm"),
        "policy_version": int(metadata.get("policy_version", UNKNOWN_VERSION)),
    }
    return Policy(spec, acting, env, _read_spaces(spaces) if spaces else _ask_for_spaces(env_id, env), about)


def _read_spaces(described: str) -> tuple[gymnasium.Space, gymnasium.Space]:
    data = msgspec.json.decode(described)
    return read_space(data["observation"]), read_space(data["action"])


def _ask_for_spaces(env_id: str, env: Callable[[], EnvConfig]) -> tuple[gymnasium.Space, gymnasium.Space]:
    """The environment's spaces, where a run or file of an older version does not describe them."""
    try:
        made = make_env(env())
    except EnvError as error:
        raise ConfigurationError(f"the spaces of {env_id} are not recorded, and it cannot be made here: {error}") from error
    with contextlib.closing(made):
        return made.observation_space, made.action_space


def _rows(space: gymnasium.Space, observation: Any) -> tuple[list[Any], bool]:
    """The observations one by one, and whether there was one alone."""
    _, leaf, value = next(leaves(space, observation))
    axes = np.ndim(value) - len(leaf.shape or ())
    if axes not in (0, 1):
        shape = list(np.shape(value))
        raise ConfigurationError(
            f"an observation has the shape {list(leaf.shape or ())}, with one more axis for a batch; not {shape}"
        )
    return ([_row(space, observation, k) for k in range(len(value))], False) if axes else ([observation], True)


def _row(space: gymnasium.Space, observation: Any, k: int) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: _row(part, observation[name], k) for name, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_row(part, value, k) for part, value in zip(space.spaces, observation, strict=True))
    return observation[k]
