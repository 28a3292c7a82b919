"""The policies of the zoo, which come with Headrace: `python -m benchmarks.learning.zoo [NAME …]` trains those that are missing.

Each is a run with no flag but --env, stopped after some minutes. Its best weights are measured by 100 episodes and exported with
their card. `--check` trains nothing: it compares every policy with its exports and times them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from actors.envs.spec import is_image
from actors.exports.c.header import identifier, write_header
from actors.exports.c.run import FLAGS, CRunner, compiler
from actors.exports.check import STREAMS, Agreement, compare, sampler
from actors.exports.onnx.run import OnnxRunner
from actors.exports.policy import PortablePolicy, read_portable
from actors.exports.write import onnx_payload
from benchmarks.common.processes import headrace
from benchmarks.common.report import say
from deploy.views.sharing.named import FOLDER, SUFFIX, ZOO
from learner.weights.checkpoint import CheckpointError

EPISODES = 100
CALLS = 200_000  # of the timed program
TIMED = """\
#include <stdio.h>
#include <time.h>
#include "policy.h"
static float observations[{streams}][POLICY_OBSERVATION], outputs[POLICY_OUTPUTS];
int main(void) {{
    float sum = 0;
    if (fread(observations, sizeof observations, 1, stdin) != 1) return 1;
    clock_t began = clock();
    for (long call = 0; call < {calls}; call++) {{
        policy_outputs(observations[call % {streams}], outputs);
        sum += outputs[0];
    }}
    printf("%.9g %g\\n", (double)(clock() - began) / CLOCKS_PER_SEC / {calls}, sum);
    return 0;
}}
"""


class Entry(NamedTuple):
    env: str
    train: str  # --stop-after


ENTRIES = {
    "acrobot": Entry("Acrobot-v1", "40s"),
    "bipedalwalker": Entry("BipedalWalker-v3", "20m"),
    "cartpole": Entry("CartPole-v1", "20s"),
    "hopper": Entry("Hopper-v5", "20m"),
    "lunarlander": Entry("LunarLander-v3", "4m"),
    "mountaincar": Entry("MountainCarContinuous-v0", "30s"),
    "pendulum": Entry("Pendulum-v1", "90s"),
    "robot": Entry("robot", "6m"),
}


def make(name: str, entry: Entry, folder: Path) -> None:
    """Trains a policy, evaluates and exports it. Raises CalledProcessError."""
    headrace(folder, "up", "--env", entry.env, "--run", name, "--stop-after", entry.train, "--deploy.verbosity", "events")
    headrace(folder, "eval", name, "--best", "--episodes", str(EPISODES))
    headrace(folder, "export", name, str(FOLDER / f"{name}{SUFFIX}"), "--best")


class Timed(NamedTuple):
    """An export of a policy: how it differs from the policy, and the seconds of one action."""

    agreement: Agreement
    seconds: float


def onnx(policy: PortablePolicy) -> Timed:
    model = onnx_payload(policy)
    agreement, observe = compare(policy, OnnxRunner(model)), sampler(policy, np.random.default_rng(0))
    runner = OnnxRunner(model)  # its state has as many rows as its first observation
    one = {name: values[:1] for name, values in observe().items()}
    began = time.perf_counter()
    for _ in range(1_000):
        runner(one, np.zeros(1, bool))
    return Timed(agreement, (time.perf_counter() - began) / 1_000)


def c(policy: PortablePolicy) -> Timed:
    text, outputs = write_header(policy, "policy")
    with tempfile.TemporaryDirectory(prefix="headrace-zoo-") as name:
        header, source, program = (Path(name) / part for part in ("policy.h", "timed.c", "timed"))
        header.write_text(text, encoding="utf-8")
        with CRunner(policy, header, identifier(header.stem), outputs) as runner:
            agreement = compare(policy, runner)
        source.write_text(TIMED.format(streams=STREAMS, calls=CALLS), encoding="utf-8")
        subprocess.run([*compiler(), *FLAGS, str(source), "-o", str(program), "-lm"], check=True)
        observed = sampler(policy, np.random.default_rng(0))()
        rows = np.concatenate([np.asarray(part, np.float32).reshape(STREAMS, -1) for part in observed.values()], 1)
        done = subprocess.run([program], input=rows.tobytes(), stdout=subprocess.PIPE, check=True)
    return Timed(agreement, float(done.stdout.split()[0]))


def check() -> int:
    """Compares and times what is in the zoo. Exit status: 1 where an export is not exact."""
    exact = True
    for file in sorted(FOLDER.glob(f"*{SUFFIX}")):
        policy = read_portable(file)
        for form, export in (("ONNX", onnx), ("C", c)):
            try:
                agreement, seconds = export(policy)
            except CheckpointError as error:
                say(f"{file.stem}, {form}: {error}")
                exact &= form == "C" and any(map(is_image, policy.observations.values()))
                continue
            say(f"{file.stem}, {form}: {agreement}; {1e6 * seconds:,.2f} us per action")
            exact &= agreement.exact
    return 0 if exact else 1


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"policies to train (default: all of {', '.join(ENTRIES)})")
    parser.add_argument("--check", action="store_true", help="compare the policies with their exports, and time them")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.names) - set(ENTRIES):
        parser.error(f"{ZOO}{min(unknown)} is unknown: name some of {', '.join(ENTRIES)}")
    if arguments.check:
        return check()
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-zoo-") as folder:
        for name in arguments.names or ENTRIES:
            if not (FOLDER / f"{name}{SUFFIX}").is_file():
                make(name, ENTRIES[name], Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
