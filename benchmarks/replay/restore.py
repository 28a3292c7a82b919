"""`headrace bench restore`: what a million transitions cost replay: memory with every page touched, log, time to restore.

Real processes over the real wire, 84x84 frames, lz4. Wants 8 GB of memory and 1 GB of disk. What the log costs a writer,
`headrace bench replay` measures.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.report import Report, command_note, make_parser, say
from benchmarks.replay.wire import Wire, make_recording, make_spec
from replay.table.ring import Ring

SAMPLE_SECONDS = 5.0


def make_wire(folder: Path, capacity: int, durable: bool) -> Wire:
    """A replay server of frames, with items of stack 4 and n-step 3."""
    return Wire(folder, make_spec("frames", 3, "lz4"), make_recording("frames"), durable, capacity=capacity)


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
    say(f"filling {items:,} items …")
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
        say(f"restoring (then {how}) …")
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
            wire.server.kill()
        wire.stop()
    report.add("restore", "takes", "ms", times)


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    parser = make_parser("restore", __doc__)
    parser.add_argument("--items", type=int, default=1_000_000, help="transitions (default 1,000,000)")
    parser.add_argument("--folder", type=Path, help="where the log is written (default: a temporary folder)")
    options = parser.parse_args(arguments)
    report = Report("restore")
    report.notes.append(command_note("restore", arguments))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        # The ring has room for whole chunks only; one more makes sure that it has turned over.
        fill_and_restore(report, make_wire(Path(folder) / "full", options.items, durable=True), options.items + 128)
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
