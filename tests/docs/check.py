"""Follows a page of the documentation: writes its files and runs its commands, and says which blocks fail.

`python -m tests.docs [PAGE…]` follows every page, or those that are named; `make docs-check` calls it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.docs.blocks import ROOT, Block, blocks, matches

CHEAP = ("run",)
ALL = ("run", "check")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def environment(folder: Path) -> dict[str, str]:
    """With `headrace` and `python` as the first of their names on PATH."""
    scripts = folder / "bin"
    scripts.mkdir()
    for name, module in (("headrace", "-m headrace"), ("python", "")):
        (scripts / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (scripts / name).chmod(0o755)
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        "COLUMNS": "200",
        "SDL_VIDEODRIVER": "dummy",
    }


def failures(
    page: Path,
    folder: Path,
    uses: tuple[str, ...],
    seconds: float,
    say: Callable[[str], None] = lambda line: None,
    name: str = "",
) -> Iterator[str]:
    """Follows a page in an empty folder. Yields a report for each block that fails; its first line says which and why.

    `say` gets a line for each command that has been run. Each command may take `seconds`."""
    variables, work = environment(folder), folder / "work"
    work.mkdir()
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.use == "file":
            (work / block.argument).parent.mkdir(parents=True, exist_ok=True)
            (work / block.argument).write_text(block.text, encoding="utf-8")
        elif block.use in uses and (report := _run(block, name or name_of(page), work, variables, seconds, say)):
            yield report


def _run(block: Block, page: str, work: Path, variables: dict[str, str], seconds: float, say: Callable[[str], None]) -> str:
    """Why the block fails, or nothing."""
    for command in block.commands():
        where, began = f"{page}:{block.line} $ {' '.join(command.words)}", time.monotonic()
        try:
            done = subprocess.run(command.words, cwd=work, env=variables, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            say(f"{where} · not done after {seconds:.0f} s")
            printed = "".join(part.decode() if isinstance(part, bytes) else part or "" for part in (error.stdout, error.stderr))
            return f"{where}: not done after {seconds:.0f} s\n{printed}"
        except OSError as error:
            say(f"{where} · {error}")
            return f"{where}: {error}"
        printed, wanted = done.stdout + done.stderr, int(block.argument or 0)
        say(f"{where} · exit {done.returncode}, {time.monotonic() - began:.1f} s")
        if done.returncode != wanted:
            return f"{where}: exit {done.returncode}, not {wanted}\n{printed}"
        missing = [line for line in command.printed if not matches(line, printed)] if block.use == "run" else []
        if missing:
            return f"{where}: it does not print {missing[0].strip()!r}\n{printed}"
    return ""
