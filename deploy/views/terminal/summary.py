"""The status document as text and a table, as `headrace status` prints it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from actors.figures import evaluation_line
from deploy.recorded.status import Document
from deploy.views.terminal.screen import cell, end_lines, inference_lines, process_lines, since
from transport.text import listed, plain


def show(status: Document, console: Console | None = None) -> None:
    """Prints the document as text and a table."""
    console = console or Console(highlight=False, soft_wrap=True)
    time_in_state = since(status, time.time(), "for ")
    reason = f" ({status['reason']})" if status.get("reason") else ""
    steps = f" · {status['steps']:,} steps" if status.get("steps") is not None else ""
    head = f"{status['run']}: {status['state']}{time_in_state}{reason}"
    console.print(_text(f"{head} · {status['env']} · {status['algorithm']}{steps}"))
    for row in process_lines(status["processes"], len(status["processes"]), sys.maxsize, pids=True):
        console.print(row)
    lines = (
        *_host_lines(status),
        *inference_lines(status),
        *_replay_lines(status),
        *_learner_lines(status),
        *end_lines(status, time.time()),
        *_trouble_lines(status),
    )
    for line in lines:
        console.print(_text(line))


def _text(line: str) -> Text:
    """Shown as it is: what a process said last may hold what rich takes for its markup, `[/INST]` or `:bug:`."""
    return Text(plain(line))


def _host_lines(status: Document) -> Iterator[str]:
    hosts = status.get("hosts", [])
    for host in (host for host in hosts if host["state"] != "waiting"):
        silent = f" · not heard for {host['silent_seconds']:.0f} s" if host["state"] == "silent" else ""
        yield f"{host['name']}: {host['state']} · {host['actors']} of {host['places']} places{silent}"
    if waiting := [host for host in hosts if host["state"] == "waiting"]:
        yield f"{listed([host['name'] for host in waiting])}: waiting · {sum(host['places'] for host in waiting):,} places"


def _replay_lines(status: Document) -> Iterator[str]:
    replay = status["replay"]
    if replay["items"] is not None:
        quarantined = f" · quarantined {replay['quarantined']:,}" if replay.get("quarantined") else ""
        yield (
            f"{_items('replay', replay)} · duplicates {cell(replay['duplicates'], '{:,}')} · "
            f"rejected {cell(replay['rejected'], '{:,}')}{quarantined}"
        )
    for name, shard in status.get("shards", {}).items():
        if shard["items"] is not None:
            yield _items(name, shard)


def _items(name: str, replay: Document) -> str:
    ratio = cell(replay["samples_per_insert"], "{:.1f}")
    return f"{name:<8} {replay['items']:,}/{cell(replay['capacity'], '{:,}')} items · samples/insert {ratio}"


def _learner_lines(status: Document) -> Iterator[str]:
    """The learner, and the evaluation of its policy."""
    learner, evaluation = status["learner"], status["evaluation"]
    if learner["updates"] is not None:
        yield (
            f"learner  epoch {cell(learner['epoch'], '{:,}')} · {cell(learner['updates_per_second'], '{:.1f}')} updates/s · "
            f"policy v{cell(learner['policy_version'], '{}')} · {learner['device']} {learner['precision']} · "
            f"data wait {cell(learner['data_wait_fraction'], '{:.1%}')}"
        )
    if evaluation["return_mean"] is not None:
        yield (
            f"eval     v{evaluation['policy_version']} · {evaluation['episodes']} episodes · {evaluation_line(evaluation)} · "
            f"best v{cell(evaluation.get('best_version'), '{}')}"
        )


def _trouble_lines(status: Document) -> Iterator[str]:
    for name, counted in status.get("troubles", {}).items():
        counts = " · ".join(f"{key.replace('_', ' ')} {number:,}" for key, number in counted.items())
        yield f"trouble  {name}: {counts}"
