"""`headrace bench restore`: what a million transitions cost replay: memory with every page touched, log, time to restore.

Real processes over the real wire, 84x84 frames, lz4. Beside it the price of the log: one writer alone, with `replay.durable`
on and off in turn. Wants 8 GB of memory and 1 GB of disk.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.report import Report
from benchmarks.replay.wire import CAPACITY, Wire, make_recording, make_spec
from replay.table.ring import Ring
from transport.text import ProgressReport

SAMPLE_SECONDS = 5.0


def make_wire(folder: Path, capacity: int, durable: bool) -> Wire:
    """A replay server of frames, with items of stack 4 and n-step 3."""
    return Wire(folder, make_spec("frames", 3, "lz4"), make_recording("frames"), durable, capacity=capacity)


def price_of_the_log(report: Report, folder: Path, runs: int, items: int) -> None:
    """One writer alone, durable or not, in turn.

    Where other work shares the cores, the server's CPU time says more than the rate.
    """
    rates: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    progress = ProgressReport(runs)
    for number in range(runs):
        for durable in (True, False):
            print(f"writer, durable {durable}, run {number + 1} of {runs}{progress.left(number)} …", file=sys.stderr)
            with make_wire(folder / f"price-{number}-{durable}", CAPACITY, durable) as wire:
                wire.fill()  # all pages are touched before it counts
                before = wire.cpu_seconds()
                rates[durable].append(wire.fill(items))
                cpu[durable].append(1e6 * (wire.cpu_seconds() - before) / items)
    durable_rate = report.add("one writer, log on", "inserts", "steps/s", rates[True])
    without = report.add("one writer, log off", "inserts", "steps/s", rates[False])
    report.ratio("one writer, log on", "inserts", "log off", durable_rate / without)
    with_log = report.add("server, log on", "CPU per step", "us", cpu[True])
    without_log = report.add("server, log off", "CPU per step", "us", cpu[False])
    report.ratio("server, log on", "CPU per step", "log off", with_log / without_log)


def fill_and_restore(report: Report, wire: Wire, items: int) -> None:
    """Fills to the last slot and draws; stops, restores and draws again; then kills and restores."""
    table = Ring(wire.spec, wire.config, seed=0)  # address space only
    report.notes.append(f"{table.capacity:,} items of 84x84, stack 4, n-step 3, in chunks of {wire.spec.chunk_length}")
    moments = []
    for _ in range(9):
        begun = time.monotonic()
        table.state()
        moments.append(1000 * (time.monotonic() - begun))
    report.add("saving the state", "traffic stops", "ms", moments)
    del table
    print(f"filling {items:,} items …", file=sys.stderr)
    wire.serve()
    try:
        report.add("filling, log on", "inserts", "steps/s", [wire.fill(items)])
        report.add("sampling when full", "samples", "items/s", [wire.sample(SAMPLE_SECONDS)])
        report.add("server, filled", "resident", "bytes", [float(wire.resident_bytes())])
        report.add("segment log", "on disk", "bytes", [float(wire.log_bytes())])
    finally:
        stopped = wire.stop()
    report.add("orderly stop", "takes", "ms", [1000 * stopped])
    times = []
    for how in ("terminate", "kill"):
        print(f"restoring (then {how}) …", file=sys.stderr)
        wire.serve()
        restored, seconds = re.findall(
            r"restored ([\d,]+) items in ([\d.]+) s \(0 torn\)", wire.run_dir.log("replay").read_text()
        )[-1]
        report.notes.append(f"restored {restored} items in {seconds} s")
        times.append(1000 * float(seconds))
        if how == "terminate":
            wire.sample(SAMPLE_SECONDS)
            report.add("server, restored", "resident", "bytes", [float(wire.resident_bytes())])
        else:
            wire.servers[0].kill()
        wire.stop()
    report.add("restore", "takes", "ms", times)


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(
        prog="headrace bench restore", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=1_000_000, help="transitions (default 1,000,000)")
    parser.add_argument("--runs", type=int, default=5, help="measurements with the log on and off (default 5)")
    parser.add_argument("--log-items", type=int, default=200_000, help="transitions in each of them (default 200,000)")
    parser.add_argument("--folder", type=Path, help="where the log is written (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    report = Report("restore")
    report.notes.append(" ".join(["headrace bench restore", *given]))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        price_of_the_log(report, Path(folder), options.runs, options.log_items)
        # The ring has room for whole chunks only; one more makes sure that it has turned over.
        fill_and_restore(report, make_wire(Path(folder) / "full", options.items, durable=True), options.items + 128)
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
