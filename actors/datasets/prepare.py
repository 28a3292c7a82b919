"""`python -m actors.datasets.prepare FOLDER`: a data set as the demonstrations of a run, which `headrace up` starts.

The folder has request.json, and gets the segment. The answer is a line on standard output, progress goes to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from actors.datasets.base import DatasetError, open_source
from actors.datasets.chunks import write_segment
from actors.envs.make import leave, make_env, open_family, read_env
from actors.envs.spaces import read_spaces
from actors.errors import EnvError
from actors.hindsight import GoalReward
from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, read_spec
from transport.files.documents import read_document
from transport.names import UnknownName
from transport.text import ProgressReport, plain

PROGRESS_SECONDS = 5.0
REQUEST, SEGMENT = "request.json", "0000000000000000.segment"


class Request(Struct, frozen=True):
    source: str
    env: dict[str, Any]  # section of the configuration
    spec: str  # spec.json
    spaces: str  # spaces.json


def prepare(folder: Path) -> str:
    """Writes the segment; returns what it holds. Raises DatasetError, EnvError, UnknownName, OSError."""
    request = read_document(folder / REQUEST, Request)
    spec, spaces = read_spec(request.spec.encode()), read_spaces(request.spaces)
    source = open_source(request.source)
    goals = {ACHIEVED_GOAL, DESIRED_GOAL} <= {field.name for field in spec.fields}
    env = make_env(config := read_env(request.env)) if goals else None
    try:
        compute = open_family(config).compute_reward(env) if env is not None else None
        report = ProgressReport(1, PROGRESS_SECONDS)

        def progress(steps: int) -> None:
            if report.due:
                print(f"reading {source.about}: {steps:,} steps so far", file=sys.stderr, flush=True)

        totals = write_segment(folder / SEGMENT, source, spec, spaces, GoalReward(compute) if compute else None, progress)
    finally:
        if env is not None:
            env.close()
    return f"{source.about}: {totals}{', rewards anew by the environment' if compute else ''}"


def main() -> int:
    """Exit status: 0; 2 for a data set that cannot be used, and the reason instead of the answer."""
    try:
        print(plain(prepare(Path(sys.argv[1]))))
    except (DatasetError, EnvError, UnknownName) as error:
        print(plain(str(error)))
        return 2
    except OSError as error:
        print(plain(f"{error.filename}: {error.strerror}"))
        return 2
    return 0


if __name__ == "__main__":
    leave(main)
