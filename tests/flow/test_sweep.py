"""`headrace sweep` as a user types it: real CartPole trials of a few seconds, killed and interrupted, and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy import runs
from deploy.children import child_environment, python_command
from deploy.config.files import read_file
from tests.harness.waiting import gone, wait_until
from transport.run_dir import RunDir

pytestmark = [
    pytest.mark.flow,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(os.name != "posix", reason="signals"),
    pytest.mark.timeout(600),
]
PATIENCE_SECONDS = 180.0
FILE = """
[env]
id = "CartPole-v1"

[actors]
count = 1
chunk_seconds = 0.5

[evaluator]
episodes = 2
core_share = 1.0

[replay]
min_size = 200

[learner]
device = "cpu"

[deploy]
record_seconds = 1.0
sinks = []

[sweep]
trials = 4
time = "6s"
jobs = 2

[search]
"learner.learning_rate" = {low = 1e-4, high = 1e-2, log = true}
"algorithm.network_options.layers" = {choices = [1, 2]}
"""


class Sweep:
    """A working directory with a sweep, and the process of it that was started last."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output"
        (folder / "lander.toml").write_text(FILE)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = python_command("deploy.cli.main", "sweep", "lander.toml")
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, cwd=self.folder, env=child_environment(), stdout=output, stderr=output)

    def shown(self) -> dict[str, Any]:
        command = python_command("deploy.cli.main", "sweep", "lander.toml", "--show", "--json")
        done = subprocess.run(command, cwd=self.folder, env=child_environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def until(self, true: Callable[[], bool], what: str) -> None:
        def found() -> bool:
            assert self.process is not None and self.process.poll() is None, self.output.read_text()
            return true()

        wait_until(found, PATIENCE_SECONDS, what)

    def trial(self, number: int) -> RunDir:
        return RunDir(self.folder / "sweeps" / "lander" / "runs" / f"trial-{number}")

    def processes(self) -> list[int]:
        """The pids of all processes of the sweep."""
        assert self.process is not None
        return [self.process.pid, *(child.pid for child in psutil.Process(self.process.pid).children(recursive=True))]

    def trains(self, number: int) -> bool:
        return bool(runs.read_steps(self.trial(number)))


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    made = Sweep(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def test_a_sweep_that_is_killed_and_interrupted_ends_with_every_trial_once(sweep: Sweep) -> None:
    sweep.start()
    sweep.until(lambda: sweep.trains(0) and sweep.trains(1), "two trials at work")
    begun = {trial["trial"]: trial["settings"] for trial in sweep.shown()["trials"]}
    assert begun.keys() == {0, 1}
    pids = sweep.processes()
    assert len(pids) > 2 * 4 and sweep.process is not None
    sweep.process.kill()
    sweep.process.wait()
    wait_until(lambda: all(map(gone, pids)), PATIENCE_SECONDS, "no process outlives a killed sweep")

    sweep.start()
    sweep.until(lambda: "trial 2 ended" in sweep.output.read_text() and sweep.trains(4), "a result, and the next trial")
    assert "trials 0, 1 had not ended; the same settings are tried again" in sweep.output.read_text()
    before = {trial["trial"]: trial for trial in sweep.shown()["trials"]}
    assert {2, 3, 4} <= before.keys() and [before[2]["settings"], before[3]["settings"]] == [begun[0], begun[1]]
    assert not sweep.trial(0).path.exists() and not sweep.trial(1).path.exists()
    pids = sweep.processes()
    sweep.process.send_signal(signal.SIGINT)
    assert sweep.process.wait(PATIENCE_SECONDS) == 0 and all(map(gone, pids))
    assert "of 4 trials are over; `headrace sweep lander.toml` resumes it" in sweep.output.read_text()

    sweep.start()
    assert sweep.process.wait(PATIENCE_SECONDS) == 0, sweep.output.read_text()
    found = sweep.shown()
    assert found["done"] == found["wanted"] == len(found["trials"]) == 4
    assert {trial["state"] for trial in found["trials"]} <= {"complete", "pruned"}
    settings = [tuple(trial["settings"].values()) for trial in found["trials"]]
    assert len(set(settings)) == 4, "each is tried once"
    assert next(trial for trial in found["trials"] if trial["trial"] == 2) == before[2], "what was over stays"
    for trial in found["trials"]:
        (run,) = trial["runs"]
        config = tomllib.loads(sweep.trial(trial["trial"]).config.read_text())
        assert config["learner"]["learning_rate"] == trial["settings"]["learner.learning_rate"] and run["evaluations"]
        assert config["algorithm"]["network_options"]["layers"] in (1, 2) and not sweep.trial(trial["trial"]).segments.exists()

    best = sweep.folder / "sweeps" / "lander" / "best.toml"
    assert read_file(best).values["learner"]["learning_rate"] == found["best"]["settings"]["learner.learning_rate"]
    command = python_command("deploy.cli.main", "up", "--config", str(best), "--total-steps", "300", "--run", "best")
    assert subprocess.run(command, cwd=sweep.folder, env=child_environment(), capture_output=True, timeout=120).returncode == 0
