"""`headrace bench replay`: what a replay server moves, with writers and a sampler as processes of their own over the real wire.

Writers play recorded frames of Mario, pack them in chunks and send them. The server's log is off unless the
case says "log on". The sampler draws batches of 512 items by priority and sends a new priority back for every one; an item is a
stack of four frames and the n-step target's, in the learner's memory. Cases:

  insert     one writer alone: chunks cut out of the recording; the same put together step by step, as actors do; log on
  sample     one sampler alone, beside the bare gather of windows as large from memory as large, in one process, no wire
  together   both, as fast as each can
  mix        both, kept by the limiter at --mix samples per insert; the same step by step; log on
  writers    4, 16 and 64 writers, flat out
  paced      1, 4, 16 and 64 writers of --pace steps/s each
  vectors    vectors of 22 floats in place of frames: insert, sample, mix

CPU is user and system time per million inserted steps or sampled items: of the server, and of all processes. After each case, in
the first run, items are drawn and compared with the recording.

--peer does the same work on another's software in this same run; see benchmarks/README.md for what each needs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common.recording import Recording
from benchmarks.common.report import Report, add_length, command_note, make_parser, result, say
from benchmarks.replay.peer import PEERS, Peer, PeerFailed
from benchmarks.replay.roles import Task
from benchmarks.replay.wire import (
    BATCH,
    CAPACITY,
    Kind,
    Outcome,
    Wire,
    budget_bytes,
    item_bytes,
    make_recording,
    make_spec,
)
from transport.experience import ExperienceSpec
from transport.text import ProgressReport

GROUPS = ("insert", "sample", "together", "mix", "writers", "paced", "vectors")
QUICK = ("insert", "sample", "mix")
MILLION = 1e6
# What is set against a peer's figure of the same name.
COMPARED = ("inserts", "samples", "all CPU per sample", "all CPU per insert")


class Metric(NamedTuple):
    """A figure's name in its case."""

    case: str
    name: str
    unit: str


@dataclass(frozen=True)
class Case:
    """One measurement. `pace`: steps/s of each writer, 0 for flat out. `mix`: samples per insert, None for any."""

    name: str
    group: str
    writers: int = 1
    sampler: bool = False
    stepwise: bool = False
    durable: bool = False
    pace: float = 0.0
    mix: float | None = None
    kind: Kind = "frames"


def make_cases(mix: float, pace: float) -> list[Case]:
    """Every case there is."""
    at = f"at {mix:g} : 1"
    return [
        Case("one writer alone", "insert"),
        Case("one writer alone, step by step", "insert", stepwise=True),
        Case("one writer alone, log on", "insert", durable=True),
        Case("one sampler alone", "sample", writers=0, sampler=True),
        Case("together", "together", sampler=True),
        Case(f"together {at}", "mix", sampler=True, mix=mix),
        Case(f"together {at}, step by step", "mix", sampler=True, mix=mix, stepwise=True),
        Case(f"together {at}, log on", "mix", sampler=True, mix=mix, durable=True),
        *[Case(f"{count} writers", "writers", writers=count) for count in (4, 16, 64)],
        *[Case(f"{count} paced", "paced", writers=count, pace=pace) for count in (1, 4, 16, 64)],
        Case("vectors, one writer alone", "vectors", kind="vectors"),
        Case("vectors, one sampler alone", "vectors", writers=0, sampler=True, kind="vectors"),
        Case(f"vectors, together {at}", "vectors", sampler=True, mix=mix, kind="vectors"),
    ]


def bare_gather(spec: ExperienceSpec, seconds: float) -> float:
    """Items per second of random windows out of as many rows as the server has, one thread, nothing else."""
    window, field = spec.stack + spec.n_step, spec.fields[0]
    rows = CAPACITY // spec.chunk_length * spec.rows(spec.chunk_length)
    memory = np.ones((rows, *field.shape), field.dtype)  # every page touched
    out = np.zeros((BATCH * window, *field.shape), field.dtype)
    generator = np.random.default_rng(0)
    begun, items = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        starts = generator.integers(0, len(memory) - window, BATCH)
        np.take(memory, (starts[:, None] + np.arange(window)).reshape(-1), axis=0, out=out, mode="clip")
        items += BATCH
    return items / (time.monotonic() - begun)


def metrics(case: Case, outcome: Outcome, spec: ExperienceSpec) -> dict[Metric, float]:
    """The figures of a case."""
    found: dict[tuple[str, str], float] = {}
    inserted = sum(writer["steps"] for writer in outcome.writers)
    sampled = sum(sampler["items"] for sampler in outcome.samplers)
    everyone = sum(role["cpu_seconds"] for role in outcome.writers + outcome.samplers) + outcome.server_cpu_seconds
    if outcome.writers:
        rates = [writer["steps"] / writer["seconds"] for writer in outcome.writers]
        found["inserts", "steps/s"] = sum(rates)
        found["inserted", "GB/s"] = sum(rates) * spec.row_bytes / 1e9
        found |= latencies("acknowledged", outcome.writers)
        found["server CPU per insert", "s/million"] = MILLION * outcome.server_cpu_seconds / max(inserted, 1)
        found["all CPU per insert", "s/million"] = MILLION * everyone / max(inserted, 1)
        sent = sum(writer["sent_bytes"] for writer in outcome.writers)
        found["on the wire", "bytes/step"] = sent / max(sum(writer["sent_steps"] for writer in outcome.writers), 1)
        if case.pace:
            found["slowest of its pace", "share"] = min(writer["pace_kept"] for writer in outcome.writers)
        elif len(rates) > 1:
            found["slowest of the mean", "share"] = min(rates) / (sum(rates) / len(rates))
    if outcome.samplers:
        rate = sum(sampler["items"] / sampler["seconds"] for sampler in outcome.samplers)
        found["samples", "items/s"] = rate
        found["sampled", "GB/s"] = rate * item_bytes(spec) / 1e9
        found |= latencies("batch", outcome.samplers)
        found["server CPU per sample", "s/million"] = MILLION * outcome.server_cpu_seconds / max(sampled, 1)
        found["all CPU per sample", "s/million"] = MILLION * everyone / max(sampled, 1)
        if inserted:
            found["samples per insert", ""] = sampled / inserted
    found["server memory", "MB"] = outcome.resident_bytes / MILLION
    found["of its budget", "share"] = outcome.resident_bytes / budget_bytes(spec, CAPACITY)
    return {Metric(case.name, *key): value for key, value in found.items()}


def latencies(what: str, roles: list[dict]) -> dict[tuple[str, str], float]:
    """The median process's p50 and the worst one's p99."""
    latencies = [role["latency_seconds"] for role in roles if role["latency_seconds"]]
    if not latencies:
        return {}
    return {
        (f"{what} p50", "ms"): 1000 * float(np.median([p50 for p50, _ in latencies])),
        (f"{what} p99", "ms"): 1000 * max(p99 for _, p99 in latencies),
    }


class Bench:
    """Every case on a server of its own, filled to the last slot before it counts."""

    def __init__(self, cases: list[Case], seconds: float, n_step: int, codec: str) -> None:
        self.cases, self.seconds = cases, seconds
        kinds: set[Kind] = {case.kind for case in cases}
        self.specs = {kind: make_spec(kind, n_step, codec) for kind in kinds}
        self.recordings: dict[Kind, Recording] = {kind: make_recording(kind) for kind in kinds}
        self.checked = 0

    def run(self, check: bool) -> dict[Metric, float]:
        """Every case once."""
        found: dict[Metric, float] = {}
        for kind, group, name in (("frames", "sample", "bare gather"), ("vectors", "vectors", "vectors, bare gather")):
            if any(case.group == group for case in self.cases):
                say(f"{name} …")
                found[Metric(name, "samples", "items/s")] = bare_gather(self.specs[kind], self.seconds)  # type: ignore[index]
        for case in self.cases:
            say(f"{case.name} …")
            spec = self.specs[case.kind]
            with (
                tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
                Wire(
                    Path(folder) / "run",
                    spec,
                    self.recordings[case.kind],
                    case.durable,
                    case.mix,
                ) as wire,
            ):
                wire.fill()
                tasks = [sampling_task(wire, case, self.seconds)] if case.sampler else []
                options = {"seconds": self.seconds, "stepwise": case.stepwise, "pace": case.pace}
                tasks += [wire.task("writer", number=number + 1, **options) for number in range(case.writers)]
                found |= metrics(case, wire.measure(tasks, self.seconds), spec)
                if check:
                    self.checked += wire.check()
        return found


def sampling_task(wire: Wire, case: Case, seconds: float) -> Task:
    """The sampler's task. Beside paced writers it settles first: items for the filled table do not count."""
    return wire.task("sampler", seconds=seconds, batch_size=BATCH, settles=bool(case.pace and case.mix))


def compare(report: Report, values: dict[tuple[str, str], float]) -> None:
    """The ratios of figures of this run: within it, and to its peers."""

    def ratio(case: str, metric: str, other_case: str, other: float | None) -> None:
        if (case, metric) in values and other:
            report.ratio(case, metric, other_case, values[case, metric] / other)

    for prefix in ("", "vectors, "):
        ratio(f"{prefix}one sampler alone", "samples", f"{prefix}bare gather", values.get((f"{prefix}bare gather", "samples")))
    ratio("64 writers", "inserts", "4 writers", values.get(("4 writers", "inserts")))
    for case, metric in list(values):
        if case.endswith(", log on") and metric in ("inserts", "samples"):
            ratio(case, metric, "log off", values.get((case.removesuffix(", log on"), metric)))
    for peer in report.peers:
        for theirs in peer["results"]:
            for suffix in ("", ", step by step", ", log on"):
                if theirs["metric"] in COMPARED:
                    ratio(theirs["case"] + suffix, theirs["metric"], peer["name"], theirs["value"])


def measure(bench: Bench, peers: list[Peer], runs: int) -> Report:
    """Everything, `runs` times, in turn, so that a drift of the machine's speed meets all alike."""
    report = Report("replay")
    ours: dict[Metric, list[float]] = {}
    theirs: list[dict[Metric, list[float]]] = [{} for _ in peers]
    progress = ProgressReport(runs)
    for number in range(runs):
        say(f"run {number + 1} of {runs}{progress.left(number)}")
        for peer, found in zip(peers, theirs, strict=True):
            say(f"{peer.name} …")
            for each in peer.run():
                found.setdefault(Metric(each["case"], each["metric"], each["unit"]), []).append(each["value"])
        for metric, value in bench.run(check=number == 0).items():
            ours.setdefault(metric, []).append(value)
    for metric, values in ours.items():
        report.add(*metric, values)
    for peer, found in zip(peers, theirs, strict=True):
        report.peer(peer.name, peer.version, peer.settings, [result(*metric, values) for metric, values in found.items()])
        report.notes.append(f"{peer.name}: {peer.checked:,} items compared with the recording, all equal")
    compare(report, {(each["case"], each["metric"]): each["value"] for each in report.results})
    report.notes.append(f"{bench.checked:,} items compared with the recording, all equal")
    return report


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser("replay", __doc__)
    add_length(parser, 5.0, 3, f"one run of 2 s, of the cases {', '.join(QUICK)}")
    parser.add_argument("--cases", default=",".join(GROUPS), help=f"which, with commas between (default {','.join(GROUPS)})")
    parser.add_argument("--n-step", type=int, default=1, help="steps to an item's target: it has 4 + n frames (default 1)")
    parser.add_argument("--mix", type=float, default=1.43, help="samples per insert where the mix is fixed (default 1.43)")
    parser.add_argument("--pace", type=float, default=500.0, help="steps/s of each paced writer (default 500)")
    parser.add_argument("--codec", choices=["none", "lz4", "zstd"], default="lz4", help="compression of frames on the wire")
    parser.add_argument("--peer", action="append", default=[], choices=PEERS, help="compare with this, too; may be repeated")
    parser.add_argument(
        "--peer-python", action="append", default=[], metavar="PATH", help="the Python that has the peer, one for each --peer"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.seconds, options.runs, options.cases = 2.0, 1, ",".join(QUICK)
    unknown = sorted(set(options.cases.split(",")) - set(GROUPS))
    if unknown:
        parser.error(f"no cases {', '.join(unknown)}: choose from {', '.join(GROUPS)}")
    if len(options.peer_python) != len(options.peer):
        parser.error("each --peer needs a --peer-python, the Python of the environment it is installed in")
    if min(options.seconds, options.runs, options.n_step, options.mix, options.pace) <= 0:
        parser.error("--seconds, --runs, --n-step, --mix and --pace must be greater than 0")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    options = parse(arguments)
    cases = [case for case in make_cases(options.mix, options.pace) if case.group in options.cases.split(",")]
    asked = {"seconds": options.seconds, "n_step": options.n_step, "mix": options.mix, "capacity": CAPACITY, "batch": BATCH}
    try:
        peers = [Peer(*named, asked) for named in zip(options.peer, options.peer_python, strict=True)]
        report = measure(Bench(cases, options.seconds, options.n_step, options.codec), peers, options.runs)
    except PeerFailed as error:
        print(f"headrace bench replay: {error}", file=sys.stderr)
        return 2
    report.notes.insert(0, command_note("replay", arguments, options.peer_python))
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
