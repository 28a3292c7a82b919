"""What all benchmarks print: a table for people, JSON for everything else."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """Results of one benchmark on one machine."""

    benchmark: str
    results: list[dict[str, Any]] = field(default_factory=list)
    ratios: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, case: str, metric: str, unit: str, runs: list[float]) -> float:
        """Adds a figure: its value is the median of its runs."""
        value = statistics.median(runs)
        self.results.append({"case": case, "metric": metric, "unit": unit, "value": value, "runs": runs})
        return value

    def ratio(self, case: str, metric: str, peer: str, value: float) -> None:
        """Adds a ratio of two figures of this same run."""
        self.ratios.append({"case": case, "metric": metric, "peer": peer, "value": value})

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "benchmark": self.benchmark,
            "machine": machine(),
            "commit": commit(),
            "notes": self.notes,
            "results": self.results,
            "peers": [],
            "ratios": self.ratios,
        }

    def print(self, as_json: bool) -> None:
        """To standard output."""
        if as_json:
            print(json.dumps(self.document(), indent=2))
            return
        for note in self.notes:
            print(note)
        for result in self.results:
            runs = ", ".join(f"{run:,.0f}" for run in result["runs"])
            print(f"{result['case']:<28} {result['metric']:<22} {result['value']:>12,.0f} {result['unit']:<8} (runs {runs})")
        for ratio in self.ratios:
            print(f"{ratio['case']:<28} {ratio['metric']:<22} {ratio['value']:>12.2f} x {ratio['peer']}")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = platform.processor()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            cpu = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": None,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def commit() -> str | None:
    """The commit that was measured, "+" where the tree has changes; None outside a repository."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")
