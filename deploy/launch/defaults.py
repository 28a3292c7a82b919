"""Settings that follow from the machine and from what the pre-flight found: actors, experience, hang time, threads, rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import structs

from actors.config import usual_environments
from actors.envs.preflight.parent import ENDLESS_STEPS, PreflightResult
from deploy.config.algorithm import builtin_algorithms, needs
from deploy.config.checks import validate
from deploy.config.files import Layer, lookup
from deploy.config.layers import is_offline, resolve
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from deploy.launch.preflight import describe_actions
from learner.algorithms.base import action_kind, default_algorithm, join, make_algorithm
from replay.client.writer import MOST_CREDIT_BYTES
from replay.config import LARGEST
from replay.table.layout import capacity_chunks
from transport.experience import ExperienceSpec
from transport.messages.fields import MOST_ROWS
from transport.system import core_count, free_memory

MOST_THREADS = 16  # of a learner on the CPU, unless more are asked for
CORES_PER_ACTOR, LEAST_ACTORS, MOST_ACTORS = 2, 2, 16  # of a run for which no number is asked
LEAST_HANG_SECONDS = 3.5
SLOWER = 4.0  # times the slowest call of the pre-flight, which makes few calls
MEMORY_SHARE = 0.5  # of the free memory, for all actors
MAKE_SLOWER = 2.0  # times the time that the pre-flight took to make an environment: actors make theirs beside each other


def resolve_for(stack: Sequence[Layer], facts: PreflightResult, on_gpu: bool) -> tuple[RunConfig, ExperienceSpec]:
    """The settings of a run and its experience, for the environment of which the pre-flight found `facts`.

    Where no layer names an algorithm, it is the one that suits the environment. Where episodes may never end, evaluations
    truncate them after ENDLESS_STEPS: otherwise a policy that does not reach the end would never have been evaluated. Raises
    ConfigError.
    """
    if facts.endless:
        stack = [Layer("episodes that may never end", {"evaluator": {"max_episode_steps": ENDLESS_STEPS}}), *stack]
    if not names_algorithm(stack):
        name = default_algorithm(facts.spec, is_offline(stack))
        stack = [Layer("the kind of actions", {"algorithm": {"name": name}}), *stack]
    spec = run_spec(facts, resolve(stack, on_gpu, facts.spec))
    return resolve_defaults(resolve(stack, on_gpu, facts.spec, spec=spec), spec, on_gpu, facts), spec


def names_algorithm(stack: Sequence[Layer]) -> bool:
    return any(lookup(layer.values, "algorithm.name") for layer in stack)


def run_spec(facts: PreflightResult, config: RunConfig) -> ExperienceSpec:
    """The environment's experience, and what the algorithm needs besides. Raises ConfigError."""
    wanted = needs(config, facts.spec)
    if wanted.goals and not facts.goals:
        wanted = structs.replace(wanted, goals=0)
    if wanted.goals and facts.goal_complaint:
        raise ConfigError(f"{config.env.id}: {facts.goal_complaint}")
    return join(facts.spec, wanted)


def resolve_defaults(config: RunConfig, spec: ExperienceSpec, on_gpu: bool, facts: PreflightResult) -> RunConfig:
    """Replaces every setting that is 0 for "to be found out". Raises ConfigError where algorithm, replay and spec do not fit."""
    config = resolve_environments(resolve_count(config, facts.resident_bytes), spec)
    config = resolve_stall_seconds(resolve_hang_seconds(config, facts.slowest_seconds), facts.make_seconds)
    config = fit_rollouts(resolve_threads(config, spec, on_gpu), spec)
    check_fit(config, spec)
    check_limits(config, facts)
    return config


def resolve_count(config: RunConfig, resident_bytes: int = 0) -> RunConfig:
    """actors.count, by cores and memory; `resident_bytes`: of a process with the simulator, 0 where that is not known yet."""
    if config.offline:
        return structs.replace(config, actors=structs.replace(config.actors, count=0))
    if config.actors.count:
        return config
    count = min(max(core_count() // CORES_PER_ACTOR, LEAST_ACTORS), MOST_ACTORS)
    if resident_bytes:
        count = max(min(count, int(free_memory() * MEMORY_SHARE / resident_bytes)), 1)
    return structs.replace(config, actors=structs.replace(config.actors, count=count))


def resolve_environments(config: RunConfig, spec: ExperienceSpec) -> RunConfig:
    """actors.envs_per_actor."""
    number = config.actors.envs_per_actor or usual_environments(spec.has_images)
    return structs.replace(config, actors=structs.replace(config.actors, envs_per_actor=number))


def check_fit(config: RunConfig, spec: ExperienceSpec) -> None:
    """Raises ConfigError where the algorithm has no such actions, a batch holds no chunk, or replay cannot hold enough."""
    kind = action_kind(spec)
    if kind not in make_algorithm(config.algorithm).actions:
        able = [name for name, found in builtin_algorithms().items() if kind in found.actions]
        raise ConfigError(
            f"{config.env.id} has {describe_actions(spec)}, and --algo {config.algorithm.name} has no {kind} actions: "
            f"--algo {' or '.join(able)}"
        )
    if not config.learner.batch_items(spec):
        raise ConfigError(
            f"--learner.batch-size {config.learner.batch_size} holds no sequence: each has {spec.chunk_length} steps "
            "(--env.chunk-length)"
        )
    shards = config.replay.shards
    if spec.unit == "rollouts" and shards > 1:
        raise ConfigError(
            f"--replay.shards {shards}: --algo {config.algorithm.name} learns from rollouts, which need one shard: "
            "--replay.shards 1"
        )
    try:
        capacity_chunks(spec, config.replay.of_one_shard, config.learner.leased(spec))
    except ValueError as error:
        raise ConfigError(f"{error} (the part of each of {shards} shards)" if shards > 1 else str(error)) from error
    if spec.unit == "rollouts":
        _check_share(config, spec)


def _check_share(config: RunConfig, spec: ExperienceSpec) -> None:
    """Raises ConfigError where an actor may not send its share of a rollout batch before it waits for an acknowledgement."""
    share = math.ceil(config.learner.leased(spec) / max(config.actors.count, 1)) * spec.chunk_bytes
    if share > MOST_CREDIT_BYTES:
        raise ConfigError(
            f"a rollout batch has {share / 1e9:.1f} GB from each actor, and {MOST_CREDIT_BYTES / 1e9:.1f} GB are the most: more "
            "--actors, or a smaller --learner.batch-size or --actors.envs-per-actor"
        )


def check_limits(config: RunConfig, facts: PreflightResult) -> None:
    """Raises ConfigError where replay would reject what the pre-flight has seen: nothing would be learned from."""
    for name, seen in (("observation", facts.largest_observation), ("reward", facts.largest_reward)):
        if seen > LARGEST:
            raise ConfigError(
                f"{config.env.id} gave the {name} {seen:g}, and experience beyond {LARGEST:g} is rejected: "
                "wrap the environment to scale it (--env.wrappers)"
            )


def resolve_hang_seconds(config: RunConfig, slowest_seconds: float) -> RunConfig:
    """deploy.hang_seconds, from the slowest reset or step that the pre-flight saw."""
    deploy = config.deploy
    if deploy.hang_seconds:
        return config
    seconds = usual_hang_seconds(slowest_seconds)
    return structs.replace(config, deploy=structs.replace(deploy, hang_seconds=seconds))


def resolve_stall_seconds(config: RunConfig, make_seconds: float) -> RunConfig:
    """deploy.stall_seconds, raised where an actor needs more time to make its environments, of which the pre-flight has made
    one."""
    deploy, number = config.deploy, config.actors.envs_per_actor
    seconds = round(MAKE_SLOWER * number * make_seconds, 1)
    if seconds <= deploy.stall_seconds:
        return config
    print(
        f"deploy.stall_seconds is {seconds:g} instead of {deploy.stall_seconds:g}: an actor makes {number} environments, and one "
        f"took {make_seconds:.0f} s (--actors.envs-per-actor takes fewer)"
    )
    return structs.replace(config, deploy=structs.replace(deploy, stall_seconds=seconds))


def resolve_threads(config: RunConfig, spec: ExperienceSpec, on_gpu: bool) -> RunConfig:
    """learner.threads: for images on a CPU, one for each core that the actors' threads and replay leave; otherwise one.

    Measured: an update of a small network takes longer with a second thread, one of the Nature network 0.6 of the time.
    """
    if config.learner.threads:
        return config
    left = core_count() - min(config.actors.count, config.deploy.local_actors) * config.actors.threads - 1
    threads = min(max(left, 1), MOST_THREADS) if spec.has_images and not on_gpu else 1
    return structs.replace(config, learner=structs.replace(config.learner, threads=threads))


def fit_rollouts(config: RunConfig, spec: ExperienceSpec) -> RunConfig:
    """learner.batch_size, where whole rollouts are learned from: a multiple of one chunk of each environment.

    With another size some environments would wait for the next batch, and their rollouts would be too old by then. The option
    `minibatches` grows alike: learning depends on how many steps each update is made from. Raises ConfigError where another
    setting does not fit the new size.
    """
    if spec.unit != "rollouts":
        return config
    environments, processes = config.actors.count * config.actors.envs_per_actor, config.learner.processes
    wave, wanted = environments * spec.chunk_length, config.learner.batch_size
    step = math.lcm(wave, processes * spec.chunk_length) // processes  # the batches of all processes are one to the actors
    size = -(-wanted // step) * step
    if size == wanted:
        return config
    if size > MOST_ROWS:
        raise ConfigError(
            f"rollout batches would have {size:,} steps: whole chunks of {spec.chunk_length}, as many of each of the "
            f"{environments:,} environments; {MOST_ROWS:,} are the most: fewer --actors or --actors.envs-per-actor, or a smaller "
            "--env.chunk-length"
        )
    together = f", {processes} processes together" if processes > 1 else ""
    options, parts = config.algorithm.options, ""
    if before := getattr(options, "minibatches", 0):
        options = structs.replace(options, minibatches=max(1, round(before * size / wanted)))
        parts = f", in {options.minibatches} minibatches instead of {before}" if options.minibatches != before else ""
    print(
        f"rollout batches have {size:,} steps instead of {wanted:,}{parts}: whole chunks of {spec.chunk_length}, as many of each "
        f"of the {environments} environments{together}"
    )
    fitted = structs.replace(
        config,
        learner=structs.replace(config.learner, batch_size=size),
        algorithm=structs.replace(config.algorithm, options=options),
    )
    if complaints := validate(fitted):
        raise ConfigError("; ".join(complaints))
    return fitted


def usual_hang_seconds(slowest_seconds: float) -> float:
    """deploy.hang_seconds of a run whose slowest reset or step in the pre-flight took `slowest_seconds`."""
    return round(max(LEAST_HANG_SECONDS, SLOWER * slowest_seconds), 1)
