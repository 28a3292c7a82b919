"""The result of a run as a file: its settings, the machine and the software, and every evaluation with its single episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from actors.figures import EVALUATION
from deploy.config.files import Tree
from deploy.errors import ConfigError
from deploy.provenance import strict_json
from deploy.studies.suite.file import SuiteRun
from transport.files.documents import read_document
from transport.files.writing import write_atomically

FORMAT = 1


def point(evaluation: dict[str, Any]) -> dict[str, Any]:
    """A point of the curve, from a line of evaluations.jsonl."""
    episodes = evaluation["episodes"]
    means = {one.name: sum(values) / len(values) for one in EVALUATION if (values := episodes.get(one.word))}
    return {"seconds": evaluation["seconds"], "steps": evaluation["steps"], **means, "episodes": episodes}


def metric_of(result: Mapping[str, Any], metric: str) -> list[float]:
    """A task's metric at each point of a result's curve; NaN where the environment does not report it."""
    name = next(figure.name for figure in EVALUATION if figure.word == metric)
    spare = "return_mean" if metric == "score" else ""  # a score that is the return is not written twice
    return [math.nan if (found := each.get(name, each.get(spare))) is None else found for each in result["curve"]]


def document(run: SuiteRun, trained: dict[str, Any], evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """The result of a run whose evaluations are over. `trained`: what trained.json says."""
    return {
        "format": FORMAT,
        "suite": run.suite,
        "task": run.task.name,
        "contestant": run.contestant.name,
        "seed": run.seed,
        "asked": run.asked(),
        **trained,
        "finished": now(),
        "evaluation": {"episodes": run.task.episodes, "policy": "greedy", "when": "after training"},
        "curve": [point(evaluation) for evaluation in evaluations],
    }


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object in a file. Raises Damaged, OSError."""
    return read_document(path, dict[str, Any])


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write(path: Path, result: Any) -> None:
    """Writes a file whole or not at all: strict JSON."""
    write_atomically(path, strict_json(result).encode())


def read(path: Path) -> dict[str, Any]:
    """A result. Raises ConfigError for a file that is none."""
    try:
        found = read_object(path)
        if found["format"] == FORMAT and isinstance(found["curve"], list):
            return found
    except (OSError, ValueError, LookupError):
        pass
    raise ConfigError(f"{path} is not a result of this version of `headrace suite`: move it away to repeat the run")


def difference(before: Tree, now: Tree, prefix: str = "") -> str:
    """The first key in which two trees differ; empty if none does."""
    now = json.loads(strict_json(now))
    for key in sorted(before.keys() | now.keys()):
        was, wanted = before.get(key), now.get(key)
        if isinstance(was, dict) and isinstance(wanted, dict):
            if found := difference(was, wanted, f"{prefix}{key}."):
                return found
        elif was != wanted:
            return f"{prefix}{key} was {was!r}, is {wanted!r}"
    return ""
