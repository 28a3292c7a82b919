"""`headrace suite`: compares algorithms, settings or other libraries on tasks with several seeds."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.cli.common import DONE, FAILED, add_trust, complain
from deploy.errors import ConfigError
from deploy.provenance import strict_json
from deploy.signals import stop_signals
from deploy.studies.suite.file import read
from deploy.studies.suite.page import page
from deploy.studies.suite.runner import Runner, to_stderr
from deploy.studies.suite.summary import lines, summarise
from transport.files.writing import writing

USAGE_LINE = "headrace suite FILE.toml [--results DIR] [--report] [--json] [--out PAGE.html]"
DESCRIPTION = """\
Run tasks x contestants x seeds one after the other, and print scores and times to a score with 95 % intervals.

  headrace suite compare.toml                          run what has no result yet, then print the table
  headrace suite compare.toml --report --out p.html    run nothing; write a page of what is finished

A suite may be stopped or killed at any time; the same command resumes it.
The file's form: `How to … compare algorithms or settings`.
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("file", type=Path, metavar="FILE.toml", help="tasks, contestants and seeds")
    target.add_argument(
        "--results", type=Path, metavar="DIR", help="folder of results, a file for each run (default: results/NAME beside FILE)"
    )
    target.add_argument("--report", action="store_true", help="run nothing; report what is finished")
    target.add_argument("--json", action="store_true", help="print the summary as JSON")
    target.add_argument("--out", type=Path, metavar="PAGE.html", help="also write one self-contained page with the curves")
    target.add_argument(
        "--peer-python", default="", metavar="PATH", help="interpreter that has the peers' libraries, where FILE names none"
    )
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    """Lines about the progress go to stderr, the summary to stdout."""
    suite = read(parsed.file, parsed.peer_python)
    results = parsed.results or parsed.file.parent / "results" / suite.name
    if parsed.out and not parsed.out.absolute().parent.is_dir():
        raise ConfigError(f"--out: there is no folder {parsed.out.parent}")
    runner = Runner(suite, results, to_stderr, parsed.trusted)
    if not parsed.report:
        arrived: list[int] = []
        with contextlib.redirect_stdout(sys.stderr):
            with stop_signals(signal.default_int_handler):
                runner.check()
            with stop_signals(lambda number, frame: arrived.append(number)):
                interrupted = runner.run(arrived)
        if interrupted:
            to_stderr("stopped; the same command resumes: finished runs are skipped, the training that was stopped starts again")
            return DONE
    found = {run.name: result for run, result in runner.finished()}
    summary = summarise(suite, found)
    if parsed.out:
        with writing(parsed.out) as file:
            file.write(page(suite, found, summary).encode())
    print(strict_json(summary, indent=2) if parsed.json else "\n".join(lines(summary)), end="" if parsed.json else "\n")
    if runner.failed:
        return complain(f"{len(runner.failed)} runs failed: {', '.join(runner.failed)}; the same command repeats them", FAILED)
    return DONE
