"""`headrace bench env`: how much of the bare simulator's rate is left of it in actors, in one run on the same cores.

Four cases in turn, each by as many processes as there are actors, each with as many environments:
  simulator      what lies beneath the environment, alone (Mario: emulator frames, no observation, reward or info)
  environment    the environment as it comes, with random actions
  actors         actor processes with their policy's forward pass, sending to a real replay server; no learner
  with learner   the same beside a real learner; also its updates, and the share of its time that it waits for batches
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import tomli_w

from actors.config import EnvConfig
from actors.envs.make import make_env
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from benchmarks.report import Report
from deploy.config import RunConfig, layers, resolve
from deploy.process import child_environment
from learner.networks import build_network
from learner.weights import WeightPublisher
from transport.experience import Categorical, ExperienceSpec
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir

CASES = ("simulator", "environment", "actors", "with learner")
RESTART_STEPS = 200  # of the emulator alone, which does not know when an episode ends
READY_SECONDS = 120.0
RECORDS_BEFORE = 2  # metrics records of an actor that its start may still be in


def steps_alone(env: EnvConfig, spec: ExperienceSpec, count: int, case: str, go: Callable[[], None], seconds: float) -> float:
    """Steps per second of `count` environments in this process."""
    generator = np.random.default_rng(0)
    step = _simulator(env, count, generator) if case == "simulator" else _environment(env, spec, count, generator)
    for _ in range(3):
        step()
    go()
    begun, steps = time.monotonic(), 0
    while time.monotonic() < begun + seconds:
        step()
        steps += count
    return steps / (time.monotonic() - begun)


def _simulator(config: EnvConfig, count: int, generator: np.random.Generator) -> Callable[[], None]:
    """Steps every environment's simulator once: the emulator where there is one, else the environment without ours around it."""
    envs = [make_env(config) for _ in range(count)]
    for env in envs:
        env.reset(seed=0)
    taken = 0

    def emulate() -> None:
        nonlocal taken
        taken += 1
        for env in envs:
            console = env.unwrapped.console  # type: ignore[attr-defined]
            if taken % RESTART_STEPS == 0:
                console.restore()
            console.press(int(generator.integers(256)) & ~0b1100)  # any buttons but START and SELECT
            console.advance(env.unwrapped.frames_per_step)  # type: ignore[attr-defined]

    def play() -> None:
        for env in envs:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()

    return emulate if hasattr(envs[0].unwrapped, "console") else play


def _environment(config: EnvConfig, spec: ExperienceSpec, count: int, generator: np.random.Generator) -> Callable[[], None]:
    """Steps a vectorised environment, observations included, by random actions."""
    env = VectorEnv(config, spec, count, range(count))
    env.reset()
    assert isinstance(spec.action, Categorical)
    choices = spec.action.n
    return lambda: env.step(generator.integers(choices, size=count)) and None


class Bench:
    """One run's files, and the processes of a case."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder, self.config = folder, config
        env = make_env(config.env)
        self.spec = experience_spec(env, config.env, config.algorithm.n_step, config.replay.codec, config.algorithm.remembered)
        env.close()

    def alone(self, case: str, seconds: float) -> float:
        """Processes that need no others, all starting to count at once."""
        with tempfile.TemporaryDirectory(dir=self.folder) as gate:
            commands = [
                ["benchmarks.env", "--case", case, "--gate", gate, "--seconds", str(seconds), "--run-dir", str(self._run().path)]
            ]
            processes = [start(*command) for command in commands * self.config.actors.count]
            try:
                wait_until(lambda: len(list(Path(gate).glob("ready-*"))) == len(processes), "the simulators")
                (Path(gate) / "go").touch()
                return sum(float(process.communicate(timeout=seconds + READY_SECONDS)[0].split()[-1]) for process in processes)
            finally:
                end(processes)

    def actors(self, seconds: float, learner: bool) -> tuple[float, float, float]:
        """A run of real processes; without a learner, actors follow weights that this process publishes once.

        Gives steps per second, and the learner's updates per second and waiting share of its time (0 without one).
        """
        run = self._run()
        names = [f"actor-{index}" for index in range(self.config.actors.count)]
        with ExitStack() as stack:
            if learner:
                processes = [start("learner", str(run.path))]
            else:
                bind = run.bind_address
                publisher = WeightPublisher(bind("weights"), bind("payload"), new_incarnation())
                stack.callback(publisher.close)
                publisher.publish(build_network(self.spec, self.config.algorithm), 1)  # from version 1 on the policy acts
                run.write_endpoint("payload", publisher.addresses[1])
                run.write_endpoint("weights", publisher.addresses[0])
                processes = []
            stack.callback(run.remove_sockets)
            stack.callback(end, processes)
            processes.append(start("replay", str(run.path)))
            processes += [start("actors", str(run.path), "--actor", str(index)) for index in range(len(names))]
            wait_until(lambda: all(len(records(run, name)) > RECORDS_BEFORE for name in names), "the actors")
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
        learned = found.pop("learner", None)
        updates = rate(learned, "updates") if learned else 0.0
        waiting = statistics.fmean(record["data_wait_fraction"] for record in learned[1:]) if learned else 0.0
        return sum(rate(steps, "steps") for steps in found.values()), updates, waiting

    def _run(self) -> RunDir:
        run = RunDir(Path(tempfile.mkdtemp(dir=self.folder)) / "bench")
        run.create()
        run.config.write_text(tomli_w.dumps(msgspec.to_builtins(self.config)))
        run.spec.write_bytes(msgspec.json.encode(self.spec))
        return run


def start(*arguments: str) -> subprocess.Popen[str]:
    """A process of this benchmark's; what it says on its output is read at its end."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment())


def end(processes: list[subprocess.Popen[str]]) -> None:
    """Asks all to stop, and waits for them."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.communicate(timeout=READY_SECONDS)


def records(run: RunDir, name: str) -> list[dict[str, float]]:
    """What a process has measured."""
    try:
        return [msgspec.json.decode(line) for line in run.metrics(name).read_bytes().splitlines()]
    except (OSError, msgspec.DecodeError):  # not there, or a line half written
        return []


def rate(records: list[dict[str, float]], counter: str) -> float:
    """A counter's growth per second from the first record to the last."""
    first, last = records[0], records[-1]
    return (last[counter] - first[counter]) / (last["time"] - first["time"])


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Waits for a predicate."""
    deadline = time.monotonic() + READY_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {READY_SECONDS:.0f} s in vain for {what}")
        time.sleep(0.1)


def measure(bench: Bench, runs: int, seconds: float) -> Report:
    """Every case, `runs` times, in turn, so that a drift of the machine's speed meets all alike."""
    config = bench.config
    report = Report("env")
    report.notes.append(f"{config.env.id}: {config.actors.count} processes x {config.actors.envs_per_actor} environments")
    rates: dict[str, list[float]] = {case: [] for case in CASES}
    updates: list[float] = []
    waiting: list[float] = []
    for run in range(runs):
        for case in CASES:
            print(f"run {run + 1} of {runs}: {case} …", file=sys.stderr)
            if case in ("simulator", "environment"):
                rates[case].append(bench.alone(case, seconds))
            elif case == "actors":
                rates[case].append(bench.actors(seconds, learner=False)[0])
            else:
                for figures, figure in zip((rates[case], updates, waiting), bench.actors(seconds, learner=True), strict=True):
                    figures.append(figure)
    bare = report.add("simulator", "steps", "steps/s", rates["simulator"])
    for case in CASES[1:]:
        report.ratio(case, "steps", "simulator", report.add(case, "steps", "steps/s", rates[case]) / bare)
    report.add("with learner", "updates", "1/s", updates)
    report.add("with learner", "data wait", "%", [100 * share for share in waiting])
    return report


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and runs one process's part, or everything."""
    parser = argparse.ArgumentParser(
        prog="headrace bench env", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="mario", help="the environment, as headrace up names it (default mario)")
    parser.add_argument("--actors", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--envs-per-actor", type=int, default=8, help="environments of each process (default 8)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement (default 20)")
    parser.add_argument("--runs", type=int, default=3, help="measurements of each case; the median is reported (default 3)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--gate", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case:
        print(part(RunDir(options.run_dir), options.case, options.gate, options.seconds))
        return 0
    os.environ.update(child_environment())  # one compute thread, here too
    flags = {"env": {"id": options.env}, "actors": {"count": options.actors, "envs_per_actor": options.envs_per_actor}}
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Bench(Path(folder), resolve(layers(flags))), options.runs, options.seconds)
    report.print(options.json)
    return 0


def part(run: RunDir, case: str, gate: Path, seconds: float) -> float:
    """One process's steps per second; it says when it is ready, and waits for the others."""
    config = msgspec.toml.decode(run.config.read_bytes(), type=RunConfig)
    spec = msgspec.json.decode(run.spec.read_bytes(), type=ExperienceSpec)

    def go() -> None:
        (gate / f"ready-{os.getpid()}").touch()
        while not (gate / "go").exists():
            time.sleep(0.01)

    return steps_alone(config.env, spec, config.actors.envs_per_actor, case, go, seconds)


if __name__ == "__main__":
    sys.exit(main())
