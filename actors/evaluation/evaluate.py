"""Evaluates a run's newest weights: `python -m actors.evaluation.evaluate RUN_DIR`, which `headrace eval` starts.

Each environment plays the same number of episodes. Otherwise short episodes would be counted more often than long ones. The
seeds differ from those of training.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np

from actors.agent import Agent, policy_seed
from actors.config import ActorSettings, EvaluatorConfig
from actors.envs.make import env_section, leave, make_env, open_family, read_env
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from actors.episodes import Episode
from actors.errors import EnvError, in_one_line
from actors.evaluation.lines import add_line
from actors.evaluation.options import EvaluationOptions, from_arguments
from actors.evaluation.summary import brief, describe, figures_of
from actors.exports.onnx.read import is_onnx, read_model
from actors.exports.onnx.run import OnnxInference
from actors.settings import read_settings
from learner.algorithms.base import ActingPolicy, Mode, make_algorithm
from learner.description import read_description
from learner.devices.errors import DeviceError
from learner.inference.base import Inference
from learner.inference.open import open_inference, run_description
from learner.saving.older import read_any
from learner.weights.checkpoint import CheckpointError, Weights, policy_weights
from transport.experience import Columns, ExperienceSpec, SpecError, bounded
from transport.names import UnknownName
from transport.run_dir import RunDir
from transport.text import ProgressReport, plain

ENVIRONMENTS = 8
SEED_OFFSET = 1_000_000_007  # far from any seed of training
SEED_STEP = 1_000_003  # between the seeds of two evaluations


class Played(NamedTuple):
    """The figures of an evaluation. `fault`: what ended it early, in one line; empty if nothing did."""

    figures: dict[str, Any]
    fault: str


def environments(
    settings: ActorSettings,
    count: int,
    config: EvaluatorConfig,
    seed_offset: int = SEED_OFFSET,
    beat: Callable[[], None] = lambda: None,
    raised: Callable[[str], None] | None = None,
) -> VectorEnv:
    """`count` environments for evaluation, or as many as an actor has if these are fewer: a simulator may allow but one; one of
    a program that connects. `beat` and `raised` as VectorEnv has them. Raises EnvError."""
    count = 1 if open_family(settings.env).decides_steps else min(count, settings.process.actors.envs_per_actor or count)
    seeds = [settings.process.seed + seed_offset + k for k in range(count)]
    return VectorEnv(settings.env, settings.spec, count, seeds, config, beat=beat, raised=raised)


class Player(Protocol):
    """Chooses the actions of K environments in an evaluation."""

    def reset(self, observation: Columns) -> None:
        """Episodes begin in all environments with observation[name] [K, *shape]."""

    def actions(self) -> np.ndarray:
        """[K] indices, or [K, A] floats within the environment's bounds."""

    def push(self, observation: Columns, ended: np.ndarray) -> None:
        """The next observation [K, *shape]; where `ended` [K] it is the first of a new episode."""


class PolicyPlayer(Agent):
    """A Headrace policy as a player."""

    def __init__(self, spec: ExperienceSpec, policy: ActingPolicy, count: int, mode: Mode = "greedy") -> None:
        super().__init__(spec, policy, count)
        self._spec, self._mode = spec, mode

    def actions(self) -> np.ndarray:
        return bounded(self._spec, self.act(self._mode)[0])


def play(env: VectorEnv, player: Player, episodes: int) -> Iterator[list[Episode]]:
    """Plays `episodes` new episodes. Yields after each vector step the counted episodes that ended in it."""
    quota = [episodes // env.count + (k < episodes % env.count) for k in range(env.count)]
    player.reset(env.reset())
    while any(quota):
        step = env.step(player.actions())
        player.push(step.observation, step.terminated | step.truncated)
        counted = []
        for episode in step.episodes:
            if quota[episode.env]:  # further episodes of this environment are not counted
                quota[episode.env] -= 1
                counted.append(episode)
        yield counted


def load_policy(
    run_dir: RunDir, settings: ActorSettings, best: bool, file: str = "", precision: str = "float32"
) -> tuple[ActingPolicy, dict[str, str]]:
    """The newest policy of a run (`best`: the best) or that of a `file`, and the metadata of its file.

    Raises CheckpointError, or DeviceError for an unknown precision.
    """
    path = Path(file) if file else run_dir.best if best else run_dir.latest
    if not file and not path.exists():
        missing, advice = ("evaluated no weights", "") if best else ("written no weights", ", or stop it")
        raise CheckpointError(f"run {run_dir.name} has {missing} yet: let it run a little longer{advice}")
    model, metadata = read_model(path) if path.is_file() and is_onnx(path) else (None, {})
    weights, metadata = ({}, metadata) if model else read_any(path)
    if metadata.get("spec_digest", settings.spec.digest) != settings.spec.digest:
        made_for = metadata.get("env", "another environment")
        raise CheckpointError(f"{path}: made for {made_for}, with another experience spec than run {run_dir.name}")
    if model:
        inference = OnnxInference(model, read_description(metadata["policy"].encode()))
        return make_algorithm(settings.algorithm).acting(settings.spec, inference), metadata
    return acting_policy(run_dir, settings, policy_weights(weights), precision), metadata


def acting_policy(run_dir: RunDir, settings: ActorSettings, weights: Weights | None, precision: str = "float32") -> ActingPolicy:
    """The run's policy with these weights; None: with zeros. Raises CheckpointError, DeviceError."""
    inference, policy = open_policy(run_dir, settings, precision)
    if weights is not None:
        inference.load(weights)
    return policy


def open_policy(run_dir: RunDir, settings: ActorSettings, precision: str = "float32") -> tuple[Inference, ActingPolicy]:
    """The run's network on one thread, to load weights into, and the policy that acts by it. Raises DeviceError."""
    algorithm = make_algorithm(settings.algorithm)
    description = run_description(run_dir, algorithm, settings.spec)
    inference = open_inference(algorithm, settings.spec, description, precision, threads=1)
    return inference, algorithm.acting(settings.spec, inference)


def check_same(settings: ActorSettings) -> None:
    """Raises EnvError if the environment's observations or actions differ from those that the policy was made for."""
    env = make_env(settings.env)
    try:
        found = experience_spec(env, settings.env, "none")
    finally:
        env.close()
    for ours, theirs in ((_shapes(found), _shapes(settings.spec)), (found.action, settings.spec.action)):
        if ours != theirs:
            raise EnvError(f"the policy was made for {theirs}, and {settings.env.id} as asked for has {ours}")


def _shapes(spec: ExperienceSpec) -> list[tuple[str, tuple[int, ...], str]]:
    return [(field.name, field.shape, field.dtype) for field in spec.fields]


def measure(settings: ActorSettings, policy: ActingPolicy, mode: Mode, episodes: int, seed: int = 0) -> Played:
    """Plays, and prints progress on stderr every few seconds. What was played before an environment raised counts. Another `seed`
    plays other episodes.

    Raises EnvError, also if an environment raises before an episode is over.
    """
    offset = SEED_OFFSET + seed * SEED_STEP
    env = environments(settings, min(ENVIRONMENTS, episodes), settings.process.evaluator, offset)
    policy.assign(policy_seed(settings.process.seed + offset), 0, env.count, env.count)
    progress = ProgressReport(episodes)
    played: list[Episode] = []
    fault = ""
    try:
        for counted in play(env, PolicyPlayer(settings.spec, policy, env.count, mode), episodes):
            played += counted
            if progress.due:
                print(f"{len(played)} of {episodes} episodes{progress.left(len(played))} …", file=sys.stderr, flush=True)
    except Exception as error:  # an environment may raise anything
        if not played:
            raise EnvError(f"no episode of {settings.env.id} could be played to its end: {in_one_line(error)}") from error
        fault = f"{len(played)} of {episodes} episodes of {settings.env.id} could be played: {in_one_line(error)}"
    finally:
        env.close()
    return Played(figures_of(env, played) | {"episode_returns": [episode.total_reward for episode in played]}, fault)


def at_tolerances(settings: ActorSettings, tolerances: Sequence[float]) -> dict[str, ActorSettings]:
    """The settings for each tolerance (metres). Raises EnvError where the environment has none."""
    others = {}
    for tolerance in tolerances:
        env = read_env(env_section(settings.env) | {"tolerance": tolerance})
        open_family(env)
        others[f"{tolerance:g}"] = replace(settings, env=env)
    return others


def remember(run_dir: RunDir, figures: dict[str, Any]) -> None:
    """Keeps what has been measured of the run's own weights in its own environment, for the card of an export."""
    try:
        add_line(run_dir.evaluated, {"time": round(time.time(), 1), **figures})
    except OSError as error:  # the run belongs to another user, or the disk is full
        print(f"headrace: {run_dir.evaluated.name} of the run was not written: {error.strerror}", file=sys.stderr)


def untrained(metadata: Mapping[str, str]) -> str:
    """A line that says that weights have never been trained; empty for others."""
    if metadata.get("epoch") != "0":
        return ""
    return f"policy v{metadata.get('policy_version')} is untrained: the learner had not finished an epoch when it was saved"


def own_stdout() -> TextIO:
    """Takes stdout for the figures: from now on, whatever a simulator prints goes to stderr."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return own


def main(arguments: list[str] | None = None, out: TextIO | None = None) -> int:
    """Prints the figures to `out`, by default stdout.

    Exit status 2: there is nothing to evaluate; 1: an environment raised before the end.
    """
    run_dir, options = from_arguments(sys.argv[1:] if arguments is None else arguments, EvaluationOptions)
    try:
        settings = read_settings(run_dir, None, options.env)
        if options.env:
            check_same(settings)
        if options.random:  # in the same environments with the same seeds
            policy, metadata = acting_policy(run_dir, settings, None), dict[str, str]()
        else:
            policy, metadata = load_policy(run_dir, settings, options.best, options.weights, options.precision)
        if line := untrained(metadata):
            print(f"headrace: {line}", file=sys.stderr)
        mode: Mode = "random" if options.random else "stochastic" if options.stochastic else "greedy"
        faults: list[str] = []

        def measured(chosen: ActorSettings) -> Played:
            played = measure(chosen, policy, mode, options.episodes, options.seed)
            if played.fault:
                faults.append(played.fault)
            return played

        others = at_tolerances(settings, options.tolerances)
        played = measured(settings)
        figures = {
            "run": run_dir.name,
            "env": settings.env.id,
            "algorithm": "random" if options.random else settings.algorithm.name,
            "policy_version": None if options.random else int(metadata.get("policy_version", -1)),
            "stochastic": options.stochastic or options.random,
            "seed": options.seed,
            **played.figures,
        }
        if others:
            figures["by_tolerance"] = {name: brief(measured(other).figures) for name, other in others.items()}
    except (CheckpointError, DeviceError, EnvError, SpecError, UnknownName) as error:
        print(f"headrace: {plain(str(error))}", file=sys.stderr)
        return 2
    except Exception as error:  # an environment may raise anything where it is made
        print(f"headrace: {in_one_line(error)}", file=sys.stderr)
        return 2
    if mode == "greedy" and options.precision == "float32" and not (options.env or options.weights or faults):
        remember(run_dir, figures)
    print(json.dumps(figures, allow_nan=False) if options.json else describe(figures), file=out, flush=True)
    for fault in faults:
        print(f"headrace: {plain(fault)}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    leave(lambda: main(out=own_stdout()))
