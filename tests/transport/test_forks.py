"""Processes that a simulator forks have none of its process's signal handlers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.waiting import ROOT

# Workers are forked as simulators fork them, also in reset(): some are ended at once, others while they compute.
FORKS = """
import multiprocessing, signal, sys, time
from pathlib import Path
from transport.lifetime import Lifetime
from transport.run_dir import RunDir
from deploy.signals import stop_signals

def work(begun):
    begun.set()
    while True:
        time.sleep(600)

def ended_by(end):
    worker = processes.Process(target=work, args=[begun := processes.Event()])
    worker.start()
    if sys.argv[2] == "later":
        begun.wait()
    end(worker)
    worker.join(5)
    worker.kill()
    return worker.exitcode

processes = multiprocessing.get_context("fork")
run = RunDir(Path(sys.argv[1], "mine"))
run.create()
received = []
lifetime = Lifetime("actor-0", run, lambda record: "")
codes = [ended_by(lambda worker: worker.terminate()) for _ in range(5)]
with stop_signals(lambda number, frame: received.append(number)):
    codes += [ended_by(lambda worker: worker.terminate()) for _ in range(5)]
    signal.raise_signal(signal.SIGTERM)
print(set(codes), received, lifetime.stopping)
signal.raise_signal(signal.SIGINT)
print(lifetime.stopping)
"""


@pytest.mark.skipif(os.name != "posix", reason="forks")
@pytest.mark.parametrize("when", ["at once", "later"])
def test_workers_that_a_simulator_forks_end_on_terminate_and_the_process_keeps_its_handlers(tmp_path: Path, when: str) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path), when]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "{-15} [15] False\nTrue\n", done
