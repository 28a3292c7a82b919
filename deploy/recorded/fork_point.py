"""`fork.json`: of which run another is a fork, and from which point of it."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from transport.files.documents import Damaged, read_document
from transport.run_dir import RunDir

Count = Annotated[int, Meta(ge=0, le=2**53)]


class ForkPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """The file. `seconds` and `steps`: those of the run before, and of the runs that it is a fork of, up to the point."""

    run: str
    checkpoint: str
    epoch: Count
    policy_version: Count
    seconds: Annotated[float, Meta(ge=0, le=1e10)]
    steps: Count
    began: float | None  # when that run had begun, in seconds since 1970
    return_mean: float | None  # of its last evaluation before
    settings: dict[str, Any]  # by dotted key: what the fork has instead


def parent_of(run: RunDir, point: ForkPoint) -> RunDir:
    """The folder of the run that this one is a fork of; perhaps there is another run in it now, or none."""
    return RunDir(run.path.parent / point.run)


def read_fork_point(run: RunDir) -> ForkPoint | None:
    """None of a run that is no fork, and where the file cannot be read."""
    try:
        return read_document(run.fork_point, ForkPoint)
    except (OSError, Damaged):
        return None
