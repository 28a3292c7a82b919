"""`headrace rm`: deletes stopped runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE, REFUSED, complain
from deploy.errors import ConfigError


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("runs", nargs="+", metavar="RUN", help="names or folders of runs")
    target.add_argument("--yes", action="store_true", help="delete without asking")


def run(parsed: argparse.Namespace) -> int:
    """Asks once for all of them; deletes none while one of them is up."""
    found = {folder.path: folder for folder in map(runs.find, parsed.runs)}
    if up := [folder.name for folder in found.values() if runs.is_up(folder)]:
        first = up[0]
        return complain(f"run {first} is up: stop it first with `headrace down {first}`; nothing was removed", REFUSED)
    if not parsed.yes and not _confirmed([folder.name for folder in found.values()]):
        print("nothing was removed")
        return DONE
    for folder in found.values():
        with runs.locked(folder):
            folder.remove_sockets()
            runs.remove(folder)
        print(f"removed {folder.path}")
    return DONE


def _confirmed(names: list[str]) -> bool:
    """Asks on the terminal. Raises ConfigError where there is none."""
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal for the question; --yes removes without asking")
    try:
        answer = input(f"remove {', '.join(names)} with all weights, logs and experience? [y/N] ")
    except EOFError:  # Ctrl-D
        print()
        return False
    return answer.strip().lower() in ("y", "yes")
