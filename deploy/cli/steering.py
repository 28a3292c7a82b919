"""`headrace pause`, `unpause`, `checkpoint`, `evaluate-now`: an order to a run that is up, repeated until it is carried out."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Sequence

from deploy import runs
from deploy.cli.common import DONE, FAILED, REFUSED, add_run, complain
from deploy.errors import ConfigError
from transport.messages.control import Order, OrderOutcome, What
from transport.messages.replay import Refused
from transport.run_dir import RunDir
from transport.sockets.client import Client
from transport.sockets.keys import OPERATOR
from transport.text import plain

AGAIN_SECONDS = 0.25
SILENT_SECONDS = 5.0  # without an answer of the supervisor
PROGRESS_SECONDS = 5.0
LONGEST_SECONDS = 120.0  # a learner finishes its update first, which may take as long as that
STATUS = {"done": DONE, "failed": FAILED, "refused": REFUSED}

ORDERS: dict[str, What] = {"pause": "pause", "unpause": "unpause", "checkpoint": "checkpoint", "evaluate-now": "evaluate"}
DESCRIPTIONS = {
    "pause": """\
Let a run rest: actors finish their step, the learner its update; then they wait, and nothing is lost.

All processes stay alive and keep what they hold in memory: `headrace unpause` goes on at once. A checkpoint and an evaluation may
be ordered meanwhile, and the run may be stopped, which saves everything. The time of the pause does not count for --stop-after. A
run that is stopped and resumed is not paused.
""",
    "unpause": """\
Let a run that `headrace pause` has paused go on where it stopped.
""",
    "checkpoint": """\
Write a checkpoint now, between two updates, and wait until it is on disk. It works while the run is paused, too.

Checkpoints are written every learner.checkpoint_epochs epochs, after learner.checkpoint_seconds at the latest, and when the run
stops; this one is treated in the same way.
""",
    "evaluate-now": """\
Begin an evaluation of the newest policy now, even if that policy was evaluated before or the run is paused.

It returns when the evaluator has begun. The result is in the log and in `headrace status`.
""",
}


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)


def run(parsed: argparse.Namespace) -> int:
    """Gives the order of the command, waits for its outcome, and prints that."""
    folder = runs.chosen(parsed)
    outcome = give(
        folder,
        ORDERS[parsed.command],
        LONGEST_SECONDS,
        lambda text: print(f"headrace: {plain(text)}", file=sys.stderr, flush=True),
    )
    if outcome.result != "done":
        return complain(outcome.text, STATUS[outcome.result])
    print(plain(outcome.text))
    return DONE


def give(run: RunDir, what: What, most_seconds: float, progress: Callable[[str], None] = lambda text: None) -> OrderOutcome:
    """Gives an order and waits, at most `most_seconds`, until it is `done`, `failed` or `refused`. `progress` is called
    every few seconds with what it waits for. Raises ConfigError where the run is not up."""
    up = runs.is_up(run)
    if up and (refused := runs.refused_orders(run)):
        return OrderOutcome("refused", refused)
    address = run.endpoint("supervisor") if up else None
    if address is None:
        raise ConfigError(f"run {run.name} is not up; start it with `headrace up --run {run.name}`")
    client = Client(address, keys=run.keys(OPERATOR), endpoint="supervisor")
    try:
        return _repeat(client, Order(what, secrets.randbits(62)), run.name, most_seconds, progress)
    finally:
        client.close()


def _repeat(client: Client, order: Order, name: str, most_seconds: float, progress: Callable[[str], None]) -> OrderOutcome:
    began = answered = reported = time.monotonic()
    text = ""
    while (now := time.monotonic()) < began + most_seconds and now < answered + SILENT_SECONDS:
        client.send(order)
        arrived = client.receive(AGAIN_SECONDS)
        answer = arrived[0] if arrived else None
        if isinstance(answer, Refused):
            return OrderOutcome("refused", answer.reason)
        if not isinstance(answer, OrderOutcome):
            continue
        if answer.result != "waiting":
            return answer
        answered, text = time.monotonic(), answer.text
        if answered >= reported + PROGRESS_SECONDS:
            reported = answered
            progress(text)
        time.sleep(AGAIN_SECONDS)
    if not text or now >= answered + SILENT_SECONDS:
        return OrderOutcome("failed", f"the supervisor of run {name} does not answer; see `headrace status`")
    return OrderOutcome(
        "failed", f"{text}; no longer waiting after {most_seconds:.0f} s, but the order stands: see `headrace logs`"
    )
