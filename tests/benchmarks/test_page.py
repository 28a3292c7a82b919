"""The page of a long run: 64 actors, ten hours, a million points, from recorded metrics alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy import runs
from deploy.children import child_environment
from tests.deploy.views.web.made_up import BEGAN, made_up
from tests.harness.chromium import NEEDS_CHROMIUM, Chromium, Page
from tests.harness.waiting import wait_until
from transport.run_dir import RunDir

pytestmark = [NEEDS_CHROMIUM, pytest.mark.slow]

HOURS, ACTORS = 10, 64
READY_SECONDS, TASK_MS, SERVER_BYTES, SERVER_SHARE = 2.0, 50.0, 100e6, 0.01
LIVE_SECONDS = 40.0
RECORD_SECONDS = 5.0
WATCH_TASKS = """window.tasks = [];
new PerformanceObserver((found) => tasks.push(...found.getEntries().map((one) => one.duration))).observe({ type: 'longtask' });"""
READY = "document.querySelectorAll('#learning .card:not([hidden]) canvas').length >= 3"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return made_up(tmp_path_factory.mktemp("work") / "runs" / "long", seconds=HOURS * 3600, actors=ACTORS, state="running")


@pytest.fixture
def server(run: RunDir) -> Iterator[tuple[psutil.Process, str]]:
    """`headrace web` of a run that counts as up: the process and its link."""
    command = [sys.executable, "-P", "-m", "deploy.cli.main", "web", "long"]
    with runs.locked(run):
        process = subprocess.Popen(command, cwd=run.path.parents[1], env=child_environment(), stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield psutil.Process(process.pid), re.findall(r"http\S+", process.stdout.readline())[0]
        finally:
            process.terminate()
            process.communicate()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with Chromium(tmp_path / "profile") as browser:
        found = browser.page()
        found.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH_TASKS)
        yield found


def test_a_long_run_is_there_at_once_moves_without_a_jerk_and_costs_little(
    run: RunDir, server: tuple[psutil.Process, str], page: Page
) -> None:
    process, link = server
    began = time.monotonic()
    page.open(link)
    page.wait(READY)
    ready_seconds = time.monotonic() - began
    assert page.run("runs.get('long').grid.seconds.length") > 500
    page.wait(f"Object.keys(runs.get('long').actors).length === {ACTORS}")
    whole_seconds = time.monotonic() - began
    page.wait("!document.getElementById('said').textContent")  # that it reads
    page.run("tasks.length = 0")
    pan(page)
    longest_ms = page.run("Math.max(0, ...tasks)")
    page.run("scrollTo({ top: 0, behavior: 'instant' }); tasks.length = 0")
    share = live_share(run, process)
    live_ms = page.run("Math.max(0, ...tasks)")
    memory = process.memory_info().rss
    ready = f"ready {ready_seconds:.2f} s, with all actors {whole_seconds:.2f} s"
    tasks = f"longest task {longest_ms:.0f} ms, live {live_ms:.0f} ms"
    print(f"{ready} · {tasks} · {memory / 1e6:.0f} MB · {share:.2%} of a core")
    assert ready_seconds <= READY_SECONDS
    assert max(longest_ms, live_ms) <= TASK_MS
    assert memory <= SERVER_BYTES and share <= SERVER_SHARE


def pan(page: Page) -> None:
    """Looks over all charts, follows a curve, looks closer at a part and goes back, by steps and by time."""
    for axis in ("steps", "seconds"):
        page.run(f"document.querySelector('[data-axis={axis}]').click()")
        height = page.run("document.documentElement.scrollHeight")
        for top in [*range(0, height, 300), *range(height, 0, -600)]:
            page.run(f"scrollTo({{ top: {top}, behavior: 'instant' }})")
            settle(page)
        page.run("document.getElementById('learning').scrollIntoView({ behavior: 'instant' })")
        settle(page)
        box = "document.querySelector('#learning .u-over').getBoundingClientRect()"
        left, top, width, height = (page.run(f"{box}.{side}") for side in ("left", "top", "width", "height"))
        middle = top + height / 2
        for share in range(5, 95, 3):
            page.mouse("Moved", left + width * share / 100, middle)
        for first, last in ((20, 80), (40, 70)):
            page.mouse("Pressed", left + width * first / 100, middle, pressed=True)
            for share in range(first, last, 5):
                page.mouse("Moved", left + width * share / 100, middle, pressed=True)
            page.mouse("Released", left + width * last / 100, middle)
            settle(page)
        page.run("setZoom(null)")
        settle(page)


def settle(page: Page) -> None:
    """Returns when what was asked for is drawn."""
    page.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)))")
    page.wait("waiting.size === 0")


def live_share(run: RunDir, process: psutil.Process) -> float:
    """The share of a core that the server takes while every process of the run writes a record at its usual pace."""
    files = [path for path in sorted((run.path / "metrics").iterdir()) if path.name != "evaluator.jsonl"]
    newest = {path: json.loads(path.read_bytes().splitlines()[-1]) for path in files}
    spent, began, rounds = sum(process.cpu_times()[:2]), time.monotonic(), 0
    while time.monotonic() - began < LIVE_SECONDS:
        rounds += 1
        for path, record in newest.items():
            with path.open("a") as file:
                file.write(json.dumps(record | {"time": BEGAN + HOURS * 3600 + rounds * RECORD_SECONDS}) + "\n")
        deadline = began + rounds * RECORD_SECONDS
        wait_until(lambda: time.monotonic() >= deadline, seconds=2 * RECORD_SECONDS, turn_seconds=0.2)  # noqa: B023
    return (sum(process.cpu_times()[:2]) - spent) / (time.monotonic() - began)
