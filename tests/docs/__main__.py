"""`python -m tests.docs [PAGE…]`: runs every command that the documentation shows; `make docs-check` calls it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.docs.blocks import PAGES
from tests.docs.check import ALL, failures, name_of

SECONDS = 900


def main() -> int:
    """Prints each command as it has been run, what a block that fails has printed, and at the end a line for each of these."""
    wanted = sys.argv[1:]
    if unknown := [name for name in wanted if name not in map(name_of, PAGES)]:
        print(f"no page is called {unknown[0]}; they are {', '.join(map(name_of, PAGES))}", file=sys.stderr)
        return 2
    pages = [page for page in PAGES if not wanted or name_of(page) in wanted]
    failed: list[str] = []
    for number, page in enumerate(pages, 1):
        print(f"[{number}/{len(pages)}] {name_of(page)}", flush=True)
        with tempfile.TemporaryDirectory(prefix="headrace-docs-") as folder:
            for report in failures(page, Path(folder), ALL, SECONDS, lambda line: print(f"  {line}", flush=True)):
                print(report, flush=True)
                failed.append(report.partition("\n")[0])
    print(f"\n{len(failed)} blocks failed" if failed else "\nevery block does what it shows")
    for line in failed:
        print(f"FAILED {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
