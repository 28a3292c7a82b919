"""`headrace bench env`: how much of the bare simulator's rate is left of it in actors, in one run on the same cores.

Every shipped environment that is installed, or the one that --env names. The cases take turns, each run by as many processes as
there are actors, each with as many environments; all are steps of one environment.

  simulator      what lies beneath the environment, alone (Mario: emulator frames, no observation, reward or info)
  environment    the environment as actors have it, observations and resets included, with random actions
  policy         the same with observations stacked and one forward pass for all; nothing is kept
  actors         actor processes that send to a real replay server; no learner. Also the shares of their time, by the phases of
                 their records. Not for algorithms that learn from rollouts: without a learner their actors soon wait
  batched        (--with-batched) the same actors with one inference process for all of them (--actors.inference batched)
  with learner   (--with-learner) the actors beside a real learner; also its updates, and the share of its time that it waits

"steps" are those of all processes by the wall clock; "per core" divides by the processor time of these processes alone, so that
what replay or others take of the same cores is left out. "memory" is what these processes have of their own. Every setting of a
run can be given, as --env.stack 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import psutil
from msgspec import structs

from actors.envs.make import resolve_env
from actors.errors import EnvError
from actors.trust import FLAG
from benchmarks.actors import cases as one_process
from benchmarks.common.processes import end, rate, records, start, wait_until
from benchmarks.common.report import Report, add_length, say
from benchmarks.common.settings import make_run, spec_of
from deploy.config import command_line, options
from deploy.config.files import Tree, merge
from deploy.config.layers import layers, resolve
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from learner.algorithms.base import make_algorithm
from learner.config import INFERENCE
from learner.networks.describe import describe
from learner.serving.publish import WeightPublisher
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir
from transport.text import ProgressReport

ALONE = ("simulator", "environment", "policy")
ACTORS, BATCHED, LEARNER = "actors", "batched", "with learner"
RECORDS_BEFORE = 2  # metrics records of an actor that its start may still be in
SECONDS_AFTER = 60.0  # that a process has to say its figure when its time is over
SHIPPED = ("mario", "robot", "snake", "CartPole-v1", "ALE/Pong-v5")
# Beneath what is asked for, above the environment's preset: what shows the path of experience, not the size of a network.
CHOSEN: dict[str, Tree] = {
    "snake": {
        "env": {"chunk_length": 128},
        "algorithm": {"name": "dqn", "network": "linear"},
        "actors": {"count": 1, "envs_per_actor": 256},
        "replay": {"receive_bytes": 64_000_000},
    },
    "CartPole-v1": {"actors": {"count": 1, "envs_per_actor": 16}},
}
QUICK_ENV, QUICK_SECONDS = "snake", 3.0
OTHERWISE: Tree = {"actors": {"count": 2, "envs_per_actor": 8}}


class Bench:
    """The processes of one environment's cases, and their files."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        """Raises EnvError where the environment cannot be made, ValueError where no network fits it."""
        self.folder, self.config = folder, config
        self.spec = spec_of(config)
        self.network = make_algorithm(config.algorithm).policy(self.spec)

    @property
    def needs_learner(self) -> bool:
        """True where actors wait until a learner has taken their rollouts."""
        return self.spec.unit == "rollouts"

    def alone(self, case: str, seconds: float) -> dict[str, float]:
        """Processes that need no others, all starting to count at once: their "steps" per second, "per core" per CPU second."""
        with tempfile.TemporaryDirectory(dir=self.folder) as start_folder:
            rest = ("--start-folder", start_folder, "--seconds", str(seconds), "--run-dir", str(self._run().path))
            processes = [start("benchmarks.actors.env", "--case", case, *rest) for _ in range(self.config.actors.count)]
            try:
                wait_until(lambda: len(list(Path(start_folder).glob("ready-*"))) == len(processes), "the simulators", processes)
                (Path(start_folder) / "go").touch()
                said = [process.communicate(timeout=seconds + SECONDS_AFTER)[0] for process in processes]
            finally:
                end(processes)
        timings = [one_process.Timing(**json.loads(text.splitlines()[-1])) for text in said]
        steps = sum(one.steps for one in timings)
        per_second = sum(one.steps / one.wall_seconds for one in timings)
        return {"steps": per_second, "per core": steps / sum(one.processor_seconds for one in timings)}

    def actors(self, seconds: float, learner: bool = False, batched: bool = False) -> dict[str, float]:
        """A run of real processes: "steps" and "per core" per second, "memory" in MB, the shares of the actors' phases; with a
        learner, its "updates" and "data wait" (%)."""
        names = [f"actor-{index}" for index in range(self.config.actors.count)]
        with ExitStack() as stack:
            run = self._serve(stack, learner, batched)
            processes = [start("actors", str(run.path), "--actor", str(index), FLAG) for index in range(len(names))]
            if batched:
                processes.append(start("learner.serving.inference", str(run.path), INFERENCE))
                names.append(INFERENCE)
            stack.callback(end, processes)
            wait_until(lambda: all(len(records(run, name)) > RECORDS_BEFORE for name in names), "the actors", processes)
            if learner:
                wait_until(lambda: (records(run, "learner") or [{}])[-1].get("updates", 0) > 0, "the learner's first update")
                names.append("learner")
            begun = {name: len(records(run, name)) for name in names}

            def measured(name: str) -> list[dict[str, float]]:
                return records(run, name)[begun[name] - 1 :]

            wait_until(
                lambda: all(measured(name)[-1]["time"] >= measured(name)[0]["time"] + seconds for name in names), "the end"
            )
            found = {name: measured(name) for name in names}
            memory = sum(psutil.Process(process.pid).memory_full_info().uss for process in processes)
        learned = found.pop("learner", None)
        steps = sum(rate(lines, "steps") for name, lines in found.items() if name != INFERENCE)
        figures = {"steps": steps, "per core": steps / sum(map(processors, found.values())), "memory": memory / 1e6}
        figures |= phases([lines for name, lines in found.items() if name != INFERENCE])
        if batched:
            figures["rows a pass"] = statistics.fmean(record.get("rows_per_pass", 0.0) for record in found[INFERENCE][1:])
        if learned:
            waiting = statistics.fmean(record["data_wait_fraction"] for record in learned[1:])
            figures |= {"updates": rate(learned, "updates"), "data wait": 100 * waiting}
        return figures

    def _serve(self, stack: ExitStack, learner: bool = False, batched: bool = False) -> RunDir:
        """Replay, and a learner; without one, actors follow weights that this process publishes once."""
        run = self._run(batched)
        stack.callback(run.remove_sockets)
        servers = [start("learner", str(run.path))] if learner else []
        if not learner:
            publisher = WeightPublisher(run.bind_address("weights"), run.bind_address("payload"), new_incarnation())
            stack.callback(publisher.close)
            publisher.publish(self.network, 1)  # from version 1 on the policy acts
            run.write_endpoint("payload", publisher.addresses[1])
            run.write_endpoint("weights", publisher.addresses[0])
        servers.append(start("replay", str(run.path)))
        stack.callback(end, servers)
        return run

    def _run(self, batched: bool = False) -> RunDir:
        config = self.config
        if batched:
            config = structs.replace(config, actors=structs.replace(config.actors, inference="batched"))
        run = make_run(self.folder, config, self.spec)
        run.policy.write_bytes(msgspec.json.encode(describe(self.network)))
        return run


def processors(records: list[dict[str, float]]) -> float:
    """The processor seconds per second of a process between its first record and its last."""
    spans = [after["time"] - before["time"] for before, after in zip(records, records[1:], strict=False)]
    used = [span * record["processor_fraction"] for span, record in zip(spans, records[1:], strict=True)]
    return sum(used) / sum(spans)


def phases(actors: list[list[dict[str, float]]]) -> dict[str, float]:
    """The mean share of each phase in the actors' time."""
    names = sorted({name for lines in actors for record in lines[1:] for name in record if name.endswith("_fraction")})
    return {
        name.removesuffix("_fraction"): statistics.fmean(record.get(name, 0.0) for lines in actors for record in lines[1:])
        for name in names
    }


def measure(benches: dict[str, Bench], learner: bool, batched: bool, runs: int, seconds: float) -> Report:
    """Every case of every environment, `runs` times, in turn, so that a drift of the machine's speed meets all alike."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    progress = ProgressReport(runs)

    def add(env: str, case: str, run: int, figures: Callable[[], dict[str, float]]) -> None:
        say(f"run {run + 1} of {runs}{progress.left(run)}: {env} {case} …")
        found.setdefault((env, case), []).append(figures())

    for run in range(runs):
        for env, bench in benches.items():
            for case in ALONE:
                add(env, case, run, partial(bench.alone, case, seconds))
            if not bench.needs_learner:
                add(env, ACTORS, run, partial(bench.actors, seconds))
                if batched:
                    add(env, BATCHED, run, partial(bench.actors, seconds, batched=True))
            if learner:
                add(env, LEARNER, run, partial(bench.actors, seconds, learner=True))
    report = Report("env")
    units = {"steps": "steps/s", "per core": "steps/s", "memory": "MB", "rows a pass": "rows", "updates": "1/s", "data wait": "%"}
    for (env, case), figures in found.items():
        for metric in figures[0]:
            share = metric not in units
            values = [100 * figure[metric] if share else figure[metric] for figure in figures]
            value = report.add(f"{env} {case}", metric, "%" if share else units[metric], values)
            if case == BATCHED and metric in found[env, ACTORS][0]:
                report.ratio(
                    f"{env} {case}", metric, ACTORS, value / statistics.median(one[metric] for one in found[env, ACTORS])
                )
            if metric in ("steps", "per core") and case != "simulator":
                bare = statistics.median(figure[metric] for figure in found[env, "simulator"])
                report.ratio(f"{env} {case}", metric, "simulator", value / bare)
    for env, bench in benches.items():
        config = bench.config
        report.notes.append(
            f"{env}: {config.actors.count} x {config.actors.envs_per_actor} environments, "
            f"network {config.algorithm.options.network}, chunks of {bench.spec.chunk_length}"
        )
        if bench.needs_learner:
            report.notes.append(
                f"{env}: {config.algorithm.name} learns from rollouts, so its actors are only measured with --with-learner"
            )
    return report


def benches(folder: Path, given: Tree, shipped: Sequence[str] = SHIPPED) -> dict[str, Bench]:
    """The environments to measure: that asked for, or all that are installed. Raises ConfigError, EnvError, ValueError."""
    asked = given.get("env", {}).get("id")
    made: dict[str, Bench] = {}
    for env in [asked] if asked else shipped:
        chosen = merge(merge(OTHERWISE, CHOSEN.get(str(env).partition(":")[0], {})), merge(given, {"env": {"id": env}}))
        try:
            config = resolve(layers(chosen))
            made[env] = Bench(folder, structs.replace(config, env=resolve_env(config.env)))
        except (EnvError, ValueError) as error:
            if asked:
                raise
            say(f"{env} is left out: {error}")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and runs one process's part, or everything."""
    parser = command_line.Parser(prog="headrace bench env", description=__doc__)
    add_length(parser, 20.0, 3, f"one run of {QUICK_SECONDS:g} s a case, of {QUICK_ENV} unless --env says another")
    parser.add_argument("--with-learner", action="store_true", help="also beside a real learner")
    parser.add_argument("--with-batched", action="store_true", help="also with one inference process for all actors")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--case", choices=ALONE, help=argparse.SUPPRESS)
    parser.add_argument("--start-folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    options.add_config_options(parser)
    try:
        parsed = command_line.parse(parser, sys.argv[1:] if arguments is None else arguments, "bench env")
        if parsed.case:
            timings = one_process.alone(RunDir(parsed.run_dir), parsed.case, parsed.start_folder, parsed.seconds)
            print(json.dumps(timings._asdict()))
            return 0
        with tempfile.TemporaryDirectory() as folder:
            made = benches(Path(folder), command_line.given(parsed), (QUICK_ENV,) if parsed.quick else SHIPPED)
            runs, seconds = (1, QUICK_SECONDS) if parsed.quick else (parsed.runs, parsed.seconds)
            report = measure(made, parsed.with_learner, parsed.with_batched, runs, seconds)
    except (ConfigError, EnvError, ValueError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    report.print(parsed.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
