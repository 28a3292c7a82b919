"""The output of all benchmarks: a table for people, JSON for everything else."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from deploy import provenance
from deploy.children import child_environment, python_command

INDENT = " " * 28
WIDTH = 150
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass
class Report:
    """Results of one benchmark on one machine."""

    benchmark: str
    results: list[dict[str, Any]] = field(default_factory=list)
    ratios: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    peers: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)  # of the JSON document, by key
    gpu: str | None = None  # the accelerator's name, where the benchmark knows it

    def add(self, case: str, metric: str, unit: str, runs: list[float]) -> float:
        """Adds a figure: its value is the median of its runs."""
        self.results.append(result(case, metric, unit, runs))
        return float(self.results[-1]["value"])

    def peer(self, name: str, version: str, settings: dict[str, Any], results: list[dict[str, Any]]) -> None:
        """Adds what another's software did in this same run; results are those of `result`."""
        self.peers.append({"name": name, "version": version, "settings": settings, "results": results})

    def ratio(self, case: str, metric: str, peer: str, value: float) -> None:
        """Adds a ratio of two figures of this same run."""
        self.ratios.append({"case": case, "metric": metric, "peer": peer, "value": value})

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "benchmark": self.benchmark,
            "machine": machine() | ({"gpu": self.gpu} if self.gpu else {}),
            "commit": provenance.short(found) if (found := provenance.commit()) else None,
            "notes": self.notes,
            "results": self.results,
            "peers": self.peers,
            "ratios": self.ratios,
            **self.more,
        }

    def print(self, as_json: bool) -> None:
        """To standard output."""
        if as_json:
            print(json.dumps(self.document(), indent=2))
            return
        for note in self.notes:
            print(note)
        print_results(self.results)
        for peer in self.peers:
            print(f"\n{peer['name']} {peer['version']}")
            print_results(peer["results"])
        print()
        for ratio in self.ratios:
            print(f"{figure(ratio['value']):>8} x {ratio['peer']}: {ratio['case']}, {ratio['metric']}")


def make_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The command line of `headrace bench NAME`, with the option that all have."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"headrace bench {name}", description=about, formatter_class=form)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def add_length(parser: argparse.ArgumentParser, seconds: float, runs: int, quick: str) -> None:
    """How long and how often it measures. `quick`: what --quick does."""
    parser.add_argument("--seconds", type=float, default=seconds, help=f"length of each measurement (default {seconds:g})")
    parser.add_argument("--runs", type=int, default=runs, help=f"measurements of each case, the median counts (default {runs})")
    parser.add_argument("--quick", action="store_true", help=quick)


def command_note(name: str, arguments: list[str] | None, hidden: Sequence[str] = ()) -> str:
    """The command that was typed. `hidden`: paths that say whose machine it was."""
    given = " ".join([f"headrace bench {name}", *(sys.argv[1:] if arguments is None else arguments)])
    for path in hidden:
        given = given.replace(path, "PATH")
    return given


def say(text: str) -> None:
    """Prints a line about the progress to standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)


def result(case: str, metric: str, unit: str, runs: list[float]) -> dict[str, Any]:
    """A figure as the document has it: its value is the median of its runs."""
    return {"case": case, "metric": metric, "unit": unit, "value": statistics.median(runs), "runs": runs}


def figure(value: float) -> str:
    """A number as a person reads it: four digits, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"


def print_results(results: list[dict[str, Any]]) -> None:
    """A line for each case, more where there are many metrics; in brackets the least and the most of several runs."""
    for case in dict.fromkeys(result["case"] for result in results):
        words = []
        for each in (result for result in results if result["case"] == case):
            span = f" ({figure(min(each['runs']))}-{figure(max(each['runs']))})" if len(each["runs"]) > 1 else ""
            words.append(f"{each['metric']} {figure(each['value'])} {each['unit']}{span}".replace(" ", NO_BREAK))
        line = " · ".join(words).replace(" ·", NO_BREAK + "·")
        text = textwrap.fill(line, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)
        text = text.replace(NO_BREAK, " ")
        print(f"{case:<{len(INDENT)}}{text[len(INDENT) :]}" if len(case) < len(INDENT) else f"{case}\n{text}")


def machine() -> dict[str, Any]:
    """The machine and the software of the figures."""
    found = provenance.machine()
    return {
        "cpu": found["cpu"],
        "cores": found["cores"],
        "gpu": accelerator(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


@cache
def accelerator() -> str | None:
    """The name of the accelerator that a learner would choose; None where that is the CPU. A child asks: it takes torch."""
    done = subprocess.run(
        python_command("learner.probe", "auto", "auto", "1"),
        capture_output=True,
        text=True,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
    )
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        print(f"torch names no device: {done.stderr[-300:]}", file=sys.stderr)
        return None
    return None if found.get("device", "cpu") == "cpu" else str(found["name"])
