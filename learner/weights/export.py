"""`python -m learner.weights.export RUN_DIR OUT`: a run's policy as one file that needs no run's folder, behind
`headrace export`.

The file is a checkpoint: safetensors, checksummed. Its metadata hold the resolved configuration (`config`), the experience
spec (`spec`) and the environment's spaces (`spaces`) as JSON, which is all it takes to build the network and to act by it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path

import msgspec
from torch import nn

from learner.algorithms.base import make_algorithm, read_algorithm
from learner.weights.checkpoint import CheckpointError, load_into, read, write
from transport.experience import ExperienceSpec, SpecError, read_spec, write_spec
from transport.names import UnknownName
from transport.run_dir import RunDir


def export(run_dir: RunDir, out: Path, best: bool) -> dict[str, str]:
    """Writes `out` and gives its metadata. Raises CheckpointError, SpecError, OSError."""
    weights, metadata = read(run_dir.best if best else run_dir.latest)
    config = tomllib.loads(run_dir.config.read_text())
    spec = read_spec(run_dir.spec.read_bytes())
    if metadata.get("spec_digest") != spec.digest:
        raise CheckpointError(f"run {run_dir.name}: the weights were made for another experience spec than spec.json describes")
    metadata |= {"run": run_dir.name, "config": json.dumps(config), "spec": write_spec(spec).decode()}
    if run_dir.spaces.is_file():  # runs of older versions have none
        metadata["spaces"] = run_dir.spaces.read_text(encoding="utf-8")
    write(out, dict(weights), metadata)
    return metadata


def load(path: Path) -> tuple[nn.Module, ExperienceSpec, dict[str, str]]:
    """The network of an exported file, ready to act, the spec of what it sees, and the metadata. Raises CheckpointError."""
    weights, metadata = read(path)
    try:
        spec = read_spec(metadata["spec"].encode())
        algorithm = make_algorithm(read_algorithm(json.loads(metadata["config"])["algorithm"]))
    except UnknownName as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (KeyError, ValueError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{path}: a checkpoint, but not an exported one (`headrace export` makes those)") from error
    network = algorithm.policy(spec).eval()
    load_into(network, weights)
    return network, spec, metadata


def main(arguments: list[str] | None = None) -> int:
    """Exports and says so; 2 when there is nothing that could be exported."""
    parser = argparse.ArgumentParser(prog="headrace export", description="A run's policy as one file.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--best", action="store_true")
    options = parser.parse_args(arguments)
    try:
        metadata = export(RunDir(options.run_dir), options.out, options.best)
    except (CheckpointError, SpecError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"headrace: cannot write {options.out}: {error.strerror}", file=sys.stderr)
        return 3
    megabytes = options.out.stat().st_size / 1e6
    print(f"{options.out}: policy v{metadata['policy_version']} of run {metadata['run']}, {megabytes:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
