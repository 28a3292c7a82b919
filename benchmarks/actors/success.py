"""`headrace bench success`: how well the robot's preset learns within a given time.

For each backend and seed a whole run, as `headrace up --env robot` starts it, its evaluator included; it is stopped when the
time, start-up included, is over, and its newest weights play reserved episodes: by tier, at each tolerance. Policies trained
without physics (kinematic) are evaluated in both backends; the drop from one to the other is given in points.

Every setting of a run can be given, as --env.curriculum true.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.common.report import Report, command_note, say
from deploy.children import child_environment, python_command
from deploy.config import command_line, options, values
from deploy.config.files import Tree, merge
from deploy.config.layers import layers, resolve
from deploy.errors import ConfigError
from transport.text import reported

BACKENDS = ("pybullet", "kinematic")
PATIENCE_SECONDS = 120.0  # beyond its time that a run has until it has ended
METRICS = {"success_rate": ("success", "%", 100.0), "score_mean": ("distance at the end", "mm", 1000.0)}
Figures = dict[str, Any]


def evaluate(folder: Path, backend: str, tolerance: float, episodes: int) -> Figures:
    """The answer of `headrace eval --json` for the newest weights. Raises ConfigError where it fails."""
    rest = ("bench", "--episodes", str(episodes), "--json", "--env.backend", backend, "--env.tolerance", f"{tolerance:g}")
    command = python_command("deploy.cli.main", "eval", *rest)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=child_environment())
    if done.returncode:
        raise ConfigError("the evaluation failed: see above")
    return dict(json.loads(done.stdout))


def measure(given: Tree, parsed: argparse.Namespace) -> Report:
    """Every backend and seed in turn."""
    report = Report("success")
    found: dict[tuple[str, str, float], list[Figures]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as scratch:
        runs = [(seed, backend) for seed in range(1, parsed.seeds + 1) for backend in parsed.backends]
        for seed, backend in reported(runs, "runs", say):
            say(f"seed {seed}: {parsed.seconds:g} s of training, {backend} …")
            folder = Path(tempfile.mkdtemp(dir=scratch))
            train(folder, merge(given, {"seed": seed, "env": {"backend": backend}}), parsed.seconds)
            for judge in (backend,) if backend == "pybullet" else BACKENDS:
                for tolerance in parsed.tolerances:
                    figures = evaluate(folder, judge, tolerance, parsed.episodes)
                    found[backend, judge, tolerance].append(figures)
                    say(f"evaluated in {judge} at {tolerance:g} m: success {figures['success_rate']:.1%}")
    add(report, found)
    return report


def train(folder: Path, settings: Tree, seconds: float) -> None:
    """A whole run in a folder of its own. Raises ConfigError where it fails."""
    (folder / "settings.toml").write_text(tomli_w.dumps(settings))
    rest = ("--run", "bench", "--config", "settings.toml", "--stop-after", f"{seconds}s")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            python_command("deploy.cli.main", "up", *rest), stdout=log, stderr=log, cwd=folder, env=child_environment()
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds + PATIENCE_SECONDS)
    finally:
        process.kill()  # the processes that it has started end without it
        process.wait()
    if process.returncode:
        raise ConfigError(f"headrace up ended with {process.returncode}: {(folder / 'log').read_text()[-500:]}")


def add(report: Report, found: dict[tuple[str, str, float], list[Figures]]) -> None:
    """The figures of all seeds: together, by tier, and what is lost in the other backend."""
    for (backend, judge, tolerance), seeds in found.items():
        case = f"{backend}, evaluated in {judge}, {tolerance:g} m"
        for key, (metric, unit, scale) in METRICS.items():
            report.add(case, metric, unit, [scale * figures[key] for figures in seeds])
            for tier in sorted(set.intersection(*(set(figures.get("by_tier", {})) for figures in seeds))):
                report.add(case, f"{metric}, {tier}", unit, [scale * figures["by_tier"][tier][key] for figures in seeds])
    for (backend, judge, tolerance), there in found.items():
        if backend != judge:
            here = found[backend, backend, tolerance]
            drops = [100 * (own["success_rate"] - other["success_rate"]) for own, other in zip(here, there, strict=True)]
            report.add(f"{backend}, evaluated in {judge}, {tolerance:g} m", "drop", "points", drops)


def backends(text: str) -> list[str]:
    """An option's value. Raises ValueError for what is no backend."""
    found = text.split(",")
    if not set(found) <= set(BACKENDS):
        raise ValueError(text)
    return found


def lengths(text: str) -> list[float]:
    """0.05,0.02. Raises ValueError for what is no length of the robot's."""
    found = [float(part) for part in text.split(",")]
    if not all(0 < length < 100 for length in found):
        raise ValueError(text)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    parser = command_line.Parser(prog="headrace bench success", description=__doc__)
    parser.add_argument("--seconds", type=values.DURATION, default=900.0, metavar="TIME", help="of each training (default 15m)")
    parser.add_argument("--seeds", type=values.COUNT, default=3, help="trainings of each kind (default 3)")
    parser.add_argument("--episodes", type=values.COUNT, default=500, help="of each evaluation (default 500)")
    known = values.argument(backends, f"some of {','.join(BACKENDS)}")
    parser.add_argument("--backends", type=known, default=list(BACKENDS), help=f"to train in (default {','.join(BACKENDS)})")
    text = "to evaluate at, in metres (default 0.02,0.01)"
    parser.add_argument(
        "--tolerances", type=values.argument(lengths, "lengths in metres, such as 0.05,0.02"), default=[0.02, 0.01], help=text
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options.add_config_options(parser)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the trainings, too
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        parsed = command_line.parse(parser, typed, "bench success")
        if min(parsed.seconds, parsed.seeds, parsed.episodes) <= 0:
            raise ConfigError("--seconds, --seeds and --episodes must be greater than 0")
        given = merge({"env": {"id": "robot"}}, command_line.given(parsed))
        resolve(layers(given))  # complains now, if at all
        report = measure(given, parsed)
    except ConfigError as error:
        print(f"headrace bench success: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("headrace bench success: stopped", file=sys.stderr)
        return 130
    report.notes.append(command_note("success", arguments))
    report.print(parsed.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
