"""`headrace report`: runs as one page that needs nothing from elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import runs
from deploy.cli.common import DONE
from deploy.errors import ConfigError
from deploy.recorded.run import RecordedRun
from deploy.views.web.report import report
from transport.files.writing import replacing, writing

USAGE_LINE = "headrace report [RUN …] [--out PAGE.html] [--score RETURN] [--videos]"
DESCRIPTION = """\
Write a page about a run, or about several side by side: one file that needs no network, of at most 2 MB.
With --videos it also holds videos, of at most 50 MB in all.

  headrace report                             the run that is up, or the most recent one, to runs/NAME/report.html
  headrace report a-1 a-2 b-1 b-2 --out ab.html   runs that differ only in their seed are one group

A run may be up. The page has what its files hold: with the defaults the metrics of about a day (deploy.files_kept keeps more).
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("runs", nargs="*", metavar="RUN", help="names or folders of runs (default: the run that is up)")
    target.add_argument(
        "--out", type=Path, metavar="PAGE.html", help="the file to write (default: report.html in the run's folder)"
    )
    target.add_argument(
        "--score",
        type=float,
        metavar="RETURN",
        help="the return whose time is compared (default: found from the runs)",
    )
    target.add_argument(
        "--videos",
        action="store_true",
        help="put the newest, the best and the worst video of each run into the page, where the pictures may be published",
    )


def run(parsed: argparse.Namespace) -> int:
    chosen = [runs.find(name) for name in parsed.runs or [None]]
    chosen = list({found.path: found for found in chosen}.values())
    out = parsed.out or chosen[0].path / "report.html"
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out: there is no folder {out.parent}")
    recorded = [RecordedRun(found) for found in chosen]
    for number, one in enumerate(recorded, 1):
        if sys.stderr.isatty():
            print(f"reading {one.run.name} ({number} of {len(recorded)}) …", file=sys.stderr)
        one.read()
    page = report(recorded, parsed.score, parsed.videos).encode()
    with writing(out) if parsed.out else replacing(out) as file:
        file.write(page)
    print(f"{os.path.relpath(out)}: {len(page) / 1e6:.1f} MB, open it in a browser")
    return DONE
