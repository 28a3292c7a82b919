"""The page of records, which `python docs/results.py` writes from benchmarks/learning/records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "explanation" / "records.md"
PICTURES = PAGE.parent / "curves"
HEAD = """\
# What an ordinary PC learns in an hour

<!-- Made by `python docs/results.py` from the files in benchmarks/learning/records; change those, not this file. -->

Each is one command on a machine of two cores, without a GPU and with nothing beside it, for each of its seeds, which were chosen
before. Time counts from the start of the command. `python -m benchmarks.learning.records` trains them again; the raw evaluations,
the machine and the commit are in [benchmarks/learning/records](../../benchmarks/learning/records). The curves show the run's own
evaluations of newer and newer weights, a thin line for each seed and a thick one for their mean; the tables show the best weights
in other episodes. The policy of the first seed is in the zoo: `headrace demo zoo:NAME`, `headrace verify zoo:NAME`. What was
tried and did not pay is in [decisions](decisions.md).
"""
SHOWN = {"success_rate": ("reached", 100, " %"), "score_mean": ("score", 1, ""), "return_mean": ("return", 1, "")}


def pages() -> dict[Path, str]:
    """What the page and its pictures should hold."""
    from benchmarks.learning.records import RECORDS, RESULTS
    from deploy.studies.suite.file import Contestant, Suite, SuiteRun, Task
    from deploy.studies.suite.page import picture, provenance

    parts, made = [HEAD], {}
    for name, record in RECORDS.items():
        found = {
            seed: json.loads(path.read_text()) for seed in record.seeds if (path := RESULTS / f"{name}-{seed}.json").is_file()
        }
        if not found:
            continue
        task = Task(name, {}, record.metric, None, None, "", 0.0, 0, 0.0, 0)
        contestant = Contestant(name="headrace")
        suite = Suite("records", record.about, record.seeds, 1, (task,), (contestant,))
        results = {SuiteRun(suite.name, task, contestant, seed).name: one for seed, one in found.items()}
        made[PICTURES / f"records-{name}.svg"] = picture(suite, results, task, {"target": None})
        parts += [f"## {record.about}", "", f"![Curves of {name}](curves/records-{name}.svg)", ""]
        parts += [f"`{next(iter(found.values()))['command']}`; {provenance(results)}.", "", record.beside, ""]
        rows = [(f"{seed}", f"{one['steps']:,}", *evaluated(one)) for seed, one in found.items()]
        parts += table(("seed", "steps", *record.evaluations), rows)
        missing = [str(seed) for seed in record.seeds if seed not in found]
        parts += [f"Seed {', '.join(missing)}: not run yet.", ""] if missing else []
    return {PAGE: "\n".join(parts).rstrip() + "\n", **made}


def evaluated(result: dict[str, Any]) -> list[str]:
    """A cell for each evaluation."""
    return [figures(found) for found in result["evaluations"].values()]


def figures(found: dict[str, Any]) -> str:
    """The figures of an evaluation; with tolerances, the share that reached each."""
    if tolerances := found.get("by_tolerance"):
        return ", ".join(f"{100 * one['success_rate']:.1f} % at {100 * float(metres):g} cm" for metres, one in tolerances.items())
    shown = [
        f"{title} {factor * found[key]:.1f}{unit}" for key, (title, factor, unit) in SHOWN.items() if found.get(key) is not None
    ]
    return f"{', '.join(shown)} in {found['episodes']} episodes"


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [heads, ("---",) * len(heads), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines] + [""]
