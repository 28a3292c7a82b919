"""Chooses the inference for a policy, by what its network is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.description import PolicyDescription, read_description
from learner.inference.base import Inference, check_precision
from learner.inference.choice import CPU, needs_torch
from learner.inference.program import Program
from learner.weights.errors import CheckpointError
from transport.experience import ExperienceSpec
from transport.files.documents import read_bytes
from transport.run_dir import RunDir

if TYPE_CHECKING:
    from learner.algorithms.base import Algorithm


def open_inference(
    algorithm: Algorithm,
    spec: ExperienceSpec,
    description: PolicyDescription,
    precision: str = "float32",
    threads: int = 0,
    device: str = CPU,
    rows: int = 1,
) -> Inference:
    """The fastest inference for a policy: numpy or torch, as needs_torch() says.

    `precision` is that of convolutions, or auto; everything else is float32. `threads`: of torch; 0 leaves them unchanged.
    `rows`: observations of a pass. Raises CheckpointError for a damaged description, DeviceError for a device that is not there
    or a precision that it lacks, and ValueError for a policy that cannot be built.
    """
    check_precision(precision)
    try:
        if not needs_torch(description, precision, device, rows):
            return Program(description)
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        MemoryError,
    ) as error:  # of a damaged file, or one of a newer version
        raise CheckpointError(f"not the description of a policy: {type(error).__name__}: {error}") from error
    from learner.inference.module import limit_threads, open_module

    if threads:
        limit_threads(threads)
    wanted = "float32" if precision == "auto" and algorithm.exact_acting else precision
    return open_module(algorithm.policy(spec), wanted, device)


def run_description(run_dir: RunDir, algorithm: Algorithm, spec: ExperienceSpec) -> PolicyDescription:
    """The description in a run's folder. A run of an older version has none: its policy is built to describe it.

    Raises CheckpointError and ValueError.
    """
    if run_dir.policy.is_file():
        return read_description(read_bytes(run_dir.policy))
    from learner.networks.describe import describe

    return describe(algorithm.policy(spec))
