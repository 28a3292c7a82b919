"""A run of a few files, and a policy that has been exported from it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import tomli_w

from benchmarks.common.settings import write_settings
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.saving.export import export
from learner.weights import checkpoint
from transport.experience import Categorical, ExperienceSpec, observed, write_spec
from transport.run_dir import RunDir

SPEC = ExperienceSpec((observed("observation", (4,), "<f4"),), Categorical(3), 8, 2, 1)
ALGORITHM = DqnConfig(hidden=16, dueling=False, network="mlp")


def make_run(path: Path, version: int = 9) -> RunDir:
    """Its settings hold a path of somebody's machine, and a secret."""
    run = RunDir(path)
    run.create()
    tree = {
        "seed": 4,
        "env": {"id": "toy", "urdf": "/home/somebody/arms/arm.urdf"},
        "algorithm": {"name": "dqn", **msgspec.to_builtins(ALGORITHM)},
        "learner": {"batch_size": 64, "weights": "/home/somebody/first.safetensors"},
        "evaluator": {"max_episode_steps": 27_000, "max_idle_steps": 3_000},
        "deploy": {"bind": "10.1.2.3", "sink_options": {"mine": {"note": "secret-of-a-sink"}}},
    }
    run.config.write_text(tomli_w.dumps(tree))
    run.spec.write_bytes(write_spec(SPEC))
    write_settings(run, {"seed": 4, "env": {"id": "toy"}, "algorithm": msgspec.to_builtins(ALGORITHM)})
    run.settings("export").write_bytes(msgspec.json.encode(tree))
    metadata = {"spec_digest": SPEC.digest, "policy_version": str(version), "env": "toy", "algorithm": "dqn"}
    checkpoint.write(run.latest, dict(q_network(SPEC, ALGORITHM).state_dict()), metadata)
    return run


def make_exported(path: Path) -> RunDir:
    """Writes a policy that has been exported; returns its run."""
    run = make_run(path.parent / "runs" / "mine")
    export(run, run.latest, path)
    return run
