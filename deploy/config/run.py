"""All settings of a run: one frozen, typed configuration. Each section but `deploy` is defined beside the code that reads it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from actors.config import ActorsConfig, EnvConfig, EvaluatorConfig
from learner.algorithms.base import read_algorithm
from learner.config import LearnerConfig
from replay.config import ReplayConfig
from transport.messages.fields import MOST_ACTORS, MOST_PLACES, MOST_SHARDS
from transport.names import CODE, FIXED, RARE, Named


class DeployConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Start, supervision and end of the processes, addresses, logs and metrics."""

    stop_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=300,
            description="the evaluator is killed if it has not stopped after this time, actors after 0.6 of it; learner and "
            "replay, which save their state, are killed if they report nothing for this time, and they get more time for more "
            "data",
        ),
    ] = 8.0
    restarts: Annotated[
        int, Meta(ge=0, description="crashes of one process after each of which it is restarted; after one more it is abandoned")
    ] = 6
    overcommit: Annotated[
        bool, Meta(description="start more actors than the check before the launch finds cores, memory and file descriptors for")
    ] = False
    hang_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="an actor that reports nothing for this long is killed and restarted; its first resets and step may "
            "take five times as long, at least 60 s. 0 means 3.5 s, or four times the slowest reset or step in the check before "
            "the launch where that is longer",
        ),
    ] = 0.0
    stall_seconds: Annotated[
        float,
        Meta(
            ge=1,
            description="replay, learner or evaluator, or an actor that makes its environments, is killed and restarted when "
            "it reports nothing for this long",
        ),
    ] = 300.0
    bind: Annotated[
        str,
        Meta(
            description="IP address on which the servers listen; one that other machines can reach requires `headrace "
            "keys`. Empty means local sockets that only this user can open"
        ),
    ] = ""
    advertise: Annotated[
        str,
        Meta(
            description="host name or address that clients connect to; empty means that of deploy.bind, and the name of "
            "this host for 0.0.0.0 or ::"
        ),
    ] = ""
    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535 - 2 - MOST_SHARDS,  # the two servers of the learner and all shards have the ports after it
            description="TCP port of the supervisor with deploy.bind; the learner's two servers and replay (each shard) have the "
            "ports after it. 0 means any free ports",
        ),
    ] = 0
    local_actors: Annotated[
        int,
        Meta(
            ge=0,
            le=MOST_ACTORS,
            description="most actors that run on this machine; the others wait for hosts that join (`headrace join`). An actor "
            "starts on a host if one has a free place, else on this machine",
        ),
    ] = 1024
    on: Annotated[
        str,
        Meta(
            description="engine that brings hosts for the actors: ray, or package.module:Name for your own; empty means that "
            "hosts join by themselves (`headrace join`)",
            extra=CODE,
        ),
    ] = ""
    orphan_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="time after which a host ends its actors and itself when it hears nothing from the supervisor",
            extra=RARE,
        ),
    ] = 300.0
    cores: Annotated[
        str | float,
        Meta(
            description="cores of this machine that all processes of the run together use on average: a share of those that it "
            "may use, such as 60%, or a number, such as 1.5; empty means all. The processes are bound to the fewest whole cores "
            "that hold this budget, except on macOS; starting and stopping may use all of these"
        ),
    ] = ""
    pause_on: Annotated[
        tuple[Literal["battery", "fullscreen"], ...],
        Meta(
            description="conditions that pause the run: battery, while this machine is not plugged in; fullscreen, while a "
            "program has the whole screen; both, separated by a comma"
        ),
    ] = ()
    actor_python: Annotated[
        str,
        Meta(
            description="Python interpreter of the processes that make environments, for a simulator that needs another "
            "Python; empty means this one",
            extra=CODE,
        ),
    ] = ""
    verbosity: Annotated[
        Literal["all", "events"],
        Meta(
            description="what the terminal shows: all lines of the log, or only events (starts, ends, evaluations, bottlenecks)"
        ),
    ] = "all"
    sinks: Annotated[
        tuple[str, ...],
        Meta(
            description="where metrics are written besides the run's own files: tensorboard, jsonl, csv, prometheus, wandb, "
            "mlflow, or package.module:Name for your own, separated by commas",
            extra=CODE,
        ),
    ] = ("tensorboard",)
    track: Annotated[
        tuple[str, ...],
        Meta(description="more sinks, which are added to deploy.sinks: wandb, mlflow or any other", extra=CODE),
    ] = ()
    callbacks: Annotated[
        tuple[str, ...],
        Meta(
            description="your own classes, each package.module:Name, separated by commas; their methods on_metrics, "
            "on_evaluation and on_checkpoint are called in another process",
            extra=CODE,
        ),
    ] = ()
    sink_options: Annotated[
        dict[str, dict[str, Any]],
        Meta(
            description="an option of a sink, such as --deploy.sink-options.wandb.project arms; in a configuration file the "
            "table [deploy.sink_options.wandb]"
        ),
    ] = {}
    record_seconds: Annotated[
        float,
        Meta(
            ge=0.5, description="seconds between two log lines of a process, and between two records of its metrics", extra=RARE
        ),
    ] = 5.0
    files_kept: Annotated[
        int, Meta(ge=1, le=100, description="rotated files kept of each log and each metrics file", extra=RARE)
    ] = 1


class RayConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts on a cluster of Ray, with `--on ray`."""

    address: Annotated[
        str,
        Meta(
            description="the cluster: auto is the one that RAY_ADDRESS names, or that this machine belongs to; HOST:PORT is "
            "another; local starts one on this machine, which ends with the run"
        ),
    ] = "auto"
    places_per_host: Annotated[
        int, Meta(ge=1, le=MOST_PLACES, description="actors on each host, which is one Ray actor, so all are on the same machine")
    ] = 8
    cpus_per_place: Annotated[
        float,
        Meta(
            ge=0,
            description="CPUs that a host asks Ray for, for each of its places; with actors.memory_bytes it asks for memory, too",
            extra=RARE,
        ),
    ] = 1.0


class RunConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a run."""

    seed: Annotated[
        int,
        Meta(ge=0, le=2**31 - 1, description="seed of environments, exploration, sampling and initial weights", extra=FIXED),
    ] = 1
    total_steps: Annotated[
        int,
        Meta(
            ge=0,
            le=10**15,
            description="the run ends after this many environment steps, or up to 2 % or one chunk of each environment later; "
            "0 means never",
        ),
    ] = 0
    offline: Annotated[
        bool,
        Meta(
            description="learn from --replay.demonstrations alone: no actor collects experience, and a step is one update",
            extra=FIXED,
        ),
    ] = False
    env: EnvConfig = EnvConfig()
    algorithm: Named = msgspec.field(default_factory=lambda: read_algorithm({}))
    actors: ActorsConfig = ActorsConfig()
    replay: ReplayConfig = ReplayConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    deploy: DeployConfig = DeployConfig()
    ray: RayConfig = RayConfig()


def steps_name(config: RunConfig) -> str:
    """What the steps of a run are."""
    return "updates" if config.offline else "environment steps"
