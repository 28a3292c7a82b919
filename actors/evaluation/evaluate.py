"""Evaluates a run's newest weights: `python -m actors.evaluation.evaluate RUN_DIR`, which `headrace eval` starts.

Each environment plays the same number of episodes. Otherwise short episodes would be counted more often than long ones. The
seeds differ from those of training.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from actors.actor import ActorSettings
from actors.agent import Agent
from actors.envs.errors import EnvError
from actors.envs.make import env_section, make_env, read_env
from actors.envs.spec import experience_spec
from actors.envs.vector import Episode, VectorEnv
from actors.evaluation.options import EvaluationOptions, from_arguments
from actors.settings import read_evaluator, read_settings
from learner.algorithms.base import ActingPolicy, Mode, make_algorithm
from learner.devices.errors import DeviceError
from learner.inference.open import open_inference, run_description
from learner.weights.checkpoint import CheckpointError, Weights, policy_weights, read
from transport.experience import ExperienceSpec, SpecError, bounded
from transport.names import UnknownName
from transport.run_dir import RunDir

ENVIRONMENTS = 8
SEED_OFFSET = 1_000_000_007  # far from any seed of training
PROGRESS_SECONDS = 5.0


def environments(settings: ActorSettings, count: int, most_steps: int, seed_offset: int = SEED_OFFSET) -> VectorEnv:
    """`count` environments for evaluation. Episodes are truncated after `most_steps`. Raises EnvError."""
    seeds = [settings.seed + seed_offset + k for k in range(count)]
    return VectorEnv(settings.env, settings.spec, count, seeds, evaluation=True, most_steps=most_steps)


def play(
    env: VectorEnv, spec: ExperienceSpec, policy: ActingPolicy, episodes: int, mode: Mode = "greedy"
) -> Iterator[list[Episode]]:
    """Plays `episodes` new episodes. Yields after each vector step the counted episodes that ended in it."""
    quota = [episodes // env.count + (k < episodes % env.count) for k in range(env.count)]
    agent = Agent(spec, policy, env.count)
    agent.reset(env.reset())
    while any(quota):
        step = env.step(bounded(spec, agent.act(mode)[0]))
        agent.push(step.observation, step.terminated | step.truncated)
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
    weights, metadata = read(path)
    if metadata.get("spec_digest", settings.spec.digest) != settings.spec.digest:
        made_for = metadata.get("env", "another environment")
        raise CheckpointError(f"{path}: made for {made_for}, with another experience spec than run {run_dir.name}")
    return acting_policy(run_dir, settings, policy_weights(weights), precision), metadata


def acting_policy(run_dir: RunDir, settings: ActorSettings, weights: Weights | None, precision: str = "float32") -> ActingPolicy:
    """The run's policy with these weights; None: with zeros. Raises CheckpointError, DeviceError."""
    algorithm = make_algorithm(settings.algorithm)
    description = run_description(run_dir, algorithm, settings.spec)
    inference = open_inference(algorithm, settings.spec, description, precision, threads=1)
    if weights is not None:
        inference.load(weights)
    return algorithm.acting(settings.spec, inference)


def interval(successes: int, episodes: int) -> tuple[float, float]:
    """95 % confidence interval of a rate: Wilson 1927, as in Agresti and Coull 1998, section 1."""
    z, rate = 1.959964, successes / episodes
    middle = rate + z * z / (2 * episodes)
    margin = z * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes**2))
    scale = 1 + z * z / episodes
    return max((middle - margin) / scale, 0.0), min((middle + margin) / scale, 1.0)  # rounding must not leave 0 to 1


def summarise(played: list[Episode]) -> dict[str, Any]:
    """The keys of `headrace eval --json` that are computed from episodes; `by_tier` only if episodes have groups."""
    rewards = np.array([episode.total_reward for episode in played])
    successes = [episode.success for episode in played if episode.success is not None]
    tiers = sorted({episode.group for episode in played if episode.group})
    by_tier = {tier: _brief([episode for episode in played if episode.group == tier]) for tier in tiers}
    return {
        "episodes": len(played),
        "return_mean": float(rewards.mean()),
        "return_std": float(rewards.std()),
        "return_min": float(rewards.min()),
        "length_mean": float(np.mean([episode.length for episode in played])),
        "success_rate": float(np.mean(successes)) if successes else None,
        "success_ci95": list(interval(sum(successes), len(successes))) if successes else None,
        "score_mean": float(np.mean([episode.score for episode in played])),
        "score_median": float(np.median([episode.score for episode in played])),
        **({"by_tier": by_tier} if by_tier else {}),
    }


def _brief(played: list[Episode]) -> dict[str, Any]:
    """The figures of a group of episodes."""
    figures = summarise([episode._replace(group="") for episode in played])
    return {name: figures[name] for name in ("episodes", "success_rate", "success_ci95", "score_mean", "return_mean")}


def describe(figures: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [
        f"{figures['run']}: {figures['env']} by {_policy(figures)}, "
        f"{figures['episodes']} episodes{' (stochastic)' if figures['stochastic'] else ''}",
        f"  return   {figures['return_mean']:,.1f} ± {figures['return_std']:,.1f} (lowest {figures['return_min']:,.1f})",
        f"  length   {figures['length_mean']:,.1f} steps",
    ]
    if figures["success_rate"] is not None:
        low, high = figures["success_ci95"]
        lines.append(f"  success  {figures['success_rate']:.0%} (95% interval {low:.0%} to {high:.0%})")
    lines.append(f"  score    {amount(figures['score_mean'])} on average, median {amount(figures['score_median'])}")
    lines += [f"  {tier:<8} {_describe_brief(brief)}" for tier, brief in figures.get("by_tier", {}).items()]
    lines += [f"  {size} m".ljust(10) + f" {_describe_brief(brief)}" for size, brief in figures.get("by_tolerance", {}).items()]
    return "\n".join(lines)


def amount(score: float) -> str:
    """A score as text; scores may be thousands (pixels) or hundredths (metres)."""
    return f"{score:,.1f}" if abs(score) >= 1 or score == 0 else f"{score:.4f}"


def _describe_brief(brief: dict[str, Any]) -> str:
    text = f"score {amount(brief['score_mean'])}, {brief['episodes']} episodes"
    if brief["success_rate"] is None:
        return text
    low, high = brief["success_ci95"]
    return f"success {brief['success_rate']:.1%} ({low:.1%} to {high:.1%}), {text}"


def _policy(figures: dict[str, Any]) -> str:
    version = figures["policy_version"]
    return "actions at random" if version is None else f"{figures['algorithm']}, policy v{version}"


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


def measure(settings: ActorSettings, policy: ActingPolicy, mode: Mode, episodes: int, most_steps: int) -> list[Episode]:
    """Plays, and prints progress on stderr every few seconds. Raises EnvError."""
    env = environments(settings, min(ENVIRONMENTS, episodes), most_steps)
    policy.assign(settings.seed + SEED_OFFSET, 0, env.count, env.count)
    next_report = time.monotonic() + PROGRESS_SECONDS
    played: list[Episode] = []
    try:
        for counted in play(env, settings.spec, policy, episodes, mode):
            played += counted
            if time.monotonic() >= next_report:
                next_report = time.monotonic() + PROGRESS_SECONDS
                print(f"{len(played)} of {episodes} episodes …", file=sys.stderr, flush=True)
    finally:
        env.close()
    return played


def by_tolerance(
    settings: ActorSettings, tolerances: Sequence[float], play_with: Callable[[ActorSettings], list[Episode]]
) -> Any:
    """The figures of a group at each tolerance (metres). Raises EnvError."""
    briefs = {}
    for tolerance in tolerances:
        other = replace(settings, env=read_env(env_section(settings.env) | {"tolerance": tolerance}))
        briefs[f"{tolerance:g}"] = _brief(play_with(other))
    return briefs


def main(arguments: list[str] | None = None) -> int:
    """Exit status 2: there is nothing to evaluate."""
    run_dir, options = from_arguments(sys.argv[1:] if arguments is None else arguments, EvaluationOptions)
    try:
        settings = read_settings(run_dir, None, options.env)
        if options.env:
            check_same(settings)
        if options.random:  # in the same environments with the same seeds
            policy, metadata = acting_policy(run_dir, settings, None), dict[str, str]()
        else:
            policy, metadata = load_policy(run_dir, settings, options.best, options.weights, options.precision)
        mode: Mode = "random" if options.random else "stochastic" if options.stochastic else "greedy"
        most_steps = read_evaluator(run_dir).max_episode_steps

        def play_with(chosen: ActorSettings) -> list[Episode]:
            return measure(chosen, policy, mode, options.episodes, most_steps)

        figures = {
            "run": run_dir.name,
            "env": settings.env.id,
            "algorithm": "random" if options.random else settings.algorithm.name,
            "policy_version": None if options.random else int(metadata.get("policy_version", -1)),
            "stochastic": options.stochastic or options.random,
            **summarise(play_with(settings)),
        }
        if options.tolerances:
            figures["by_tolerance"] = by_tolerance(settings, options.tolerances, play_with)
    except (CheckpointError, DeviceError, EnvError, SpecError, UnknownName) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    print(json.dumps(figures) if options.json else describe(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
