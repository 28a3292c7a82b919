"""The newest status of a run, whether or not it is up."""

from __future__ import annotations

from typing import Any

import msgspec

from deploy import runs
from deploy.config.files import lookup, read_run
from deploy.reporting.events import OVER
from deploy.reporting.status_file import EvaluationFigures, FlowFigures, LearnerFigures, ReplayFigures, Status
from transport.run_dir import RunDir

Document = dict[str, Any]


def as_dead(status: Document) -> Document:
    """The last document of a supervisor that was killed, with its processes marked dead; those on hosts are unsupervised."""
    nothing = {"pid": None, "state": "dead", "rss_bytes": None, "cpu_percent": None, "steps_per_second": None}
    processes = [
        process | nothing | ({"state": "unsupervised"} if process.get("host") else {}) for process in status["processes"]
    ]
    over: Document = {"state": "dead", "reason": "the supervisor was killed", "paused_since": None, "paused_because": None}
    over |= {"hosts": [], "steered": [], "ends_at": None, "forecast": None}
    flow = (status.get("flow") or {}) | {"blocked": "", "seconds_left": None}  # none of its processes waits
    return status | over | {"processes": processes, "flow": flow}


def empty(run: str, env_id: str, algorithm: str) -> Document:
    """The document of a run whose supervisor has written none yet: every key of a document, without figures."""
    figures = ReplayFigures(), LearnerFigures(), EvaluationFigures()
    nothing = Status(run, "stopped", env_id, algorithm, [], *figures, flow=FlowFigures())
    return msgspec.to_builtins(nothing)  # type: ignore[no-any-return]


def current_status(run: RunDir) -> Document:
    """The newest status.json, corrected where the supervisor was killed. Nothing that the configuration names is imported."""
    found = runs.read_status(run)
    if found is None:
        values = read_run(run.config).values
        env_id, algorithm = lookup(values, "env.id"), lookup(values, "algorithm.name")
        return empty(run.name, str(env_id or "?"), str(algorithm or "?"))
    if found["state"] in OVER:
        return found
    pids = {runs.supervisor_pid(run), found["pid"]} - {None}  # two: a command has the lock, or one that starts the run again
    return found if runs.is_up(run) and len(pids) < 2 else as_dead(found)
