"""Sends an operator's order, repeats it until it is carried out, and prints the outcome."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Sequence

from deploy import runs
from deploy.cli.common import DONE, FAILED, REFUSED, add_run, complain
from deploy.errors import ConfigError
from transport.messages.control import Order, Outcome, What
from transport.messages.replay import Refused
from transport.run_dir import RunDir
from transport.sockets.client import Client
from transport.sockets.keys import OPERATOR
from transport.text import plain

AGAIN_SECONDS = 0.25
SILENT_SECONDS = 5.0  # without an answer of the supervisor
NEWS_SECONDS = 5.0
LONGEST_SECONDS = 120.0  # a learner finishes its update first, which may take as long as that
STATUS = {"done": DONE, "failed": FAILED, "refused": REFUSED}


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)


def carry_out(parsed: argparse.Namespace, what: What) -> int:
    """Gives the order to the run of a command line, waits for its outcome, and prints that. Returns the exit status."""
    run = runs.chosen(parsed)
    outcome = give(run, what, LONGEST_SECONDS, lambda text: print(f"headrace: {plain(text)}", file=sys.stderr, flush=True))
    if outcome.result != "done":
        return complain(outcome.text, STATUS[outcome.result])
    print(plain(outcome.text))
    return DONE


def give(run: RunDir, what: What, most_seconds: float, news: Callable[[str], None] = lambda text: None) -> Outcome:
    """Gives an order and waits, at most so long, until it is `done`, `failed` or `refused`. `news` is called
    every few seconds with what it waits for. Raises ConfigError where the run is not up."""
    address = run.endpoint("supervisor") if runs.is_up(run) else None
    if address is None:
        raise ConfigError(f"run {run.name} is not up; start it with `headrace up --run {run.name}`")
    client = Client(address, keys=run.keys(OPERATOR), endpoint="supervisor")
    try:
        return _repeat(client, Order(what, secrets.randbits(62)), run.name, most_seconds, news)
    finally:
        client.close()


def _repeat(client: Client, order: Order, name: str, most_seconds: float, news: Callable[[str], None]) -> Outcome:
    began = heard = told = time.monotonic()
    text = ""
    while (now := time.monotonic()) < began + most_seconds and now < heard + SILENT_SECONDS:
        client.send(order)
        arrived = client.receive(AGAIN_SECONDS)
        answer = arrived[0] if arrived else None
        if isinstance(answer, Refused):
            return Outcome("refused", answer.reason)
        if not isinstance(answer, Outcome):
            continue
        if answer.result != "waiting":
            return answer
        heard, text = time.monotonic(), answer.text
        if heard >= told + NEWS_SECONDS:
            told = heard
            news(text)
        time.sleep(AGAIN_SECONDS)
    if not text or now >= heard + SILENT_SECONDS:
        return Outcome("failed", f"the supervisor of run {name} does not answer; see `headrace status`")
    return Outcome("failed", f"{text}; no longer waiting after {most_seconds:.0f} s, but the order stands: see `headrace logs`")
