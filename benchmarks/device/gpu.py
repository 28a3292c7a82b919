"""`headrace bench gpu --out DIR`: what is to be measured on a machine with a large GPU, by one command in limited time.

Parts, each written to DIR as the JSON of its benchmark as soon as it is there:
  compared  the learner beside the bare loop at 512, at 4 x 512 accumulated and with the MLP
  device    matrix products, memory, every operation of the shipped networks
  variants  precisions, compiled, CUDA graphs, other batches
  ppo       PPO beside its bare loop

Each part has its share of --budget; what it has no time for is named in its notes. The first three are one command,
`--parts ppo` is a second. Needs no network.

`--quick` measures little: in two minutes it checks that the GPU does what the learner expects of it, a line for each check.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.common.report import make_parser, print_results, say
from deploy.children import child_environment, python_command

GRACE_SECONDS = 30.0  # that a part may need after its time to end what it has begun and to write


class Part(NamedTuple):
    """A benchmark with its options. `weight`: that of its share of the time."""

    benchmark: str
    options: tuple[str, ...]
    weight: float


BRIEF = ("--rounds", "2", "--seconds", "5", "--short-seconds", "3")
PARTS = {
    "compared": Part("learner", ("--cases", "compared", "--batches", "nature:512,4x512", "mlp:256", *BRIEF), 260),
    "device": Part("device", (), 80),
    "variants": Part("learner", ("--cases", "variants", *BRIEF), 400),
    "ppo": Part("learner", ("--cases", "compared", "--batches", "ppo-nature:2048", "ppo-mlp:4096", *BRIEF), 130),
}
FIRST = ("compared", "device", "variants")  # what one command of ten minutes has time for


def measure(name: str, seconds: float, out: Path, more: list[str]) -> bool:
    """Measures one part. Returns whether it has written its file."""
    part = PARTS[name]
    budget = ("--budget", f"{max(seconds - GRACE_SECONDS, 1):.0f}") if part.benchmark == "learner" else ()
    options = [*part.options, *more, *budget, "--json"]
    say(f"{name}: {' '.join(options)} ({seconds:.0f} s)")
    path = out / f"{name}.json"
    with path.open("w") as file:
        process = subprocess.Popen(python_command(f"benchmarks.{part.benchmark}", *options), stdout=file, env=child_environment())
        try:
            process.wait(seconds + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its own processes, and writes what it has
            process.wait(2 * GRACE_SECONDS)
        finally:
            process.kill()
    if process.returncode:
        say(f"{name}: ended with {process.returncode}")
    return path.stat().st_size > 0


def show(path: Path) -> None:
    """A part's figures, but not those of single operations."""
    document = json.loads(path.read_text())
    print(f"\n{path.stem}: {document['machine']}")
    for note in document["notes"]:
        print(note)
    print_results([each for each in document["results"] if each["unit"] != "µs"])
    for each in document["ratios"]:
        if each["peer"] != "CPU":
            print(f"{each['value']:8.3f} x {each['peer']}: {each['case']}, {each['metric']}")


def parse(arguments: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The command line; what it does not know goes to every part."""
    parser = make_parser("gpu", __doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="DIR", help="where the JSON files go")
    what.add_argument("--quick", action="store_true", help="only check the GPU: two minutes")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(FIRST), help=f"which (default {' '.join(FIRST)})")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for all of them together (default 540)")
    parser.add_argument("--device", default="auto", help="as learner.device (default auto)")
    options = parser.parse_args(arguments)
    if options.json and not options.quick:
        parser.error("--json is of --quick; with --out each part is written as JSON")
    if options.budget <= 0:
        parser.error("--budget must be greater than 0")
    return options, ["--device", options.device]


def main(arguments: list[str] | None = None) -> int:
    """Every part in turn, then all figures."""
    options, more = parse(arguments)
    if options.quick:
        from benchmarks.device.quick import check  # not at the top: the others are processes of their own, and this has torch

        return check(options.device, options.json)
    options.out.mkdir(parents=True, exist_ok=True)
    weights = {name: PARTS[name].weight for name in options.parts}
    written = []
    for name, weight in weights.items():
        if measure(name, options.budget * weight / sum(weights.values()), options.out, more):
            written.append(options.out / f"{name}.json")
    for path in written:
        show(path)
    return 0 if len(written) == len(options.parts) else 1


if __name__ == "__main__":
    sys.exit(main())
