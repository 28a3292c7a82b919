"""`headrace bench`: benchmarks, from a source tree."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy.children import ROOT
from deploy.cli.policies.common import child
from deploy.config.errors import ConfigError
from transport.names import nearest


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("name", metavar="NAME", help="replay, pipeline, env, …")
    target.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="options of the benchmark, such as --json")


def run(parsed: argparse.Namespace) -> int:
    """Forwards to a benchmark of the source tree."""
    known = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main(" in path.read_text())
    if not known:
        raise ConfigError("benchmarks run from the source tree; this is an installed package")
    if parsed.name not in known:
        raise ConfigError(f"no benchmark {parsed.name!r}; {nearest(parsed.name, known)}")
    return child(f"benchmarks.{parsed.name}", *parsed.rest)
