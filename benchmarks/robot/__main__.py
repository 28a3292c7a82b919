"""`headrace bench robot`: PPO on the robot, Headrace's beside Stable-Baselines3's, in turn on the same machine.

Both learn to reach within 5 cm over the whole workspace: PyBullet, the flat form, the dense reward, no curriculum, from nothing.
Network, samples of a rollout, minibatches, passes, learning rate, losses and the normaliser are those of Headrace's preset on
both sides; neither stops early by KL, neither evaluates beside training, everything computes on the CPU.

  rate   environment steps learned from per second of the wall clock, after a warm-up
  time   seconds from the start of the process to the first saved policy that succeeds in 90 % of the reserved episodes and is
         followed by another that does; the policies saved are looked at when training is over

Stable-Baselines3 has 8 environments, in the form and with the threads that are fastest here: that is tried first. For `time` it
also tries other settings, one seed each, and runs the best of them with every seed; the better of the two counts.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.report import Report, result
from benchmarks.peers.run import Peer, PeerFailed
from benchmarks.robot.runs import (
    Act,
    HeadraceTraining,
    Judge,
    PeerTraining,
    Training,
    first_time,
    rate,
    settings_of,
    train,
)
from deploy.config.files import Tree, merge
from deploy.config.layers import layers, resolve
from deploy.config.run import RunConfig
from transport.text import reported

PEER = "stable_baselines3"
CASES = ("rate", "time")
ENVS = 8  # of the peer
SAVED_STEPS = 8192  # environment steps between two saved policies, on both sides
LEAST = 0.9
ENOUGH, MORE = 0.95, 4  # training ends when so many policies have been saved since its own episodes succeeded that often
WARM_UP_SECONDS, TRIAL_SECONDS = 10.0, 20.0
PATIENCE_SECONDS, TRIAL_PATIENCE_SECONDS = 600.0, 60.0  # until a training saves policies, or something is wrong
FORMS = [(form, threads) for form in ("DummyVecEnv", "SubprocVecEnv") for threads in (1, 2)]
GRID = [  # (learning rate, steps of an environment per rollout, passes, minibatch)
    (3e-4, 128, 5, 256),
    (3e-4, 128, 10, 256),
    (1e-3, 128, 5, 256),
    (1e-3, 128, 10, 256),
    (3e-4, 512, 10, 512),
    (1e-3, 512, 10, 512),
]
TASK: Tree = {
    "env": {
        "id": "robot:flat",
        "backend": "pybullet",
        "reward": "dense",
        "tolerance": 0.05,
        "tier": "all",
        "curriculum": False,
    },
    "algorithm": {
        "name": "ppo",
        "target_kl": 0.0,
        "adaptive_kl": 0.0,
        "clip_range_vf": 0.0,
        "anneal_steps": 0,
        "reward_scale": 1.0,
    },
    "learner": {"device": "cpu", "keep_checkpoints": 1_000_000},
    "evaluator": {"enabled": False},
}


class Reached(NamedTuple):
    """When a training was good enough; where it never was, the limit, and how far it came."""

    seconds: float
    steps: int
    reached: bool


class Bench:
    """Trainings of both sides."""

    def __init__(self, folder: Path, peer: Peer) -> None:
        preset = resolve(layers(TASK))
        every = max(SAVED_STEPS // preset.learner.batch_size, 1)
        self.settings = merge(TASK, {"learner": {"checkpoint_epochs": every, "checkpoint_seconds": 0.0}})
        self.config: RunConfig = resolve(layers(self.settings))
        self.peer, self._folder = peer, folder
        self.theirs = settings_of(self.config) | {"envs": ENVS, "n_steps": self.config.learner.batch_size // ENVS}
        self.form: Tree = {"form": FORMS[0][0], "threads": FORMS[0][1]}

    def headrace(self, seed: int, seconds: float) -> Training:
        return HeadraceTraining(self._new_folder(), merge(self.settings, {"seed": seed}), seconds)

    def other(self, settings: Tree, seed: int, seconds: float) -> Training:
        """The peer, with settings other than the same."""
        chosen = self.theirs | self.form | {"seed": seed} | settings
        every = {"every": max(SAVED_STEPS // (ENVS * chosen["n_steps"]), 1)}
        return PeerTraining(self._new_folder(), self.peer, every | chosen, seconds)

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def rate(self, begin: Callable[[float], Training], seconds: float, patience: float = PATIENCE_SECONDS) -> float:
        """Environment steps per second. Raises ValueError where hardly a policy is saved in its time and `patience` besides."""

        def enough(training: Training) -> bool:
            written = [path.stat().st_mtime for path in training.files()]
            counted = [moment for moment in written if moment >= written[0] + WARM_UP_SECONDS]
            return len(counted) > 1 and counted[-1] >= counted[0] + seconds

        return rate(train(begin(patience + 2 * seconds), enough), WARM_UP_SECONDS)

    def choose_form(self, seconds: float) -> dict[str, float]:
        """Finds the peer's fastest form; every form's steps/s."""
        found: dict[str, float] = {}
        for form, threads in FORMS:
            self.form = {"form": form, "threads": threads}
            name = f"{form}, {threads} threads"
            try:
                found[name] = self.rate(partial(self.other, {"every": 1}, 1), seconds, TRIAL_PATIENCE_SECONDS)
            except ValueError:
                found[name] = 0.0  # so slow that no exact figure is needed
            say(f"{PEER}, {name}: {found[name]:,.0f} steps/s")
        form, threads = FORMS[max(range(len(FORMS)), key=list(found.values()).__getitem__)]
        self.form = {"form": form, "threads": threads}
        return found

    def time(self, begin: Callable[[float], Training], limit: float) -> Reached:
        """Until it is good enough, `limit` seconds at most."""
        seen: list[int] = []  # how many policies there were when training had become good

        def enough(training: Training) -> bool:
            if not seen and training.success() >= ENOUGH:
                seen.append(len(training.files()))
            return bool(seen) and len(training.files()) >= seen[0] + MORE

        kept = train(begin(limit), enough)
        found = first_time(kept, self._success_rate, LEAST)
        if found is None:
            return Reached(limit, kept[-1].steps if kept else 0, False)
        return Reached(found.seconds, found.steps, True)

    @cached_property
    def _judge(self) -> Judge:
        """One for all: PyBullet's memory is not given back."""
        return Judge(self.config)

    def _success_rate(self, act: Act) -> float:
        found = self._judge.success_rate(act, LEAST)
        print(f" {found:.0%}", end="", file=sys.stderr, flush=True)
        return found


def say(text: str) -> None:
    """To standard error: what is going on."""
    print(f"  {text}", file=sys.stderr, flush=True)


def measure_rate(bench: Bench, seeds: int, seconds: float, report: Report, theirs: list[dict[str, Any]]) -> None:
    """Both sides in turn."""
    ours, other = [], []
    for seed in reported(range(1, seeds + 1), "rate, seeds", say):
        other.append(bench.rate(partial(bench.other, {}, seed), seconds))
        say(f"{PEER}, seed {seed}: {other[-1]:,.0f} steps/s")
        ours.append(bench.rate(partial(bench.headrace, seed), seconds))
        say(f"headrace, seed {seed}: {ours[-1]:,.0f} steps/s")
    theirs.append(result("rate", "steps", "steps/s", other))
    report.ratio("rate", "steps", PEER, report.add("rate", "steps", "steps/s", ours) / statistics.median(other))


def timed(bench: Bench, name: str, begin: Callable[[float], Training], limit: float, report: Report) -> Reached:
    """One training, reported on stderr; what is never good enough is reported in the notes."""
    print(f"  {name}, success of its saved policies in reserved episodes:", end="", file=sys.stderr, flush=True)
    found = bench.time(begin, limit)
    print(file=sys.stderr)
    say(f"{name}: {found.seconds:.1f} s, {found.steps:,} steps" + ("" if found.reached else ", not reached"))
    if not found.reached:
        report.notes.append(f"{name}: {LEAST:.0%} not reached; its time is the limit, its samples are those until then")
    return found


def measure_time(bench: Bench, seeds: int, limit: float, report: Report, theirs: list[dict[str, Any]]) -> None:
    """Both sides in turn with the same settings, then the peer's own."""
    ours, same, grid = [], [], []
    for seed in reported(range(1, seeds + 1), "same settings, seeds", say):
        same.append(timed(bench, f"{PEER}, same settings, seed {seed}", partial(bench.other, {}, seed), limit, report))
        ours.append(timed(bench, f"headrace, seed {seed}", partial(bench.headrace, seed), limit, report))
    for entry in reported(GRID, "the peer's own settings", say):
        name, settings = f"{PEER}, {describe(entry)}", grid_settings(entry)
        grid.append(timed(bench, f"{name}, seed 1", partial(bench.other, settings, 1), limit, report))
        theirs += figures(f"time, {describe(entry)}, one seed", grid[-1:])
    best = min(range(len(GRID)), key=lambda number: (not grid[number].reached, grid[number].seconds))
    if not grid[best].reached:
        report.notes.append(
            f"no setting of {PEER} reached {LEAST:.0%}: the first one counts as its best, and the ratio is an upper bound"
        )
    name, settings = f"{PEER}, {describe(GRID[best])}", grid_settings(GRID[best])
    own = [grid[best]]
    for seed in reported(range(2, seeds + 1), "its best settings, seeds", say):
        own.append(timed(bench, f"{name}, seed {seed}", partial(bench.other, settings, seed), limit, report))
    theirs += figures("time, same settings", same) + figures(f"time, its best: {describe(GRID[best])}", own)
    report.results += figures("time", ours)
    if not all(one.reached for one in ours):
        return  # a ratio would say less than nothing
    mine = statistics.median(one.seconds for one in ours)
    for which, found in (("same settings", same), ("its best settings", own)):
        report.ratio("time", "to 90 %", f"{PEER}, {which}", mine / statistics.median(one.seconds for one in found))


def figures(case: str, found: list[Reached]) -> list[dict[str, Any]]:
    """Of one side, all seeds."""
    return [
        result(case, "to 90 %", "s", [one.seconds for one in found]),
        result(case, "samples to 90 %", "steps", [float(one.steps) for one in found]),
    ]


def describe(entry: tuple[float, int, int, int]) -> str:
    learning_rate, n_steps, passes, minibatch = entry
    return f"lr {learning_rate:g}, n_steps {n_steps}, {passes} passes of {minibatch}"


def grid_settings(entry: tuple[float, int, int, int]) -> Tree:
    return dict(zip(("learning_rate", "n_steps", "n_epochs", "minibatch"), entry, strict=True))


def measure(bench: Bench, options: argparse.Namespace) -> Report:
    """All that is asked for."""
    report, theirs = Report("robot"), list[dict[str, Any]]()
    config, same = bench.config, bench.theirs
    actors, each = (number or "automatic" for number in (config.actors.count, config.actors.envs_per_actor))
    report.notes.append(
        f"robot:flat in PyBullet, {config.env.options.tolerance:g} m, all tiers, dense; Headrace: actors {actors}, with "
        f"environments {each}, no evaluator; {PEER}: {ENVS} environments"
    )
    report.notes.append("on both sides: " + ", ".join(f"{name} {value}" for name, value in same.items() if name != "envs"))
    say(f"{PEER}: which form is the fastest here …")
    for name, value in bench.choose_form(min(options.seconds, TRIAL_SECONDS)).items():
        theirs.append(result(f"trial, {name}", "steps", "steps/s", [value]))
    report.notes.append(
        f"{PEER} runs as {bench.form['form']} with {bench.form['threads']} torch threads, the fastest of the trial"
    )
    if "rate" in options.cases:
        measure_rate(bench, options.seeds, options.seconds, report, theirs)
    if "time" in options.cases:
        measure_time(bench, options.seeds, options.limit, report, theirs)
    report.peer(PEER, bench.peer.version, bench.peer.settings | same | bench.form, theirs)
    report.notes.append(f"{bench.peer.checked:,} actions of written policies compared with {PEER}'s own, all equal")
    return report


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="headrace bench robot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer-python", required=True, metavar="PATH", help=f"the Python that has {PEER}; see benchmarks/README.md"
    )
    parser.add_argument("--cases", default=",".join(CASES), help=f"which, with commas between (default {','.join(CASES)})")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind, the median counts (default 3)")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement of the rate (default 60)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a training is ended (default 600)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    options.cases = options.cases.split(",")
    if unknown := sorted(set(options.cases) - set(CASES)):
        parser.error(f"no cases {', '.join(unknown)}: choose from {', '.join(CASES)}")
    if min(options.seeds, options.seconds, options.limit) <= 0:
        parser.error("--seeds, --seconds and --limit must be greater than 0")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the trainings, too
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder:
            report = measure(Bench(Path(folder), Peer(PEER, options.peer_python, {})), options)
    except (PeerFailed, ValueError) as error:
        print(f"headrace bench robot: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("headrace bench robot: stopped", file=sys.stderr)
        return 130
    given = " ".join(["headrace bench robot", *(sys.argv[1:] if arguments is None else arguments)])
    report.notes.insert(0, given.replace(options.peer_python, "PATH"))  # a result says nothing of whose machine it was
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
