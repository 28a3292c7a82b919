"""`headrace bench actor_start`: what an actor costs before it does anything: memory, and time to its first step.

For each environment a run with one actor is started as `headrace up` does; beside it further actors are started, one after the
other, and end after STEPS steps. "memory" is the resident set then, "own memory" the part that no other process shares; "first
step" the time from the start of the process to the end of its first vector step, "processor time" what it has computed until
then. `--tree` names other source trees that are measured in turn with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.report import Report, say
from transport.text import reported

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ("CartPole-v1", "robot", "snake", "mario")
STEPS = 50
PATIENCE_SECONDS = 180.0
# Runs `python -m actors` and says what it has cost; it has to fit every tree, so it knows one name of them.
ACTOR = """
import json, os, runpy, sys, time
import psutil
from actors.envs.vector import VectorEnv
process, step, done = psutil.Process(), VectorEnv.step, []
def counted(self, *arguments, **options):
    answer = step(self, *arguments, **options)
    done.append(None)
    if len(done) == 1:
        seconds = time.time() - process.create_time()
        done.append((seconds, sum(process.cpu_times()[:2])))
    if len(done) > STEPS:
        memory = process.memory_full_info()
        said = {"memory": memory.rss, "own memory": memory.uss, "first step": done[1][0], "processor time": done[1][1]}
        os.write(1, ("\\n" + json.dumps(said | {"torch": "torch" in sys.modules}) + "\\n").encode())
        os._exit(0)
    return answer
VectorEnv.step = counted
sys.argv = ["actors", *sys.argv[1:]]
runpy.run_module("actors", run_name="__main__", alter_sys=True)
""".replace("STEPS", str(STEPS))
FIGURES = {"memory": ("MB", 1e-6), "own memory": ("MB", 1e-6), "first step": ("s", 1.0), "processor time": ("s", 1.0)}


class Run:
    """A run of one tree, with a replay server, a learner and one actor."""

    def __init__(self, tree: Path, env: str, folder: Path) -> None:
        self.python = tree / ".venv/bin/python"
        if not self.python.exists():
            self.python = Path(sys.executable)
        self.folder = folder
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.environment = os.environ | threads | {"PYTHONPATH": str(tree)}
        module = "deploy.cli.main" if (tree / "deploy/cli").is_dir() else "deploy.cli"
        command = [str(self.python), "-P", "-m", module, "up", "--env", env, "--actors", "1", "--run", "bench"]
        command += ["--evaluator.enabled", "false"]
        self.log = open(folder / "up.log", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, cwd=folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        until = time.monotonic() + PATIENCE_SECONDS
        while "actor-0 is ready" not in (folder / "up.log").read_text():
            if time.monotonic() > until or self.process.poll() is not None:
                self.close()
                raise SystemExit((folder / "up.log").read_text()[-2000:])
            time.sleep(0.2)
        settings = folder / "runs/bench/settings"
        if settings.is_dir():  # the further actors are given what the first one is
            shutil.copy(settings / "actor-0.json", settings / "actor-1.json")

    def actor(self) -> dict[str, float]:
        """One more actor, until it has done its steps."""
        command = [str(self.python), "-P", "-c", ACTOR, str(self.folder / "runs/bench"), "--actor", "1"]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
        )
        found = [line for line in done.stdout.splitlines() if line.startswith(b'{"memory"')]
        if not found:
            raise SystemExit((done.stdout + done.stderr).decode()[-2000:])
        return dict(json.loads(found[-1]))

    def close(self) -> None:
        """Ends the run as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def measure(report: Report, env: str, trees: dict[str, Path], runs: int) -> None:
    """Adds the figures of an environment, the trees in turn."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for name, tree in trees.items():
            place = Path(folder, name)
            place.mkdir()
            run = Run(tree, env, place)
            try:
                run.actor()  # files are in the page cache, compiled code is on disk
                found[name] = [run.actor() for _ in reported(range(runs), f"{env}, {name}: starts", say)]
            finally:
                run.close()
    for figure, (unit, factor) in FIGURES.items():
        values = {}
        for name, each in found.items():
            metric = f"{figure}, {name}" if len(trees) > 1 else figure
            values[name] = report.add(env, metric, unit, [factor * one[figure] for one in each])
        for name in list(values)[1:]:
            report.ratio(env, figure, name, values[next(iter(values))] / values[name])
    imports = {name: bool(each[-1]["torch"]) for name, each in found.items()}
    report.notes.append(
        f"{env}: " + ", ".join(f"{name} {'imports torch' if there else 'no torch'}" for name, there in imports.items())
    )


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="headrace bench actor_start", description=__doc__, formatter_class=form)
    parser.add_argument("--env", action="append", help=f"an environment; may be given again (default: {', '.join(ENVIRONMENTS)})")
    parser.add_argument(
        "--tree", action="append", default=[], metavar="NAME=PATH", help="another source tree to compare with; again"
    )
    parser.add_argument("--runs", type=int, default=10, help="actors of each (default 10)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    trees = {"this tree": ROOT} | {name: Path(path).resolve() for name, _, path in (text.partition("=") for text in options.tree)}
    report = Report("actor_start")
    report.notes.append(f"one actor beside a run of one; memory after {STEPS} vector steps, one compute thread")
    for env in options.env or ENVIRONMENTS:
        measure(report, env, trees, options.runs)
    report.print(options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
