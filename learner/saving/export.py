"""`headrace export`: writes a run's policy as one file that can be used without the run's folder.

Runs as `python -m learner.saving.export RUN_DIR WEIGHTS OUT`. The file is a checkpoint: safetensors with a checksum. Its
metadata hold the resolved configuration but for its section deploy (`config`), the experience spec (`spec`), the environment's
spaces (`spaces`) and the policy's description (`policy`) as JSON, enough to build the network and to act by it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from learner.algorithms.base import Algorithm, make_algorithm, read_algorithm
from learner.description import read_description
from learner.inference.base import Inference
from learner.inference.open import open_inference
from learner.saving.older import read_any
from learner.weights.checkpoint import CheckpointError, Weights, packed, read
from transport.experience import ExperienceSpec, SpecError, read_spec, write_spec
from transport.files.documents import Damaged, decode, read_bytes, read_document
from transport.files.writing import writing
from transport.names import UnknownName
from transport.run_dir import RunDir
from transport.text import plain


def export(run_dir: RunDir, source: Path, out: Path) -> tuple[dict[str, str], int]:
    """Writes a checkpoint of the run to `out`; returns its metadata and size. Raises CheckpointError, SpecError, Damaged,
    OSError."""
    weights, metadata = read(source)
    config = read_document(run_dir.settings("export"), dict[str, Any])
    config.pop("deploy", None)  # where the run's machine writes its figures: addresses, paths, even keys of services
    spec = read_spec(read_bytes(run_dir.spec))
    if metadata.get("spec_digest") != spec.digest:
        raise CheckpointError(f"run {run_dir.name}: the weights were made for another experience spec than spec.json describes")
    metadata |= {"run": run_dir.name, "config": json.dumps(config), "spec": write_spec(spec).decode()}
    for name, path in (("spaces", run_dir.spaces), ("policy", run_dir.policy)):
        if path.is_file():  # runs of older versions have none
            metadata[name] = json.dumps(read_document(path, dict[str, Any]))
    payload = packed(out.name, weights, metadata)
    with writing(out) as file:
        file.write(payload)
    return metadata, len(payload)


class Exported(NamedTuple):
    """A policy that was loaded from an exported file, ready to act."""

    inference: Inference
    spec: ExperienceSpec
    algorithm: Algorithm
    metadata: dict[str, str]


def load(path: Path, precision: str = "float32", check: Callable[[dict[str, Any]], None] | None = None) -> Exported:
    """Raises CheckpointError, or DeviceError for a precision that the CPU lacks. `check` sees the configuration before anything
    that it names is imported, and may raise, too."""
    weights, metadata, config = read_exported(path)
    if check is not None:
        check(config)
    try:
        spec = read_spec(metadata["spec"].encode())
        algorithm = make_algorithm(read_algorithm(config["algorithm"]))
    except UnknownName as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (SpecError, KeyError, ValueError, msgspec.ValidationError) as error:
        raise _of_another_version(path) from error
    if "policy" in metadata:
        description = read_description(metadata["policy"].encode())
    else:  # its run has no policy.json
        from learner.networks.describe import describe

        description = describe(algorithm.policy(spec))
    inference = open_inference(algorithm, spec, description, precision)
    inference.load(weights)
    return Exported(inference, spec, algorithm, metadata)


def read_exported(path: Path) -> tuple[Weights, dict[str, str], dict[str, Any]]:
    """The weights, metadata and configuration in an exported file. Raises CheckpointError."""
    weights, metadata = read_any(path)
    if not {"spec", "config"} <= metadata.keys():
        raise CheckpointError(f"{path}: a checkpoint, but not an exported policy (`headrace export` writes those)")
    try:
        return weights, metadata, decode(metadata["config"], dict[str, Any])
    except Damaged as error:
        raise _of_another_version(path) from error


def _of_another_version(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} was exported by another version of Headrace: load it with that version, or export a run of this version"
    )


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 2 when there is no policy to export; 3 when the file cannot be written."""
    run_dir, source, out = map(Path, sys.argv[1:] if arguments is None else arguments)
    try:
        metadata, size = export(RunDir(run_dir), source, out)
    except (CheckpointError, SpecError, Damaged) as error:
        print(f"headrace: {plain(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"headrace: cannot write {out}: {error.strerror}", file=sys.stderr)
        return 3
    print(f"{out}: policy v{metadata['policy_version']} of run {metadata['run']}, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
