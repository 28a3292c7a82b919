"""`headrace bench pipeline`: the null simulator -> actors -> replay -> learner, each a process of its own as in a run.

The simulator gives ready-made 84x84 frames, items are stacks of four with n-step 1, drawn by priority, priorities sent back:
  null alone  a learner whose update is nothing; the actors end once replay is filled
  null        the same while actors step as fast as they can; neither side waits for the other
  real        a learner that learns (DQN, Nature network), and actors that act by its network; the usual limiter
All but `real` act by a network of one hidden unit. What a simulator does alone, `headrace bench env` measures; the bare gather of
windows, `headrace bench replay`; an update on batches that are there, `headrace bench learner`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from actors.trust import FLAG
from benchmarks.common.processes import end, rate, records, start, wait_until
from benchmarks.common.report import Report, add_length, make_parser, say
from benchmarks.common.settings import make_run, spec_of
from deploy.config.files import Tree, merge
from deploy.config.layers import layers, load_run_config, resolve
from deploy.errors import ConfigError
from transport.experience import read_spec
from transport.run_dir import RunDir
from transport.text import ProgressReport

ENV = "benchmarks.pipeline.null_env:make"
CAPACITY, MIN_SIZE = 40_960, 20_480
READY_SECONDS = 180.0
RECORDS_BEFORE = 2  # metrics records of a process that its start may still be in
OPEN = {"replay": {"samples_per_insert_low": 0.0, "samples_per_insert_high": 1e9}}
CHEAP = {"algorithm": {"network": "mlp", "hidden": 1}}
Rows = list[dict[str, float]]


class Case(NamedTuple):
    """A learner, or what stands in its place, and the settings of the run around it."""

    name: str
    update: str  # "real", or "none"
    settings: Tree
    actors: bool = True  # whether they go on once replay is filled


def cases() -> list[Case]:
    """All of them."""
    free = merge(OPEN, CHEAP)
    return [Case("null alone", "none", free, actors=False), Case("null", "none", free), Case("real", "real", {})]


class Measured(NamedTuple):
    """The records that the processes of a case wrote, by process; the first of each only to count from."""

    processes: dict[str, Rows]

    def rate(self, process: str, counter: str) -> float:
        """Per second, all processes of that name (actor: actor-0, actor-1 …) together."""
        return sum(rate(rows, counter) for name, rows in self.processes.items() if name.startswith(process))

    def shares(self, process: str) -> dict[str, float]:
        """Each phase's share of the time, in percent of one process; `processor` is CPU seconds per second."""
        found: dict[str, list[float]] = defaultdict(list)
        for name, rows in self.processes.items():
            if name.startswith(process):
                spans = np.diff([row["time"] for row in rows])
                for phase in sorted({key for row in rows[1:] for key in row if key.endswith("_fraction")}):
                    values = [row.get(phase, 0.0) for row in rows[1:]]
                    found[phase.removesuffix("_fraction")].append(100 * float(np.average(values, weights=spans)))
        return {phase: statistics.fmean(values) for phase, values in found.items()}

    def cpu_seconds(self, process: str, counter: str) -> float:
        """CPU seconds of all processes of that name per million steps of the actors, or items of the learner."""
        share = sum(1 for name in self.processes if name.startswith(process)) * self.shares(process)["processor"] / 100
        return 1e6 * share / self.rate("actor" if counter == "steps" else "learner", counter)


class Bench:
    """The runs of the cases."""

    def __init__(self, folder: Path, flags: Tree) -> None:
        self._folder, self._flags = folder, flags

    def run(self, settings: Tree) -> RunDir:
        """A new run's folder."""
        config = resolve(layers(merge(self._flags, settings)))
        return make_run(self._folder, config, spec_of(config))

    def measure(self, case: Case, seconds: float) -> Measured:
        """Starts everything, waits until replay is filled and the first batches are through, then listens for `seconds`."""
        run = self.run(case.settings)
        names = [f"actor-{index}" for index in range(load_run_config(run, trusted=True).actors.count)]
        with ExitStack() as stack:
            stack.callback(run.remove_sockets)
            processes: dict[str, subprocess.Popen[str]] = {}
            stack.callback(lambda: end(list(processes.values())))

            def wait(true: Callable[[], bool], what: str) -> None:
                wait_until(true, what, list(processes.values()), READY_SECONDS)

            stand_in = ("benchmarks.pipeline.stand_in", str(run.path))
            processes["learner"] = start(*(("learner", str(run.path)) if case.update == "real" else stand_in))
            processes["replay"] = start("replay", str(run.path))
            for index, name in enumerate(names):
                processes[name] = start("actors", str(run.path), "--actor", str(index), FLAG)
            wait(lambda: _last(run, "learner").get("updates", 0) > 0, "the first update")
            if not case.actors:
                end([processes.pop(name) for name in names])
                names = []
            names += ["learner", "replay"]
            begun = {name: len(records(run, name)) + RECORDS_BEFORE - 1 for name in names}

            def measured(name: str) -> Rows:
                return records(run, name)[begun[name] - 1 :]

            def over(rows: Rows) -> bool:
                return len(rows) > 1 and rows[-1]["time"] >= rows[0]["time"] + seconds

            wait(lambda: all(over(measured(name)) for name in names), "the end")
            return Measured({name: measured(name) for name in names})


def _last(run: RunDir, name: str) -> dict[str, float]:
    return (records(run, name) or [{}])[-1]


def measure(bench: Bench, chosen: list[Case], runs: int, seconds: float) -> Report:
    """Every case, `runs` times, in turn, so that a drift of the machine's speed meets all alike."""
    run = bench.run({})
    config, spec = load_run_config(run, trusted=True), read_spec(run.spec.read_bytes())
    report = Report("pipeline")
    actors = f"{config.actors.count} actors x {config.actors.envs_per_actor} null simulators"
    items = f"batches of {config.learner.batch_size} items, stack 4 + n-step {spec.n_step}, 84x84"
    report.notes.append(f"{actors}; {items}")
    found: dict[str, list[Measured]] = defaultdict(list)
    progress = ProgressReport(runs)
    for number in range(runs):
        for case in chosen:
            say(f"run {number + 1} of {runs}{progress.left(number)}: {case.name} …")
            found[case.name].append(bench.measure(case, seconds))
    for case in chosen:
        _add_case(report, case, found[case.name])
    return report


def _add_case(report: Report, case: Case, measured: list[Measured]) -> None:
    """A case's rates, and each process's time."""
    rates = {("actor", "steps"): "steps/s", ("learner", "items"): "items/s", ("learner", "updates"): "updates/s"}
    value: dict[str, list[float]] = {}
    for (process, counter), unit in rates.items():
        if process != "actor" or case.actors:
            value[counter] = [one.rate(process, counter) for one in measured]
            report.add(case.name, counter, unit, value[counter])
    for process, counter in (("actor", "steps"), ("replay", "items"), ("learner", "items")):
        if process == "actor" and not case.actors:
            continue
        costs = [one.cpu_seconds(process, counter) for one in measured]
        report.add(case.name, f"{process} CPU", f"s per million {counter}", costs)
        shares = [one.shares(process) for one in measured]
        for phase in sorted({phase for share in shares for phase in share}):
            report.add(case.name, f"{process}.{phase}", "%", [share.get(phase, 0.0) for share in shares])


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and runs everything."""
    parser = make_parser("pipeline", __doc__)
    words = [case.name for case in cases()]
    parser.add_argument("--cases", nargs="+", choices=words, default=words, help="which to measure (default all)")
    parser.add_argument("--batch-size", type=int, default=512, help="items per update (default 512)")
    parser.add_argument("--actors", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--envs-per-actor", type=int, default=16, help="environments of each process (default 16)")
    add_length(parser, 20.0, 3, "one run of 3 s a case")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seconds, options.runs = 3.0, 1
    flags = {
        "env": {"id": ENV},
        "algorithm": {"n_step": 1},
        "actors": {"count": options.actors, "envs_per_actor": options.envs_per_actor},
        "replay": {"capacity": CAPACITY, "min_size": MIN_SIZE},
        "learner": {"batch_size": options.batch_size},
    }
    chosen = [case for case in cases() if case.name in options.cases]
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = measure(Bench(Path(folder), flags), chosen, options.runs, options.seconds)
    except ConfigError as error:
        print(f"headrace bench pipeline: {error}", file=sys.stderr)
        return 2
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
