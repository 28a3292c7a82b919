"""`headrace fsck`: checks every file of a stopped run, and mends what can be mended."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from deploy import runs
from deploy.cli.common import DONE, FAILED, add_trust, complain
from deploy.launch.fsck import accepted, check, mend, refuse_code
from replay.log.check import Finding
from transport.run_dir import RunDir
from transport.text import plain

DESCRIPTION = """\
Read every file of a stopped run: checksums, ids and counts against each other. Says what is damaged and what of it is lost.

  headrace fsck night                 look only; nothing is written
  headrace fsck night --repair        mend what can be mended; what is replaced stays beside it, as NAME.aside
  headrace up --run night             then go on

The exit status is 0 where the run is sound or was repaired, 1 where there is damage that stays, 3 while the run is up.
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("run", metavar="RUN", help="name or folder of a run")
    target.add_argument("--repair", action="store_true", help="mend what can be mended, and keep what is replaced")
    target.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    folder = _folder(parsed.run)
    if not parsed.trusted:
        refuse_code(folder)
    with runs.locked(folder):  # raises AlreadyUp while the run is up
        found = check(folder)
        left = mend(folder, found) if parsed.repair and found else found
    if parsed.json:
        shown = {"found": _shown(found, folder), "left": _shown(left, folder)}
        print(json.dumps({"run": folder.name, "repaired": parsed.repair} | shown))
    else:
        _print(found, left, parsed.repair, folder)
    if not left:
        return DONE
    where = "the damage above stays" if parsed.repair else "`--repair` mends what can be mended"
    return complain(f"run {folder.name} is damaged; {where}", FAILED)


def _folder(name: str) -> RunDir:
    """Also of a run that has lost its config.toml. Raises ConfigError."""
    folder = RunDir(Path(name)) if os.sep in name else runs.run_dir(name)
    if not folder.path.is_dir():
        return runs.find(name)
    return folder


def _shown(found: list[Finding], folder: RunDir) -> list[dict[str, object]]:
    return [
        {
            "file": str(one.path.relative_to(folder.path)),
            "problem": one.problem,
            "lost": one.lost,
            "can_be_repaired": one.repair is not None,
        }
        for one in found
    ]


def _print(found: list[Finding], left: list[Finding], repaired: bool, folder: RunDir) -> None:
    for one in found:
        lost = f"; lost: {one.lost}" if one.lost else ""
        still = any(other.path == one.path for other in left)
        outcome = "cannot be repaired" if still else "kept as it is" if one.repair is accepted else "repaired"
        print(plain(f"{one.path.relative_to(folder.path)}: {one.problem}{lost}" + (f" · {outcome}" if repaired else "")))
    if not found:
        print(f"run {folder.name} is sound")
    elif not left:
        print(f"run {folder.name} is repaired: `headrace up --run {folder.name}` goes on")
