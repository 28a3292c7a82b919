"""Writes the reference curves of the page, from the results of the suite `classic`.

`python -m benchmarks.learning.references` takes the first seed of each task, which Headrace has learned without any setting, and
keeps some thirty of its evaluations as they are: more at the beginning, where a curve rises.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from deploy.children import ROOT
from deploy.provenance import short, strict_json
from deploy.views.web import document

RESULTS = ROOT / "benchmarks" / "learning" / "results" / "classic"
SHIPPED = Path(document.__file__).with_name(document.CURVES)
MOST_POINTS = 30


def made() -> str:
    """The text that the shipped file should have."""
    first: dict[str, Path] = {}
    for path in sorted(RESULTS.glob("classic-*-headrace-*.json")):
        first.setdefault(path.name.rpartition("-")[0], path)
    return "[\n" + ",\n".join(strict_json(curve(path)).strip() for path in first.values()) + "\n]\n"


def curve(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_bytes())
    if found["asked"]["settings"]:
        raise ValueError(f"{path} was not run without settings: {found['asked']['settings']}")
    # A snapshot that was taken before the first count of steps has 0 steps, which it did not.
    points = [point for point in found["curve"] if point["steps"]]
    kept = [points[place] for place in places(len(points))]
    return {
        "env": found["configuration"]["env"],
        "algorithm": found["configuration"]["algorithm"]["name"],
        "seed": found["seed"],
        "cores": found["machine"]["cores"],
        "commit": short(found["commit"]),
        "source": path.relative_to(ROOT).as_posix(),
        **{name: [point[name] for point in kept] for name in ("seconds", "steps", "return_mean")},
    }


def places(number: int) -> list[int]:
    """At most MOST_POINTS of `number` places, the first and the last among them, denser at the beginning."""
    found: list[int] = np.unique(np.round(np.geomspace(1, number, MOST_POINTS)).astype(int) - 1).tolist()
    return found


if __name__ == "__main__":
    SHIPPED.write_text(made(), encoding="utf-8")
