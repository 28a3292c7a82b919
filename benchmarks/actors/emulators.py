"""`headrace bench emulators`: Mario's emulators beside one another, in turn in one process, steps per CPU second.

  emulator      four frames with buttons pressed: no observation, reward or info
  environment   MarioEnv.step by random actions, 84x84 observations and resets included

On retro the consoles take turns in one emulator, so its figures have the swapping of states in them.
"""

from __future__ import annotations

import argparse
import time
from typing import cast

import numpy as np

from actors.envs.make import make_env, read_env
from actors.envs.mario.constants import SKIP
from actors.envs.mario.env import MarioEnv
from benchmarks.common.report import Report, say
from transport.text import reported

BACKENDS = ("nes_py", "retro")
RESTART_STEPS = 200  # of the emulator alone, which does not know when an episode ends


def emulate(envs: list[MarioEnv], rounds: int, generator: np.random.Generator) -> None:
    """Runs every console for `rounds` steps' frames."""
    for number in range(rounds):
        for env in envs:
            if number % RESTART_STEPS == 0:
                env.console.restore()
            env.console.press(int(generator.integers(256)) & ~0b1100)  # any buttons but START and SELECT
            env.console.advance(SKIP)


def play(envs: list[MarioEnv], rounds: int, generator: np.random.Generator) -> None:
    """Takes `rounds` steps in every environment."""
    for number in range(rounds):
        for env in envs:
            ended = number == 0
            if not ended:
                _, _, terminated, truncated, _ = env.step(int(generator.integers(7)))
                ended = terminated or truncated
            if ended:
                env.reset()


def main() -> int:
    """Measures and prints."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="headrace bench emulators", description=__doc__, formatter_class=form)
    parser.add_argument("--envs", type=int, default=8, help="environments of the process (default 8)")
    parser.add_argument("--rounds", type=int, default=200, help="steps of each environment in one measurement (default 200)")
    parser.add_argument("--runs", type=int, default=5, help="measurements of each case; the median is reported (default 5)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    configs = {name: read_env({"id": "mario", "backend": name}) for name in BACKENDS}
    envs = {name: [cast(MarioEnv, make_env(config)) for _ in range(options.envs)] for name, config in configs.items()}
    rates: dict[tuple[str, str], list[float]] = {}
    for run in reported(range(options.runs), "runs", say):
        for case, work in (("emulator", emulate), ("environment", play)):
            for name in BACKENDS:
                began = time.process_time()
                work(envs[name], options.rounds, np.random.default_rng(run))
                rate = options.envs * options.rounds / (time.process_time() - began)
                rates.setdefault((case, name), []).append(rate)
    report = Report("emulators")
    report.notes.append(f"mario 1-1: {options.envs} environments in one process, {SKIP} frames a step, per CPU second")
    for case in ("emulator", "environment"):
        slow, fast = (report.add(f"{case}, {name}", "steps", "1/CPU s", rates[case, name]) for name in BACKENDS)
        report.ratio(f"{case}, retro", "steps", f"{case}, nes_py", fast / slow)
    report.print(options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
