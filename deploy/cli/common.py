"""Functions that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from actors.trust import FLAG
from deploy.cli.streams import tell
from transport.messages.fields import Message
from transport.run_dir import RunDir
from transport.sockets.keys import OPERATOR
from transport.text import plain

ANSWER_SECONDS = 2.0

DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3


def complain(text: str, exit_status: int) -> int:
    """Prints a line on stderr; returns the status."""
    tell(f"headrace: {plain(' '.join(text.split()))}")
    return exit_status


def add_run(target: argparse.ArgumentParser) -> None:
    """Adds the run, by position or --run."""
    _add_run(target, "RUN", "name or folder of a run")


def add_policy(target: argparse.ArgumentParser) -> None:
    """Adds the run, or a file with a policy, by position or --run."""
    _add_run(target, "RUN | FILE", "name or folder of a run, a file of `headrace export`, hub:OWNER/NAME or zoo:NAME")


def _add_run(target: argparse.ArgumentParser, metavar: str, about: str) -> None:
    target.add_argument("run", nargs="?", metavar=metavar, help=f"{about} (default: the run that is up, or the most recent one)")
    target.add_argument("--run", dest="run_flag", metavar="NAME", help=f"the same as {metavar}")


def add_trust(target: argparse._ActionsContainer) -> None:
    """Adds --trust-config."""
    target.add_argument(
        FLAG,
        dest="trusted",
        action="store_true",
        help="allow settings that name code in a --config file, or in a run that this account has not made on this machine",
    )


def ask_supervisor(run: RunDir, message: Message) -> Any:
    """The supervisor's answer, or None."""
    arrived = exchange(run, message, ANSWER_SECONDS)
    return arrived[0] if arrived else None


def exchange(run: RunDir, message: Message, seconds: float) -> tuple[Any, Sequence[bytes]] | None:
    """The supervisor's answer and its raw parts; None without one in this time."""
    from transport.sockets.client import Client

    address = run.endpoint("supervisor")
    if address is None:
        return None
    client = Client(address, keys=run.keys(OPERATOR), endpoint="supervisor")
    try:
        client.send(message)
        return client.receive(seconds)
    finally:
        client.close()
