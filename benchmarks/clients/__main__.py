"""`headrace bench clients`: programs of docs/clients/, one at a time, train CartPole by --env remote.

Each is the only program of its run. A run ends when the mean return of its last 100 episodes is 475; then the newest policy plays
100 greedy episodes of Gymnasium's CartPole. Seconds and steps are from the run's first step on. Beside them a usual actor, whose
environments are its own. A round trip is that of one program: from its message to the answer, which waits for the network's
outputs, and at times for the learner. A program with 8 environments makes one for 8 steps.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import headrace
from benchmarks.clients.programs import LANGUAGES
from benchmarks.common.processes import CaseFailed, rate, records, wait_until
from benchmarks.common.report import Report, command_note, make_parser, say
from deploy.children import ROOT, child_environment, python_command
from transport.files.token import VARIABLE
from transport.run_dir import RunDir

ENV, RETURN, EPISODES = "CartPole-v1", 475.0, 100
PPO = "--algo ppo --algorithm.n-epochs 5 --algorithm.minibatches 8 --learner.learning-rate 1e-3".split()  # of the preset cartpole
LONGEST_SECONDS, END_SECONDS = 900.0, 60.0
LOCAL = {"local-1": 1, "local-8": 8}  # a usual actor, and how many environments it has
ADDRESS = re.compile(r"ws://[\d.]+:\d+")
WARM = 1_000  # round trips that do not count
MEASURED = ROOT / "benchmarks" / "clients" / "measured.c"
WRAPPED = ("-Wl,--wrap=send,--wrap=recv",)

Figures = dict[str, tuple[str, float]]  # metric -> unit, value


def measure(case: str, folder: Path) -> Figures:
    """Trains, plays. Raises CaseFailed."""
    run, trips = RunDir(folder / "runs" / "it"), folder / "trips"
    environment = child_environment(**{VARIABLE: secrets.token_hex(16), "MEASURED": str(trips)})
    where = ["--env", ENV, "--actors", "1", "--actors.envs-per-actor", str(LOCAL.get(case, 1)), "--evaluator.enabled", "no"]
    flags = where if case in LOCAL else ["--env", "remote", "--env.port", "0"]
    often = ["--run", "it", "--device", "cpu", "--deploy.record-seconds", "0.5"]
    up = python_command("deploy.cli.main", "up", *flags, *PPO, *often)
    with ExitStack() as stack:
        started = [stack.enter_context(Started(up, folder / "up.txt", environment, signal.SIGINT))]
        if case not in LOCAL:
            wait_until(lambda: bool(ADDRESS.search(going(started))), "an address")
            client = program(case, folder, ADDRESS.findall(going(started))[0], trips)
            started.append(stack.enter_context(Started(client, folder / "client.txt", environment, signal.SIGKILL)))
        wait_until(lambda: bool(going(started)) and returned(run) >= RETURN, f"a return of {RETURN:g}", seconds=LONGEST_SECONDS)
    actor = records(run, "actor-0")
    first = next(record for record in actor if record.get("steps"))
    reached = next(record for record in actor if record.get("episode_return", 0.0) >= RETURN)
    played = headrace.evaluate(str(run.path), ENV, EPISODES)
    return {
        "time": ("s", reached["time"] - first["time"]),
        "steps": ("", reached["steps"]),
        "rate": ("steps/s", rate([first, reached], "steps")),
        "greedy return": ("", played["return_mean"]),
        **round_trips(trips),
    }


def program(language: str, folder: Path, address: str, trips: Path) -> list[str]:
    """The command of a language's client; of two with a measure of round trips."""
    if language == "python":
        return python_command("benchmarks.clients.measured", address, str(trips))
    found = LANGUAGES[language]
    if language == "c":
        found = found._replace(build=(*found.build[:-3], str(MEASURED), *WRAPPED, *found.build[-3:]))
    return [*found.built(folder), address]


class Started:
    """A process that ends with the block; what it prints is in a file, in whose folder it works."""

    def __init__(self, command: list[str], printed: Path, environment: dict[str, str], end: signal.Signals) -> None:
        self._printed, self._end = printed, end
        with printed.open("w") as file:
            self.process = subprocess.Popen(command, cwd=printed.parent, stdout=file, stderr=file, env=environment)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.send_signal(self._end)
        self.process.wait(END_SECONDS)

    @property
    def text(self) -> str:
        return self._printed.read_text(errors="replace")


def going(started: list[Started]) -> str:
    """What the first has printed. Raises CaseFailed where one of them has ended."""
    for one in started:
        if one.process.poll() is not None:
            raise CaseFailed(" ".join(one.text.splitlines()[-1:]))
    return started[0].text


def returned(run: RunDir) -> float:
    """The mean return of its last 100 episodes."""
    actor = records(run, "actor-0")
    return actor[-1].get("episode_return", 0.0) if actor else 0.0


def round_trips(path: Path) -> Figures:
    if not path.exists():
        return {}
    milliseconds = 1000 * np.fromfile(path)[WARM:]
    quantiles = {"round trip, median": 50, "99 %": 99}
    return {name: ("ms", float(np.percentile(milliseconds, part))) for name, part in quantiles.items()}


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    parser = make_parser("clients", __doc__)
    cases = [*LANGUAGES, *LOCAL]
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases, help="which to measure (default all)")
    parser.add_argument("--runs", type=int, default=1, help="runs of each, the median counts (default 1)")
    options = parser.parse_args(arguments)
    report = Report("clients")
    report.notes.append(command_note("clients", arguments))
    for case in options.cases:
        if case in LANGUAGES and LANGUAGES[case].missing:
            report.notes.append(f"{case}: not measured, {LANGUAGES[case].missing} is not installed")
            continue
        found: list[Figures] = []
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory(prefix="headrace-clients-") as folder:
                try:
                    found.append(measure(case, Path(folder)))
                except CaseFailed as error:
                    raise SystemExit(f"{case}: {error}") from None
            say(f"{case}: {', '.join(f'{name} {value:,.6g} {unit}' for name, (unit, value) in found[-1].items())}")
        for name, (unit, _) in found[0].items():
            report.add(case, name, unit, [figures[name][1] for figures in found])
    report.notes.append(f"load of the machine in the last minute {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
