"""Writes docs/explanation/results.md from the results of the suites in benchmarks/learning, records.md from its records, and the
pictures of both.

`python docs/results.py` writes them; with --check it only says whether they are what they should be.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import records
from records import table

ROOT = Path(__file__).resolve().parent.parent
SUITES = ROOT / "benchmarks" / "learning"
PAGE = ROOT / "docs" / "explanation" / "results.md"
PICTURES = PAGE.parent / "curves"
HEAD = """\
# Results

<!-- Made by `python docs/results.py` from the files in benchmarks/learning/results; change those, not this file. -->

Each section is one suite: `headrace suite FILE` trains every contestant on every task, one run after the other with nothing
beside unless the heading says so, then plays the same greedy episodes with each policy that was saved on the way. Time counts
from the start of the process, so it includes loading, checks and the start of all processes. *To reach* is 90 % of the way from
random actions to the reference. A score counts as reached at the first of three evaluations in a row at or above it. Thin lines
are single seeds, thick ones their mean. The raw evaluations, the configuration and the machine of every run are in
[benchmarks/learning/results](../../benchmarks/learning/results). Not all runs had equally fast cores; the README there
names those that ran on slower ones.
"""
INTERRUPTED = """\
## Runs that are killed and resumed

`python -m benchmarks.learning.interrupted --env ID --steps N --seeds S`: for each seed a run that is left alone, and one whose
processes are all killed by SIGKILL five times and resumed, both for the same number of steps. Each is then evaluated on the
same 100 greedy episodes, with the newest weights and with the best. The interval is a bootstrap over seeds. The best weights are
those with the best evaluation, that of the last policy included. A run of CartPole by PPO lasts 20 to 30 s, so that without this
last evaluation the best weights were early ones: 228 in runs left alone, 37 in interrupted ones. Other programs ran beside both
environments; the steps are equal, the time is not compared.
"""
HEADS = ("", "final", "95 % interval", "time to score", "reached", "steps")


def pages() -> dict[Path, str]:
    """What each file should hold."""
    from deploy.studies.suite import file
    from deploy.studies.suite.page import picture, provenance
    from deploy.studies.suite.runner import Runner
    from deploy.studies.suite.summary import cells, heading, notes, overall_cells, overall_notes, ratio_line, summarise

    parts, made = [HEAD], {}
    for path in sorted(SUITES.glob("*.toml")):
        suite = file.read(path)
        found = {run.name: result for run, result in Runner(suite, SUITES / "results" / suite.name, print).finished()}
        if not found:
            continue
        summary = summarise(suite, found)
        runs = summary["runs"]
        parts += [
            f"## {suite.about}",
            "",
            f"`headrace suite {path.relative_to(ROOT)}`: {runs['finished']} of {runs['all']} runs.",
        ]
        parts += [f"Machine: {provenance(found)}.", ""]
        for task, figures in zip(suite.tasks, summary["tasks"], strict=True):
            if not (curves := picture(suite, found, task, figures)):
                continue
            name = re.sub(r"[^a-z0-9.-]+", "-", f"{suite.name}-{task.name}.svg".lower())
            made[PICTURES / name] = curves
            parts += [f"### {heading(figures)}", "", f"![Curves of {task.name}](curves/{name})", ""]
            parts += [f"Reference: {task.source}.", ""] if task.source else []
            parts += table(HEADS, [cells(one) for one in figures["contestants"] if one["seeds"]])
            parts += [line for note in notes(figures) for line in (note, "")]
        if overall := [overall_cells(one) for one in summary["contestants"] if one["tasks"]]:
            parts += ["### All tasks, 0 random, 1 reference", "", *table(("", "score", "95 % interval", "tasks"), overall)]
            parts += [line for note in overall_notes(summary) for line in (note, "")]
        parts += [line for ratio in summary["ratios"] if ratio["by_task"] for line in (f"{ratio_line(ratio)}.", "")]
    parts += [INTERRUPTED, "```text", *interrupted_runs(), "```", ""]
    return {PAGE: "\n".join(parts).rstrip() + "\n", **made}


def interrupted_runs() -> list[str]:
    from benchmarks.learning.interrupted import RESULTS, report

    of_env = {found["env"]: found for found in (json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json")))}
    reports = [(report(RESULTS, env), found["asked_steps"]) for env, found in of_env.items()]
    return [line for (first, *others), steps in reports for line in (f"{first}, {steps:,} steps each", *others)]


def main() -> int:
    found = pages() | records.pages()
    old = set(PICTURES.glob("*.svg")) - set(found)
    if "--check" not in sys.argv:
        PICTURES.mkdir(exist_ok=True)
        for path in old:
            path.unlink()
        for path, text in found.items():
            path.write_text(text, encoding="utf-8")
        return 0
    wrong = [path for path, text in found.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in sorted(old.union(wrong)):
        print(f"{path.relative_to(ROOT)} is not what the results say: run `python docs/results.py`", file=sys.stderr)
    return bool(old or wrong)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
