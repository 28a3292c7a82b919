"""`headrace bench`: runs a benchmark of the source tree."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence

from deploy.children import ROOT
from deploy.cli.common import DONE
from deploy.cli.policies.common import child
from deploy.errors import ConfigError
from transport.names import nearest

FILES = {
    "restore": "benchmarks.replay.restore",
    "env": "benchmarks.actors.env",
    "inference": "benchmarks.actors.inference",
    "updates": "benchmarks.learner.updates",
    "gpu": "benchmarks.device.gpu",
    "success": "benchmarks.actors.success",
}
FOLDERS = sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py"))
BENCHMARKS = {name: f"benchmarks.{name}" for name in FOLDERS} | FILES


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    text = f"the benchmark: {', '.join(BENCHMARKS)}; without one they are listed"
    target.add_argument("name", nargs="?", metavar="NAME", help=text)
    target.add_argument(
        "rest", nargs=argparse.REMAINDER, metavar="…", help="options of the benchmark; `headrace bench NAME --help` lists them"
    )


def _about(module: str) -> str:
    """The first sentence of a benchmark's docstring, which is read and not run."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").rpartition("`: ")[2].removesuffix(".")


def run(parsed: argparse.Namespace) -> int:
    if not (ROOT / "benchmarks").is_dir():
        raise ConfigError(
            "benchmarks need the source tree, and this is an installed package: clone the repository and run `make install`"
        )
    if not parsed.name:
        for name, module in BENCHMARKS.items():
            print(f"{name:<12}{_about(module)}")
        return DONE
    name = parsed.name.replace("-", "_")
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {parsed.name!r}; {nearest(name, BENCHMARKS)}")
    return child(BENCHMARKS[name], *parsed.rest)
