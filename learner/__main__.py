"""`python -m learner RUN_DIR`: the learner process of a run."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import msgspec

from learner.compiling import still_at_work
from learner.config import AlgorithmConfig, LearnerConfig, PpoConfig
from learner.throughput_line import describe
from learner.train import Learner, LearnerSettings
from replay.client import ReplayRefused
from replay.config import ReplayConfig
from transport.experience import read_spec
from transport.lifetime import Lifetime, say
from transport.run_dir import RunDir, write_atomically


def read_settings(run_dir: RunDir) -> LearnerSettings:
    """What the learner needs of a run's files. Raises SpecError."""
    document = tomllib.loads(run_dir.config.read_text())
    return LearnerSettings(
        document.get("seed", 0),
        document["env"]["id"],
        msgspec.convert(document["algorithm"], AlgorithmConfig),
        msgspec.convert(document["learner"], LearnerConfig),
        read_spec(run_dir.spec.read_bytes()),
        msgspec.convert(document.get("replay", {}), ReplayConfig).max_policy_lag,
    )


def main() -> int:
    """Set up, then one loop."""
    run_dir = RunDir(Path(sys.argv[1]))
    try:
        settings = read_settings(run_dir)
        life = Lifetime("learner", run_dir, describe)
        learner = Learner(settings, run_dir, life)
        parameters = sum(parameter.numel() for parameter in learner.algorithm.parameters())
        device, precision = str(learner.device), learner.optimiser.precision
        write_atomically(run_dir.device, json.dumps({"device": device, "precision": precision}).encode())
        how = f"on {device} in {precision}"
        size = "steps per rollout batch" if isinstance(settings.algorithm, PpoConfig) else "items per update"
        say(f"{settings.learner.batch_size:,} {size} {how}, {parameters:,} parameters")
        learner.run()
    except (ValueError, OSError, MemoryError, ReplayRefused) as error:
        say(f"learner: {error}")
        return 2
    life.close()
    if still_at_work():
        sys.stdout.flush()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
