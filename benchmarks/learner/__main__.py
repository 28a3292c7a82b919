"""`headrace bench learner`: updates per second of the learner as a run has it, beside loops that have nothing else to do.

The learner is a process of its own before a real replay server that was filled with recorded play; what it measures of itself is
read. Cases (--cases):

  compared   the learner and a bare torch loop in turn: the same arithmetic written by hand, on batches of the same server that
             lie on the device already (benchmarks/by_hand/). DQN: nature (84x84 frames, Nature network) and mlp (22 floats, two
             layers of 256); PPO: ppo-nature and ppo-mlp, a batch being one minibatch of a rollout.
  variants   the learner in each precision, compiled, with CUDA graphs; with other batches

Data wait, update and device are the learner's own metrics. Whole runs with more actors: `headrace bench pipeline --actors`.
Updates of small networks on a CPU, by engine and beside JAX: `headrace bench updates`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from benchmarks.common.processes import CaseFailed
from benchmarks.common.report import command_note, make_parser, say
from benchmarks.learner.plan import BATCHES, SWEPT, About, batches, compared, variants
from benchmarks.learner.report import BARE, LEARNER, VARIANT, Key, make_report
from benchmarks.learner.runs import Found, Source, serving
from benchmarks.learner.workloads import WORKLOADS, Setting
from deploy.children import child_environment, python_command
from transport.text import reported

QUICK = "nature:64 mlp:256 ppo-mlp:256"
CASES = ("compared", "variants")


class Bench:
    """The figures so far, and the time that is left."""

    def __init__(self, about: About, options: argparse.Namespace) -> None:
        self.about, self.options = about, options
        self.found: dict[Key, list[Found]] = defaultdict(list)
        self.left_out: list[str] = []
        self.precisions: dict[str, str] = {}
        self._deadline = time.monotonic() + options.budget
        self.settings = compared(about, options.batches, options.threads, os.cpu_count() or 1)

    def try_(self, case: str, side: str, measure: Callable[[], Found]) -> None:
        """One measurement, unless there is no time left; what fails is reported and left out."""
        if time.monotonic() > self._deadline:
            self.left_out.append(f"{case}, {side}")
            return
        begun = time.monotonic()
        try:
            figures = measure()
        except CaseFailed as error:
            say(f"{case}, {side}: failed: {error}")
            self.left_out.append(f"{case}, {side}: {error}")
            return
        self.left_out += [f"{case}, {side}: {words}" for words in figures.pop("warnings", [])]
        self.precisions[case] = str(figures.pop("precision", self.precisions.get(case, "")))
        self.found[case, side].append(figures)
        say(f"{case}, {side}: {figures['updates']:,.1f} updates/s  ({time.monotonic() - begun:.0f} s)")

    def run(self) -> None:
        """All that is asked for, the most telling first."""
        for name in dict.fromkeys(setting.workload for setting in self.settings if "compared" in self.options.cases):
            with serving(WORKLOADS[name]) as source:
                self.compare(source, [setting for setting in self.settings if setting.workload == name])
        if "variants" in self.options.cases:
            for name in SWEPT[self.about.kind]:
                with serving(WORKLOADS[name]) as source:
                    self.vary(source, name)

    def compare(self, source: Source, settings: list[Setting]) -> None:
        """Learner and bare loop in turn, so that a drift of the machine's speed meets both alike."""
        seconds = self.options.seconds
        for _ in reported(range(self.options.rounds), "rounds", say):
            for setting in settings:
                self.try_(setting.name, BARE, partial(source.bare, setting, seconds))
                self.try_(setting.name, LEARNER, partial(source.learner, setting, seconds))

    def vary(self, source: Source, name: str) -> None:
        """One variant after another."""
        first = compared(self.about, batches(f"{name}:1"), self.options.threads, os.cpu_count() or 1)[0]
        for setting in reported(list(variants(self.about, self.options.precisions, first)), "variants", say):
            self.try_(setting.name, VARIANT, partial(source.learner, setting, self.options.short_seconds))


def ask_device(name: str) -> About:
    """The device and its abilities. A child is asked, which takes torch and the device's context with it. Raises CaseFailed."""
    done = subprocess.run(
        python_command("benchmarks.device", "--about", "--device", name),
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    if done.returncode:
        raise CaseFailed(f"no device {name}: see above")
    return About(**json.loads(done.stdout.splitlines()[-1]))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser("learner", __doc__)
    parser.add_argument("--device", default="auto", help="as learner.device (default auto)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="which (default all)")
    usual = "; ".join(f"{words} ({kind})" for kind, words in {"CPU": BATCHES["cpu"], "GPU": BATCHES["other"]}.items())
    parser.add_argument(
        "--batches", nargs="+", metavar="WORKLOAD:SIZES", help=f"those compared, 4x512 accumulates (default {usual})"
    )
    parser.add_argument("--precisions", nargs="+", help="of the variants (default all that the device has, its usual one first)")
    parser.add_argument("--threads", type=int, default=0, help="of the learner and of all else (default by workload)")
    parser.add_argument("--rounds", type=int, default=3, help="of learner and bare loop in turn; the median counts (default 3)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement compared (default 10)")
    parser.add_argument("--short-seconds", type=float, default=6.0, help="length of each other measurement (default 6)")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which nothing more is begun (default none)")
    parser.add_argument("--quick", action="store_true", help="one round of 5 s, no variants, three batches")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds, options.short_seconds = 1, 5.0, 3.0
        options.cases = [case for case in options.cases if case != "variants"]
        options.batches = options.batches or [QUICK]
    if min(options.rounds, options.seconds, options.short_seconds, options.budget) <= 0 or options.threads < 0:
        parser.error("--rounds, --seconds, --short-seconds and --budget must be greater than 0")
    try:
        options.batches = batches(" ".join(options.batches or []))
    except ValueError as error:
        parser.error(f"--batches: {error}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what runs, and reports what was measured
    try:
        about = ask_device(options.device)
        options.batches = options.batches or batches(BATCHES[about.kind])
        options.precisions = options.precisions or about.precisions
        if unknown := sorted(set(options.precisions) - set(about.precisions)):
            raise CaseFailed(f"--precisions: {about.device} has no {', '.join(unknown)}: use {', '.join(about.precisions)}")
        bench = Bench(about, options)
    except CaseFailed as error:
        print(f"headrace bench learner: {error}", file=sys.stderr)
        return 2
    try:
        bench.run()
    except KeyboardInterrupt:
        bench.left_out.append("all that was still to come: stopped")
    report = make_report(bench.found, bench.precisions, about)
    report.notes += [f"left out: {what}" for what in dict.fromkeys(bench.left_out)]
    report.notes.insert(0, command_note("learner", arguments))
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
