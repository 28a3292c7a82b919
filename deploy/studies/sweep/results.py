"""The results of a sweep: a document for programs, a table, and the best settings as a file."""

from __future__ import annotations

import io
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table

from deploy.studies.sweep.plan import Plan
from deploy.studies.sweep.study import Study, Trial
from deploy.studies.sweep.sweeper import OVER, settings_line, shown, value_text
from transport.files.writing import write_atomically

BEST = "best.toml"
WIDTH = 160


def document(plan: Plan, study: Study) -> dict[str, Any]:
    """Everything that `headrace sweep --json` prints. Trials are ordered: the best one first."""
    trials = study.ranked()
    best = study.best()
    return {
        "sweep": plan.path.stem,
        "folder": str(plan.folder),
        "objective": plan.config.objective,
        "direction": "maximize" if plan.config.time_to is None else "minimize",
        "time_to": plan.config.time_to,
        "seconds": plan.seconds or None,
        "steps": plan.config.steps or None,
        "seeds": plan.config.seeds,
        "wanted": plan.config.trials,
        "done": sum(trial.state in OVER for trial in trials),
        "best": None if best is None else {"trial": best.number, "value": best.value, "settings": best.values},
        "importance": study.importance(),
        "trials": [
            {
                "trial": trial.number,
                "state": trial.state,
                "value": trial.value,
                "settings": trial.values,
                "reason": trial.result.get("reason") or None,
                "runs": trial.result.get("runs", []),
            }
            for trial in trials
        ],
    }


def best_settings(plan: Plan, study: Study) -> str:
    """The settings of the best trial, as TOML for `headrace up --config`; nothing where no trial is complete."""
    best = study.best()
    if best is None:
        return ""
    about = f"# Trial {best.number} of sweep {plan.path.stem}: {shown(plan, best)}\n"
    return about + tomli_w.dumps(plan.settings(best.values))


def write_best(plan: Plan, study: Study) -> None:
    """Writes those settings into the sweep's folder. Raises OSError."""
    if text := best_settings(plan, study):
        write_atomically(plan.folder / BEST, text.encode())


def table(plan: Plan, study: Study) -> str:
    """The trials, the best first, and how much each setting matters."""
    trials, written = study.ranked(), io.StringIO()
    console = Console(file=written, width=WIDTH, highlight=False, soft_wrap=True)
    shape = Table(box=None, pad_edge=False, header_style="bold")
    shape.add_column("trial", justify="right")
    for heading in ("state", "result", "time"):
        shape.add_column(heading, justify="left" if heading == "state" else "right")
    for key in plan.search:
        shape.add_column(key, justify="right")
    for trial in trials:
        seconds = sum(run["seconds"] for run in trial.result.get("runs", []))
        row = [str(trial.number), trial.state, _result(plan, trial), f"{seconds:,.0f} s" if seconds else "-"]
        shape.add_row(*row, *(value_text(trial.values.get(key, "-")) for key in plan.search))
    console.print(shape)
    for trial in trials:
        if reason := trial.result.get("reason"):
            console.print(f"trial {trial.number} failed: {reason}", markup=False)
    if importance := study.importance():
        parts = ", ".join(f"{key} {share:.0%}" for key, share in importance.items())
        console.print(f"what matters (PED-ANOVA): {parts}", markup=False)
    if best := study.best():
        console.print(f"best: trial {best.number}, {shown(plan, best)}: {settings_line(best.values)}", markup=False)
    return written.getvalue()


def _result(plan: Plan, trial: Trial) -> str:
    """The value; for a pruned trial the last figure that it had, in brackets."""
    if trial.state == "complete":
        return shown(plan, trial).removeprefix(f"{plan.config.objective} ")
    last = [run["evaluations"][-1][2] for run in trial.result.get("runs", []) if run["evaluations"]]
    return f"({last[-1]:,.4g})" if last else "-"
