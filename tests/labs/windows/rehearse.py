"""Whole runs on Windows' Python, with kills: `python -m tests.labs.windows.rehearse`, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

COMMAND = [sys.executable, "-m", "headrace"]
STATUS = Path("status.json")
ROLES = ("actor-0", "replay", "learner", "evaluator")
PATIENCE_SECONDS = 120.0
LINK = re.compile(r"http://127\S+")


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:.0f} s: {what}"
        time.sleep(0.2)


def call(*arguments: str) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, errors="replace", timeout=300)
    assert done.returncode == 0, f"{arguments}: status {done.returncode}: {(done.stdout + done.stderr)[-600:]}"
    return done.stdout


class Up:
    """A run in the foreground, in a process group of its own."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.folder = Path("runs", name)
        self.log = open(f"{name}.txt", "ab")
        self.process = subprocess.Popen(
            [*COMMAND, "up", "--device", "cpu", "--run", name, *arguments],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,  # type: ignore[attr-defined]
        )

    def status(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / STATUS).read_bytes())
        except (OSError, ValueError):
            return {}

    def pids(self) -> dict[str, int]:
        return {row["name"]: row["pid"] for row in self.status().get("processes", ()) if row.get("pid")}

    def steps(self) -> float:
        return float(self.status().get("steps") or 0)

    def learning(self) -> None:
        """Waits until it has done steps since now."""
        before = self.steps()
        until(lambda: self.process.poll() is not None or self.steps() > before + 500, f"{self.folder.name} takes steps")
        assert self.process.poll() is None, f"it ended with status {self.process.returncode}"

    def ended(self, status: int | None = 0) -> None:
        found = self.process.wait(PATIENCE_SECONDS)
        assert status is None or found == status, (
            f"exit status {found}, not {status}: {Path(self.log.name).read_text('utf-8', 'replace')[-600:]}"
        )
        self.log.close()


def cartpole() -> None:
    """A second supervisor is refused; scale, eval and export."""
    run = Up("cartpole", "--env", "CartPole-v1", "--stop-after", "1m")
    run.learning()
    assert subprocess.run([*COMMAND, "up", "--run", "cartpole", "--env", "CartPole-v1"], capture_output=True).returncode == 3
    call("scale", "3", "--run", "cartpole")
    run.ended()
    call("eval", "cartpole", "--episodes", "2")
    call("export", "cartpole", "cartpole.safetensors")
    call("eval", "cartpole.safetensors", "--episodes", "2")


def snake() -> None:
    """Its page answers."""
    printed = Path("snake.txt")
    run = Up("snake", "--env", "snake", "--stop-after", "40s", "--web")
    run.learning()
    until(lambda: LINK.search(printed.read_text("utf-8", "replace")), "the links to the page are printed")
    link = LINK.findall(printed.read_text("utf-8", "replace"))[0]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    browser.open(link, timeout=PATIENCE_SECONDS).close()  # it answers with a cookie
    with browser.open(link.partition("?")[0], timeout=PATIENCE_SECONDS) as page:
        assert b"<script" in page.read(), "no page behind the link"
    run.ended()


def dqn_with_kills() -> None:
    run = Up("dqn", "--env", "CartPole-v1", "--algo", "dqn")
    run.learning()
    for role in ROLES:
        pid = run.pids()[role]
        psutil.Process(pid).kill()
        until(lambda role=role, pid=pid: run.pids().get(role, pid) != pid, f"{role} is started again")
    run.learning()
    call("down", "dqn")
    run.ended()
    before = run.steps()
    run = Up("dqn", "--resume")
    run.learning()
    assert run.steps() > before, "the log was not restored"
    call("down", "dqn")
    run.ended()


def killed_supervisor() -> None:
    run = Up("killed", "--env", "CartPole-v1")
    run.learning()
    pids = run.pids().values()
    run.process.kill()
    run.ended(None)
    until(lambda: not any(map(psutil.pid_exists, pids)), "its processes end")
    run = Up("killed", "--resume", "--stop-after", "10s")
    run.learning()
    run.ended()


def long_and_foreign_paths() -> None:
    before, folder = Path.cwd(), Path("Läufe von 猫 " + "x" * 100)
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    try:
        run = Up("schlange", "--env", "CartPole-v1", "--stop-after", "5s")
        run.ended()
    finally:
        os.chdir(before)


def main() -> int:
    failed = 0
    for rehearsal in (cartpole, snake, dqn_with_kills, killed_supervisor, long_and_foreign_paths):
        began = time.monotonic()
        try:
            rehearsal()
            result = "passed"
        except Exception as error:
            failed, result = failed + 1, f"failed: {type(error).__name__}: {error}"
        print(f"{rehearsal.__name__.replace('_', ' ')}: {result} ({time.monotonic() - began:.0f} s)", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
