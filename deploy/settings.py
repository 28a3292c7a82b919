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
from learner.config import LearnerProcess
from replay.config import ReplayProcess
from replay.shards import shard_names
from transport.experience import read_spec
from transport.run_dir import RunDir, TransportSettings, write_atomically


def write(run: RunDir, config: RunConfig) -> None:
    """Writes the files of all processes. Raises OSError."""
    tree = as_tree(config)
    leased = config.learner.leased(read_spec(run.spec.read_bytes())) if run.spec.is_file() else 0
    replay = config.replay
    drawn = replay.max_policy_lag, replay.shards, replay.min_size
    learner = LearnerProcess(config.seed, config.env.id, tree["algorithm"], config.learner, *drawn)
    for index, name in enumerate(shard_names(replay.shards)):
        _write(run, name, ReplayProcess(config.seed + index, replay.of_one_shard, leased, index))
    _write(run, "learner", learner)
    _write(run, "export", tree)  # an exported policy contains the whole configuration
    for name in ("evaluator", *(f"actor-{number}" for number in range(config.actors.count))):
        write_acting(run, config, name)


def write_acting(run: RunDir, config: RunConfig, name: str) -> None:
    """Writes the files of an actor or the evaluator. Raises OSError."""
    tree, deploy = as_tree(config), config.deploy
    files = deploy.metrics_bytes, deploy.files_kept, deploy.record_seconds
    _write(run, "transport", TransportSettings(deploy.bind, deploy.advertise, *files))
    acting = config.actors, config.evaluator, config.replay.shards
    _write(run, name, ActorProcess(config.seed, tree["env"], tree["algorithm"], *acting))


def _write(run: RunDir, name: str, settings: Struct | Tree) -> None:
    path = run.settings(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(_finite(msgspec.to_builtins(settings))))


def _finite(value: Any) -> Any:
    """JSON has no infinity, TOML has: replaced by the largest float."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return math.copysign(sys.float_info.max, value) if isinstance(value, float) and math.isinf(value) else value
