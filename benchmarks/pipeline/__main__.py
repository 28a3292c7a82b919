"""`headrace bench pipeline`: the null simulator -> actors -> replay -> learner, each a process of its own as in a run.

The simulator gives ready-made 84x84 frames, items are stacks of four with n-step 1, drawn by priority, priorities sent back:
  sampler alone    in the learner's place, the sampler of `headrace bench replay`; the actors end once replay is filled
  null alone       a learner whose update is nothing, likewise without actors
  copy alone       a learner whose update copies the batch once, as to an accelerator, likewise
  sampler, null    the first two while actors step as fast as they can; neither side waits for the other
  pause            a learner whose update copies the batch and then sleeps, as a host does while its accelerator computes; the
                   usual limiter
  real             a learner that learns (DQN, Nature network), and actors that act by its network; the usual limiter
All but `real` act by a network of one hidden unit. Beside them, what each process could do at most, each measured alone: the
simulator stepped in one process, bare and behind VectorEnv; the bare gather of the same windows; the update on one fixed batch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from actors.trust import FLAG
from benchmarks.common.processes import end, rate, records, start
from benchmarks.common.report import Report
from benchmarks.common.settings import spec_of
from deploy import settings as files
from deploy.config.files import Tree, merge, write_config
from deploy.config.layers import layers, load_run_config, resolve
from deploy.errors import ConfigError
from transport.experience import read_spec, write_spec
from transport.run_dir import RunDir
from transport.text import ProgressReport

ENV = "benchmarks.pipeline.null_env:make"
CAPACITY, MIN_SIZE = 40_960, 20_480
READY_SECONDS = 180.0
RECORDS_BEFORE = 2  # metrics records of a process that its start may still be in
LIMITS = {"simulator": "steps/s", "environment": "steps/s", "gather": "items/s", "update": "updates/s"}  # limits.py
OPEN = {"replay": {"samples_per_insert_low": 0.0, "samples_per_insert_high": 1e9}}
CHEAP = {"algorithm": {"network": "mlp", "hidden": 1}}
Rows = list[dict[str, float]]


class Case(NamedTuple):
    """What runs in the learner's place, and beside what."""

    name: str
    update: str  # "real", or what benchmarks.pipeline.stand_in takes
    settings: Tree
    actors: bool = True  # whether they go on once replay is filled
    pause_ms: float = 0.0


def cases(pause_ms: float) -> dict[str, list[Case]]:
    """All of them, by the word that asks for them."""
    free = merge(OPEN, CHEAP)
    alone = {"sampler alone": "sampler", "null alone": "none", "copy alone": "0"}
    null = [Case(name, update, free, actors=False) for name, update in alone.items()]
    null += [Case("sampler", "sampler", free), Case("null", "none", free)]
    pause = Case(f"pause {pause_ms:g} ms", str(pause_ms), CHEAP, pause_ms=pause_ms)
    return {"null": null, "pause": [pause], "real": [Case("real", "real", {})]}


class Measured(NamedTuple):
    """What the processes of a case wrote about themselves: records by process, the first only to count from."""

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
        run = RunDir(Path(tempfile.mkdtemp(dir=self._folder)) / "bench")
        run.create()
        run.config.write_bytes(write_config(config))
        run.spec.write_bytes(write_spec(spec_of(config)))
        files.write(run, config)
        return run

    def measure(self, case: Case, seconds: float) -> Measured:
        """Starts everything, waits until replay is filled and the first batches are through, then listens for `seconds`."""
        run = self.run(case.settings)
        names = [f"actor-{index}" for index in range(load_run_config(run, trusted=True).actors.count)]
        with ExitStack() as stack:
            stack.callback(run.remove_sockets)
            processes = stack.enter_context(Processes())
            stand_in = ("benchmarks.pipeline.stand_in", str(run.path), case.update)
            role = ("learner", str(run.path)) if case.update == "real" else stand_in
            processes.start("learner", *role)
            processes.start("replay", "replay", str(run.path))
            for index, name in enumerate(names):
                processes.start(name, "actors", str(run.path), "--actor", str(index), FLAG)
            processes.wait_until(lambda: _last(run, "learner").get("updates", 0) > 0, "the first update")
            if not case.actors:
                processes.end(names)
                names = []
            names += ["learner", "replay"]
            begun = {name: len(records(run, name)) + RECORDS_BEFORE - 1 for name in names}

            def measured(name: str) -> Rows:
                return records(run, name)[begun[name] - 1 :]

            def over(rows: Rows) -> bool:
                return len(rows) > 1 and rows[-1]["time"] >= rows[0]["time"] + seconds

            processes.wait_until(lambda: all(over(measured(name)) for name in names), "the end")
            return Measured({name: measured(name) for name in names})

    def limit(self, kind: str, seconds: float) -> float:
        """One process alone."""
        process = start("benchmarks.pipeline.limits", kind, str(self.run({}).path), str(seconds))
        text, _ = process.communicate(timeout=READY_SECONDS + seconds)
        if process.returncode:
            raise SystemExit(f"the measurement of the {kind} alone failed")
        return float(text.split()[-1])


class Processes:
    """Started under a name; all are gone when the block is left."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end(list(self._running))

    def start(self, name: str, *command: str) -> None:
        self._running[name] = start(*command)

    def end(self, names: list[str]) -> None:
        end([self._running.pop(name) for name in names])

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        """Waits for a predicate; raises when it takes too long, or a process ends."""
        deadline = time.monotonic() + READY_SECONDS
        while not true():
            for name, process in self._running.items():
                if process.poll() is not None:
                    said = process.communicate()[0].strip().splitlines()
                    raise SystemExit(f"{name} ended: {said[-1] if said else process.returncode}")
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {READY_SECONDS:.0f} s in vain for {what}")
            time.sleep(0.1)


def _last(run: RunDir, name: str) -> dict[str, float]:
    return (records(run, name) or [{}])[-1]


def measure(bench: Bench, chosen: list[Case], runs: int, seconds: float) -> Report:
    """Every limit and case, `runs` times, in turn, so that a drift of the machine's speed meets all alike."""
    run = bench.run({})
    config, spec = load_run_config(run, trusted=True), read_spec(run.spec.read_bytes())
    report = Report("pipeline")
    actors = f"{config.actors.count} actors x {config.actors.envs_per_actor} null simulators"
    items = f"batches of {config.learner.batch_size} items, stack 4 + n-step {spec.n_step}, 84x84"
    report.notes.append(f"{actors}; {items}; a pause is a sleep: it takes no processor's time")
    limits: dict[str, list[float]] = defaultdict(list)
    found: dict[str, list[Measured]] = defaultdict(list)
    progress = ProgressReport(runs)
    for number in range(runs):
        for kind in LIMITS:
            if kind != "update" or any(case.update == "real" for case in chosen):
                _say(number, runs, progress, f"{kind}, alone")
                limits[kind].append(bench.limit(kind, seconds))
        for case in chosen:
            _say(number, runs, progress, case.name)
            found[case.name].append(bench.measure(case, seconds))
    for kind, values in limits.items():
        report.add("each alone", kind, LIMITS[kind], values)
    for case in chosen:
        _add_case(report, case, found[case.name], limits)
    for name, peer in (("null alone", "sampler alone"), ("copy alone", "sampler alone"), ("null", "sampler")):
        if name in found:
            ours, theirs = ([one.rate("learner", "items") for one in found[which]] for which in (name, peer))
            _add_ratio(report, name, "items", peer, ours, theirs)
    return report


def _add_ratio(report: Report, case: str, metric: str, peer: str, ours: list[float], theirs: list[float]) -> None:
    """The median of each run's own ratio."""
    report.ratio(case, metric, peer, statistics.median(our / their for our, their in zip(ours, theirs, strict=True)))


def _add_case(report: Report, case: Case, measured: list[Measured], most: dict[str, list[float]]) -> None:
    """A case's rates, each process's time, and how far each process is from what it could do alone."""
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
    if case.actors:
        actors = sum(name.startswith("actor") for name in measured[0].processes)
        each = [steps / actors for steps in value["steps"]]
        for kind in ("simulator", "environment"):
            _add_ratio(report, case.name, "steps per actor", f"{kind} alone", each, most[kind])
    _add_ratio(report, case.name, "items", "gather alone", value["items"], most["gather"])
    if case.update == "real":
        _add_ratio(report, case.name, "updates", "update alone", value["updates"], most["update"])
    elif case.pause_ms:
        _add_ratio(report, case.name, "updates", "pause alone", value["updates"], [1000 / case.pause_ms] * len(measured))


def show(report: Report, as_json: bool) -> None:
    """As the other benchmarks do, but with the phases of a process on one line."""
    phases: dict[tuple[str, str], list[str]] = defaultdict(list)
    rest = Report(report.benchmark, ratios=report.ratios, notes=report.notes)
    for result in report.results:
        process, dot, phase = result["metric"].partition(".")
        if dot:
            phases[result["case"], process].append(f"{phase} {result['value']:.1f}")
        else:
            rest.results.append(result)
    (report if as_json else rest).print(as_json)
    if not as_json:
        for (case, process), shares in phases.items():
            print(f"{case:<28} {process:<14} % of its time: {' · '.join(shares)}")


def _say(number: int, runs: int, progress: ProgressReport, what: str) -> None:
    print(f"run {number + 1} of {runs}{progress.left(number)}: {what} …", file=sys.stderr)


def milliseconds(text: str) -> float:
    """An option's value. Raises ValueError for what no update can take."""
    value = float(text)
    if not 0 <= value < 1e6:
        raise ValueError(text)
    return value


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and runs everything."""
    parser = argparse.ArgumentParser(
        prog="headrace bench pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = list(cases(0))
    parser.add_argument("--cases", nargs="+", choices=words, default=words, help="which to measure (default all)")
    parser.add_argument("--update-ms", type=milliseconds, default=20.0, help="how long the pause sleeps (default 20)")
    parser.add_argument("--batch-size", type=int, default=512, help="items per update (default 512)")
    parser.add_argument("--actors", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--envs-per-actor", type=int, default=16, help="environments of each process (default 16)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement (default 20)")
    parser.add_argument("--runs", type=int, default=3, help="measurements of each case; the median is reported (default 3)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    flags = {
        "env": {"id": ENV},
        "algorithm": {"n_step": 1},
        "actors": {"count": options.actors, "envs_per_actor": options.envs_per_actor},
        "replay": {"capacity": CAPACITY, "min_size": MIN_SIZE},
        "learner": {"batch_size": options.batch_size},
    }
    chosen = [case for word, found in cases(options.update_ms).items() if word in options.cases for case in found]
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = measure(Bench(Path(folder), flags), chosen, options.runs, options.seconds)
    except ConfigError as error:
        print(f"headrace bench pipeline: {error}", file=sys.stderr)
        return 2
    show(report, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
