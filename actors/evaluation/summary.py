"""The figures of an evaluation, and how they read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from actors.envs.vector import VectorEnv
from actors.episodes import Episode, info_means, successes
from transport.text import amount


def interval(successes: int, episodes: int) -> tuple[float, float]:
    """95 % confidence interval of a rate: Wilson 1927, as in Agresti and Coull 1998, section 1."""
    z, rate = 1.959964, successes / episodes
    middle = rate + z * z / (2 * episodes)
    margin = z * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes**2))
    scale = 1 + z * z / episodes
    return max((middle - margin) / scale, 0.0), min((middle + margin) / scale, 1.0)  # rounding must not leave 0 to 1


def mean_interval(mean: float, std: float, episodes: float, least: float | None, most: float | None) -> tuple[float, float]:
    """95 % confidence interval of a mean, by the normal distribution; `std` is that of single episodes.

    It ends at the `least` and `most` of a single episode, where they are known: a score that has a limit must not be said to lie
    beyond it.
    """
    margin = 1.959964 * std / math.sqrt(episodes or 1.0)
    low, high = mean - margin, mean + margin
    return low if least is None else max(low, min(least, mean)), high if most is None else min(high, max(most, mean))


def summarise(played: Sequence[Episode], reported: bool = False) -> dict[str, Any]:
    """The keys of `headrace eval --json` that are computed from episodes, at least one; `by_tier` only if episodes have groups.

    `reported`: the environment reports success, even where none of these episodes does.
    """
    rewards, scores = (np.array([getattr(episode, name) for episode in played]) for name in ("total_reward", "score"))
    succeeded = successes(played, reported)
    tiers = sorted({episode.group for episode in played if episode.group})
    by_tier = {tier: _of_tier(played, tier, succeeded is not None) for tier in tiers}
    return {
        "episodes": len(played),
        "return_mean": float(rewards.mean()),
        "return_std": float(rewards.std()),
        "return_min": float(rewards.min()),
        "return_max": float(rewards.max()),
        "length_mean": float(np.mean([episode.length for episode in played])),
        "success_rate": None if succeeded is None else float(np.mean(succeeded)),
        "success_ci95": None if succeeded is None else list(interval(sum(succeeded), len(succeeded))),
        "score_mean": float(scores.mean()),
        "score_std": float(scores.std()),
        "score_min": float(scores.min()),
        "score_max": float(scores.max()),
        "score_median": float(np.median(scores)),
        "broken_episodes": sum(episode.broken for episode in played),
        "idle_episodes": sum(episode.idle for episode in played),
        **({"info": info} if (info := info_means(played)) else {}),
        **({"by_tier": by_tier} if by_tier else {}),
    }


def figures_of(env: VectorEnv, played: Sequence[Episode]) -> dict[str, Any]:
    """`summarise` of episodes in this environment, with the name that its family has for success."""
    figures = summarise(played, env.reports_success)
    return figures | ({env.success_name: figures["success_rate"]} if env.success_name else {})


def _of_tier(played: Sequence[Episode], tier: str, reported: bool) -> dict[str, Any]:
    return brief(summarise([episode._replace(group="") for episode in played if episode.group == tier], reported))


def brief(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures of a group of episodes."""
    return {name: figures[name] for name in ("episodes", "success_rate", "success_ci95", "score_mean", "return_mean")}


def describe(figures: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [
        f"{figures['run']}: {figures['env']} by {_policy(figures)}, "
        f"{figures['episodes']} episodes{' (stochastic)' if figures['stochastic'] else ''}",
        f"  return   {amount(figures['return_mean'])} ± {amount(figures['return_std'])} (lowest {amount(figures['return_min'])})",
        f"  length   {figures['length_mean']:,.1f} steps",
    ]
    if figures["success_rate"] is not None:
        low, high = figures["success_ci95"]
        lines.append(f"  success  {figures['success_rate']:.0%} (95% interval {low:.0%} to {high:.0%})")
    lines.append(f"  score    {amount(figures['score_mean'])} on average, median {amount(figures['score_median'])}")
    lines += [f"  {key:<8} {value:.4g} on average" for key, value in figures.get("info", {}).items()]
    if broken := figures["broken_episodes"]:
        lines.append(f"  broken   {broken} episodes, truncated because an observation or reward was not finite")
    if idle := figures["idle_episodes"]:
        lines.append(f"  idle     {idle} episodes, cut off because they gave no reward for evaluator.max_idle_steps steps")
    lines += [f"  {tier:<8} {_describe_brief(brief)}" for tier, brief in figures.get("by_tier", {}).items()]
    lines += [f"  {size} m".ljust(10) + f" {_describe_brief(brief)}" for size, brief in figures.get("by_tolerance", {}).items()]
    return "\n".join(lines)


def _describe_brief(brief: dict[str, Any]) -> str:
    text = f"score {amount(brief['score_mean'])}, {brief['episodes']} episodes"
    if brief["success_rate"] is None:
        return text
    low, high = brief["success_ci95"]
    return f"success {brief['success_rate']:.1%} ({low:.1%} to {high:.1%}), {text}"


def _policy(figures: dict[str, Any]) -> str:
    version = figures["policy_version"]
    return "actions at random" if version is None else f"{figures['algorithm']}, policy v{version}"
