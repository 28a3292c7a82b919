"""What a million transitions cost replay: memory with every page touched, the segment log, the time to restore it.

Real processes over the real wire, 84x84 frames, lz4. Beside it the price of the log: one writer alone, with `replay.durable`
on and off in turn. Wants 8 GB of memory and 1 GB of disk.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil
import tomli_w

from benchmarks.replay import BATCH, CAPACITY, figure, make_spec
from benchmarks.report import Report
from replay.config import ReplayConfig
from replay.table import Table
from transport.run_dir import RunDir

STOP_SECONDS = 60.0
RESTORE_SECONDS = 300.0


class Run:
    """A run's folder with a replay server, and the roles of `benchmarks.replay` around it."""

    def __init__(self, folder: Path, capacity: int, durable: bool) -> None:
        self.spec = make_spec("lz4")
        self.run_dir = RunDir(folder)
        self.run_dir.create()
        self.config = ReplayConfig(
            capacity=capacity,
            budget_bytes=20_000_000_000,
            min_size=BATCH,
            samples_per_insert_low=0.0,
            samples_per_insert_high=1e12,
            durable=durable,
        )
        self.run_dir.config.write_text(tomli_w.dumps({"seed": 0, "replay": msgspec.to_builtins(self.config)}))
        self.run_dir.spec.write_bytes(msgspec.json.encode(self.spec))

    def serve(self) -> None:
        """Starts the server and waits until it has restored what there is and has bound."""
        self.run_dir.remove_sockets()
        self.log = self.run_dir.log("replay").open("a+")
        self.server = subprocess.Popen([sys.executable, "-m", "replay", str(self.run_dir.path)], stdout=self.log)
        deadline = time.monotonic() + RESTORE_SECONDS
        while self.run_dir.endpoint("replay") is None:
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"replay did not start: {self.said()}")
            time.sleep(0.05)

    def role(self, role: str, seconds: float, items: int = 0) -> float:
        """Runs a writer or sampler to its end; returns its rate."""
        what = ["--role", role, "--run-dir", str(self.run_dir.path), f"--seconds={seconds}", f"--items={items}"]
        command = [sys.executable, "-m", "benchmarks.replay", *what]
        return figure(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

    def resident_bytes(self) -> int:
        """Of the server, the learner's slab included where it has touched it."""
        return int(psutil.Process(self.server.pid).memory_info().rss)

    def cpu_seconds(self) -> float:
        """Spent by the server so far, the thread that waits for the disk included."""
        times = psutil.Process(self.server.pid).cpu_times()
        return float(times.user + times.system)

    def log_bytes(self) -> int:
        """Of the segment log."""
        return sum(path.stat().st_size for path in self.run_dir.segments.glob("*.segment"))

    def said(self) -> str:
        """What the server printed."""
        return self.run_dir.log("replay").read_text()

    def stop(self) -> float:
        """An orderly stop; returns the seconds it took."""
        begun = time.monotonic()
        self.server.terminate()
        self.server.wait(STOP_SECONDS)
        self.log.close()
        self.run_dir.remove_sockets()
        return time.monotonic() - begun


def price_of_the_log(report: Report, folder: Path, runs: int, items: int) -> None:
    """One writer alone, durable or not, in turn.

    Where other work shares the cores, the server's CPU time says more than the rate.
    """
    rates: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    for number in range(runs):
        for durable in (True, False):
            print(f"writer, durable {durable}, run {number + 1} of {runs} …", file=sys.stderr)
            run = Run(folder / f"price-{number}-{durable}", CAPACITY, durable)
            run.serve()
            try:
                run.role("writer", 600.0, items=CAPACITY)  # all pages are touched before it counts
                before = run.cpu_seconds()
                rates[durable].append(run.role("writer", 600.0, items=items))
                cpu[durable].append(1e6 * (run.cpu_seconds() - before) / items)
            finally:
                run.stop()
    durable_rate = report.add("one writer, log on", "inserts", "steps/s", rates[True])
    without = report.add("one writer, log off", "inserts", "steps/s", rates[False])
    report.ratio("one writer, log on", "inserts", "log off", durable_rate / without)
    with_log = report.add("server, log on", "CPU per step", "us", cpu[True])
    without_log = report.add("server, log off", "CPU per step", "us", cpu[False])
    report.ratio("server, log on", "CPU per step", "log off", with_log / without_log)


def fill_and_restore(report: Report, run: Run, items: int) -> None:
    """Fills to the last slot and draws; stops, restores and draws again; then kills and restores."""
    table = Table(run.spec, run.config, seed=0)  # address space only
    report.notes.append(f"{table.capacity:,} items of 84x84, stack 4, n-step 3, in chunks of {run.spec.chunk_length}")
    moments = []
    for _ in range(9):
        begun = time.monotonic()
        table.state()
        moments.append(1000 * (time.monotonic() - begun))
    report.add("saving the state", "traffic stops", "ms", moments)
    del table
    print(f"filling {items:,} items …", file=sys.stderr)
    run.serve()
    try:
        report.add("filling, log on", "inserts", "steps/s", [run.role("writer", 600.0, items=items)])
        report.add("sampling when full", "samples", "items/s", [run.role("sampler", 5.0)])
        report.add("server, filled", "resident", "bytes", [float(run.resident_bytes())])
        report.add("segment log", "on disk", "bytes", [float(run.log_bytes())])
    finally:
        stopped = run.stop()
    report.add("orderly stop", "takes", "ms", [1000 * stopped])
    times = []
    for how in ("terminate", "kill"):
        print(f"restoring (then {how}) …", file=sys.stderr)
        run.serve()
        restored, seconds = re.findall(r"restored ([\d,]+) items in ([\d.]+) s \(0 torn\)", run.said())[-1]
        report.notes.append(f"restored {restored} items in {seconds} s")
        times.append(1000 * float(seconds))
        if how == "terminate":
            run.role("sampler", 5.0)
            report.add("server, restored", "resident", "bytes", [float(run.resident_bytes())])
        else:
            run.server.kill()
        run.stop()
    report.add("restore", "takes", "ms", times)


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.restore", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=1_000_000, help="transitions (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=5, help="measurements with the log on and off (default 5)")
    parser.add_argument("--log-items", type=int, default=200_000, help="transitions in each of them (default 200,000)")
    parser.add_argument("--folder", type=Path, help="where the log is written (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    report = Report("restore")
    report.notes.append(" ".join(["python -m benchmarks.restore", *given]))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        price_of_the_log(report, Path(folder), options.runs, options.log_items)
        # The ring holds whole chunks only, and one more makes sure that it has turned over.
        fill_and_restore(report, Run(Path(folder) / "full", options.items, durable=True), options.items + 128)
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
