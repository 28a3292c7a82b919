"""How good a run's newest weights are: `python -m actors.evaluate RUN_DIR`, behind `headrace eval`.

Every environment plays the same number of episodes, so that short ones are not counted more often than long ones. Seeds
are not those of training.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from actors.__main__ import read_settings
from actors.actor import ActorSettings
from actors.config import EvaluatorConfig
from actors.envs.errors import EnvError
from actors.envs.vector import Episode, VectorEnv
from actors.stack import Stack
from learner.checkpoint import CheckpointError, load_into, read
from learner.networks import QNetwork, build_network
from transport.experience import ExperienceSpec, SpecError
from transport.run_dir import RunDir

ENVIRONMENTS = 8
SEED_OFFSET = 1_000_000_007  # far from any seed of training
STOCHASTIC_EPSILON = 0.05
PROGRESS_SECONDS = 5.0


def environments(settings: ActorSettings, count: int, most_steps: int, seed_offset: int = SEED_OFFSET) -> VectorEnv:
    """`count` environments to evaluate in, whose episodes are cut after `most_steps`. Raises EnvError."""
    seeds = [settings.seed + seed_offset + k for k in range(count)]
    return VectorEnv(settings.env, settings.spec, count, seeds, random_starts=True, most_steps=most_steps)


def read_evaluator(run_dir: RunDir) -> EvaluatorConfig:
    """The run's evaluator section."""
    return msgspec.convert(tomllib.loads(run_dir.config.read_text()).get("evaluator", {}), EvaluatorConfig)


def play(
    env: VectorEnv, spec: ExperienceSpec, network: QNetwork, episodes: int, epsilon: float, generator: torch.Generator
) -> Iterator[list[Episode]]:
    """Plays `episodes` episodes from fresh starts; yields after every vector step those that ended with it and count."""
    quota = [episodes // env.count + (k < episodes % env.count) for k in range(env.count)]
    stack = Stack(spec, env.count)
    stack.reset(env.reset())
    while any(quota):
        stacked = {name: torch.from_numpy(rows) for name, rows in stack.stacked.items()}
        step = env.step(network.act(stacked, epsilon, generator).action.numpy())
        stack.push(step.observation, step.terminated | step.truncated)
        counted = []
        for episode in step.episodes:
            if quota[episode.env]:  # an environment that has played its share goes on unheeded
                quota[episode.env] -= 1
                counted.append(episode)
        yield counted


def load_policy(run_dir: RunDir, settings: ActorSettings, best: bool) -> tuple[QNetwork, dict[str, str]]:
    """The newest policy on disk, or the best, with what its file says of it. Raises CheckpointError."""
    path = run_dir.best if best else run_dir.latest
    if not path.exists():
        which = "evaluated no weights" if best else "written no weights"
        raise CheckpointError(f"run {run_dir.name} has {which} yet: let it run a little longer{'' if best else ', or stop it'}")
    weights, metadata = read(path)
    network = build_network(settings.spec, settings.algorithm).eval()
    load_into(network, weights)
    return network, metadata


def interval(successes: int, episodes: int) -> tuple[float, float]:
    """95 % confidence interval of a rate: Wilson 1927, as in Agresti and Coull 1998, section 1."""
    z, rate = 1.959964, successes / episodes
    middle = rate + z * z / (2 * episodes)
    margin = z * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes**2))
    scale = 1 + z * z / episodes
    return (middle - margin) / scale, (middle + margin) / scale


def summarise(played: list[Episode]) -> dict[str, Any]:
    """The figures of INTERFACE's `headrace eval --json` that follow from episodes."""
    rewards = np.array([episode.total_reward for episode in played])
    told = [episode.success for episode in played if episode.success is not None]
    return {
        "episodes": len(played),
        "return_mean": float(rewards.mean()),
        "return_std": float(rewards.std()),
        "return_min": float(rewards.min()),
        "length_mean": float(np.mean([episode.length for episode in played])),
        "success_rate": float(np.mean(told)) if told else None,
        "success_ci95": list(interval(sum(told), len(told))) if told else None,
        "score_mean": float(np.mean([episode.score for episode in played])),
        "score_median": float(np.median([episode.score for episode in played])),
    }


def describe(figures: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"{figures['run']}: {figures['env']} by {_policy(figures)}, "
        f"{figures['episodes']} episodes{' (stochastic)' if figures['stochastic'] else ''}",
        f"  return   {figures['return_mean']:,.1f} ± {figures['return_std']:,.1f} (lowest {figures['return_min']:,.1f})",
        f"  length   {figures['length_mean']:,.1f} steps",
    ]
    if figures["success_rate"] is not None:
        low, high = figures["success_ci95"]
        lines.append(f"  success  {figures['success_rate']:.0%} (95% interval {low:.0%} to {high:.0%})")
    lines.append(f"  score    {figures['score_mean']:,.1f} on average, median {figures['score_median']:,.1f}")
    return "\n".join(lines)


def _policy(figures: dict[str, Any]) -> str:
    version = figures["policy_version"]
    return "actions at random" if version is None else f"{figures['algorithm']}, policy v{version}"


def main(arguments: list[str] | None = None) -> int:
    """Evaluates and prints; 2 when there is nothing that could be evaluated."""
    parser = argparse.ArgumentParser(prog="headrace eval", description="Play episodes with a run's weights on disk.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--stochastic", action="store_true")
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    run_dir = RunDir(options.run_dir)
    torch.set_num_threads(1)
    next_word = time.monotonic() + PROGRESS_SECONDS
    played: list[Episode] = []
    try:
        settings = read_settings(run_dir, index=0)
        if options.random:  # acts in the same environments from the same seeds
            network, metadata = build_network(settings.spec, settings.algorithm), dict[str, str]()
        else:
            network, metadata = load_policy(run_dir, settings, options.best)
        env = environments(settings, min(ENVIRONMENTS, options.episodes), read_evaluator(run_dir).max_episode_steps)
        generator = torch.Generator().manual_seed(settings.seed + SEED_OFFSET)
        epsilon = 1.0 if options.random else STOCHASTIC_EPSILON if options.stochastic else 0.0
        for counted in play(env, settings.spec, network, options.episodes, epsilon, generator):
            played += counted
            if time.monotonic() >= next_word:
                next_word = time.monotonic() + PROGRESS_SECONDS
                print(f"{len(played)} of {options.episodes} episodes …", file=sys.stderr, flush=True)
        env.close()
    except (CheckpointError, EnvError, SpecError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    about = {
        "run": run_dir.name,
        "env": settings.env.id,
        "algorithm": "random" if options.random else metadata.get("algorithm", "dqn"),
        "policy_version": None if options.random else int(metadata.get("policy_version", -1)),
        "stochastic": options.stochastic or options.random,
    }
    figures = about | summarise(played)
    print(json.dumps(figures) if options.json else describe(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
