"""Gives a fork the weights that it begins with: a full checkpoint of another run, and the best policy of that time."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from learner.weights.checkpoint import CheckpointError, entry_of, policy_weights, read, write_latest
from learner.weights.manifest import change
from transport.files.documents import read_bytes
from transport.files.writing import link_or_copy
from transport.run_dir import RunDir


def share_checkpoint(run: RunDir, source: Path, fork: RunDir) -> dict[str, str]:
    """Links the checkpoint `source` of a run into the fork's folder, and the best policy where it is not of a later version.
    Returns the checkpoint's metadata. Raises CheckpointError, OSError."""
    path = fork.checkpoints / source.name
    link_or_copy(source, path)  # first: the run may be up, and delete it
    try:
        weights, metadata = read(path)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(path), str(source))) from error
    if policy_weights(weights) is weights or not {"epoch", "policy_version"} <= metadata.keys():
        raise CheckpointError(f"{source}: not a full checkpoint, which a learner can go on from")
    change(fork.checkpoints, {path.name: entry_of(read_bytes(path), metadata)})
    write_latest(fork.latest, weights, metadata)
    with suppress(CheckpointError, OSError):
        best = read(run.best)[1]
        if int(best["policy_version"]) <= int(metadata["policy_version"]):
            link_or_copy(run.best, fork.best)
            change(fork.checkpoints, {fork.best.name: entry_of(read_bytes(fork.best), best)})
    return metadata
