"""Writes the settings files of a run: `settings/PROCESS.json` for one process, `settings/transport.json` for all.

They are resolved and typed. A process reads its own file only; config.toml is for people and for the command `headrace`.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import msgspec
from msgspec import Struct

from actors.config import ActorProcess
from deploy.config.files import Tree, as_tree
from deploy.config.run import RunConfig
from learner.config import INFERENCE, InferenceProcess, LearnerSettings
from replay.config import ReplayProcess
from replay.shards import shard_names
from transport.experience import read_spec
from transport.files.documents import read_bytes
from transport.files.writing import write_atomically, write_durably
from transport.run_dir import RunDir, TransportSettings


def write(run: RunDir, config: RunConfig) -> None:
    """Writes the files of all processes. Raises OSError."""
    tree = as_tree(config)
    leased = config.learner.leased(read_spec(read_bytes(run.spec))) if run.spec.is_file() else 0
    replay = config.replay
    learner = learning(config)
    for index, name in enumerate(shard_names(replay.shards)):
        _write(run, name, ReplayProcess(config.seed + index, replay.of_one_shard, leased, index, config.offline))
    _write(run, "learner", learner)
    if config.actors.inference == "batched":
        _write(run, INFERENCE, inference(acting(config)))
    # An exported policy contains the whole configuration, and where config.toml is lost, it is made from this file. The other
    # files are not fsynced: each start writes them before anything reads them.
    write_durably(run.settings("export"), encode(tree))
    for name in ("evaluator", *(f"actor-{number}" for number in range(config.actors.count))):
        write_acting(run, config, name)


def learning(config: RunConfig) -> LearnerSettings:
    """The content of settings/learner.json."""
    steps = config.learner.schedule_steps or config.total_steps
    learner = msgspec.structs.replace(config.learner, schedule_steps=steps)
    return LearnerSettings(config.seed, config.env.id, as_tree(config)["algorithm"], learner, config.replay)


def write_acting(run: RunDir, config: RunConfig, name: str) -> None:
    """Writes the files of an actor or the evaluator. Raises OSError."""
    _write(run, "transport", connections(config))
    _write(run, name, acting(config))


def connections(config: RunConfig) -> TransportSettings:
    """The content of settings/transport.json."""
    deploy = config.deploy
    return TransportSettings(
        bind=deploy.bind,
        ports=fixed_ports(config) if deploy.port else {},
        advertise=deploy.advertise,
        files_kept=deploy.files_kept,
        record_seconds=deploy.record_seconds,
    )


def servers(shards: int) -> tuple[str, ...]:
    """The servers of a run with `shards` replay processes, by endpoint."""
    return ("supervisor", "weights", "payload", *shard_names(shards))


def fixed_ports(config: RunConfig) -> dict[str, int]:
    """The ports of the servers, by endpoint, where deploy.port says which is the first."""
    return {name: config.deploy.port + number for number, name in enumerate(servers(config.replay.shards))}


def acting(config: RunConfig) -> ActorProcess:
    """The content of settings/evaluator.json, and of that of every actor."""
    tree = as_tree(config)
    own = config.seed, tree["env"], tree["algorithm"], config.actors, config.evaluator
    return ActorProcess(*own, shards=config.replay.shards, limited=bool(config.total_steps))


def inference(acting: ActorProcess) -> InferenceProcess:
    """The content of settings/inference.json, on the machine of actors that have these settings."""
    actors = acting.actors
    where = actors.inference_device, actors.inference_threads
    return InferenceProcess(acting.algorithm, actors.envs_per_actor, actors.precision, *where)


def encode(settings: Struct | Tree) -> bytes:
    """The content of a settings file."""
    return msgspec.json.encode(_finite(msgspec.to_builtins(settings)))


def _write(run: RunDir, name: str, settings: Struct | Tree) -> None:
    path = run.settings(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, encode(settings))


def _finite(value: Any) -> Any:
    """JSON has no infinity, TOML has: replaced by the largest float."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return math.copysign(sys.float_info.max, value) if isinstance(value, float) and math.isinf(value) else value
