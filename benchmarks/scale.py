"""What 100 to 1,000,000 actors need, by the figures that were measured on a few: `python -m benchmarks.scale`.

Nothing is measured here. The tables go into docs/scale-on-paper.md (`--write`); a test compares the page with them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transport.messages.fields import MOST_ACTORS, MOST_SHARDS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "scale-on-paper.md"
BLOCK = re.compile(r"(<!-- table ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)

ACTORS = (100, 1_000, 10_000, 100_000, 1_000_000)
PLACES = 64  # of a host
LINKS = (10e9, 25e9, 100e9)  # bits per second
KEPT_SECONDS = 600.0  # of experience in replay
VERSIONS_PER_SECOND = 1.0
# Measured when hosts were designed (two cores, 22 November 2026, beside other load), not by a benchmark here.
PAYLOAD_BYTES = 6.75e6  # of a Nature network
PAYLOAD_CPU_SECONDS = 5.0e-3  # of the publisher, for each payload over CURVE
DELTA_BYTES = 0.59e6  # bfloat16, XOR with the version before, zstd; after 50 updates of synthetic training: not built
FEW_CONNECTIONS, MANY_CONNECTIONS = "8 connections", "500 connections"  # the costs of a step and a connection come from these
MEASURED_CONNECTIONS = (100, 300, 1_000)  # and are checked against these
PEERS_PER_SHARD = 1_000  # more have not been tried
# Assumed then, and not measured.
HOSTS_PER_RELAY_LEVEL = 150
CHECKED_SHARES = (0.001, 0.01, 0.1)  # of the chunks of actors that nobody trusts
CERTAIN = 0.95
CHUNK_STEPS = 128


def figure(benchmark: str, case: str, metric: str) -> float:
    """A result of a benchmark in benchmarks/results. Raises LookupError."""
    results = json.loads((ROOT / "benchmarks" / "results" / f"{benchmark}.json").read_text())["results"]
    found = [each["value"] for each in results if (each["case"], each["metric"]) == (case, metric)]
    if len(found) != 1:
        raise LookupError(f"{benchmark}.json has {len(found)} results {case} {metric}")
    return float(found[0])


@dataclass(frozen=True)
class Constants:
    """What was measured, for one actor on one core and Mario's 84x84 frames."""

    steps_per_second: float  # of an actor
    bytes_per_step: float  # on the wire
    log_bytes_per_step: float
    memory_bytes_per_step: float
    shard_cpu_per_step: float  # seconds, with 1.43 samples for each step, over TCP with CURVE
    shard_cores_per_connection: float  # without its steps
    items_per_core: float  # that a learner trains on in a second, on one core

    @classmethod
    def measured(cls) -> Constants:
        """From benchmarks/results. A shard was measured on slower cores: it is converted by an actor's rate on both."""
        per_step, per_connection = shard_cost()
        rate = figure("env-retro", "mario actors", "per core")
        slower = figure("connections", "mario actors", "per core") / rate
        return cls(
            rate,
            figure("replay", "together at 1.43 : 1", "on the wire"),
            figure("restore", "segment log", "on disk") / 1e6,
            figure("restore", "server, filled", "resident") / 1e6,
            slower * per_step,
            slower * per_connection,
            figure("learner", "nature 512", "items"),
        )

    @property
    def shard_cores_per_actor(self) -> float:
        """What one actor takes of a shard's core."""
        return self.steps_per_second * self.shard_cpu_per_step + self.shard_cores_per_connection

    def shards(self, actors: int) -> int:
        """As many as their processor time or their peers ask for."""
        return math.ceil(actors * max(self.shard_cores_per_actor, 1 / PEERS_PER_SHARD))

    def bits(self, actors: int) -> float:
        """Of experience per second."""
        return 8 * actors * self.steps_per_second * self.bytes_per_step


def measured_cores(case: str) -> float:
    """The cores that one shard took in a case of benchmarks/results/connections.json."""
    return figure("connections", case, "inserts") * figure("connections", case, "server CPU per insert") / 1e6


def shard_cost() -> tuple[float, float]:
    """Cores for each step per second, and for each connection: the line through the two cases, which have the same steps."""
    few, many = (int(case.split()[0]) for case in (FEW_CONNECTIONS, MANY_CONNECTIONS))
    cores = measured_cores(FEW_CONNECTIONS)
    per_connection = (measured_cores(MANY_CONNECTIONS) - cores) / (many - few)
    return (cores - few * per_connection) / figure("connections", FEW_CONNECTIONS, "inserts"), per_connection


def rounded(value: float) -> str:
    """With two significant digits."""
    digits = 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def table(head: str, rows: list[list[str]]) -> str:
    """In Markdown. `head`: the columns, with | between them."""
    lines = [head.split(" | "), ["---"] * (head.count("|") + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def needs(known: Constants) -> str:
    """What one trunk (supervisor, replay and learner on one machine) would need."""
    head = (
        "actors | hosts | steps/s | Gb/s to the trunk | shards, a core each | log, GB/hour | "
        "memory of 10 minutes, GB | learner's cores for one sample a step"
    )
    rows = []
    for actors in ACTORS:
        steps = actors * known.steps_per_second
        rows.append([
            f"{actors:,}", f"{math.ceil(actors / PLACES):,}", rounded(steps), rounded(known.bits(actors) / 1e9),
            f"{known.shards(actors):,}", rounded(steps * known.log_bytes_per_step * 3600 / 1e9),
            rounded(steps * KEPT_SECONDS * known.memory_bytes_per_step / 1e9), rounded(steps / known.items_per_core),
        ])  # fmt: skip
    return table(head, rows)


def weights(known: Constants) -> str:
    """What one version of the weights costs the learner's host."""
    head = "actors | direct, GB | direct, publisher's s | by a relay on each host, GB | and by differences, GB | relays of relays"
    rows = []
    for actors in ACTORS:
        hosts = math.ceil(actors / PLACES)
        top = hosts if hosts <= HOSTS_PER_RELAY_LEVEL else math.ceil(hosts / HOSTS_PER_RELAY_LEVEL)
        rows.append([
            f"{actors:,}", rounded(actors * PAYLOAD_BYTES / 1e9), rounded(actors * PAYLOAD_CPU_SECONDS),
            rounded(hosts * PAYLOAD_BYTES / 1e9), rounded(hosts * DELTA_BYTES / 1e9), f"{top:,}" if top != hosts else "none",
        ])  # fmt: skip
    return table(head, rows)


def ends(known: Constants) -> list[tuple[str, float, str]]:
    """(choice, actors at which it ends, what ends it)."""
    payloads = 1 / (PAYLOAD_CPU_SECONDS * VERSIONS_PER_SECOND)
    payloads_on_link = LINKS[0] / (8 * PAYLOAD_BYTES * VERSIONS_PER_SECOND)
    per_actor, one_shard = known.bits(1), min(1 / known.shard_cores_per_actor, PEERS_PER_SHARD)
    found = [
        ("this version of Headrace", MOST_ACTORS, "its limit of actors in a run"),
        ("one replay process", one_shard, "a core of processor time"),
        (f"{MOST_SHARDS} shards, the most there may be", MOST_SHARDS * one_shard, "a core each"),
        ("weights to each actor, one version a second", payloads, "the publisher's core"),
        ("weights to each host, one version a second", payloads * PLACES, "the publisher's core"),
        (f"weights to each actor over a link of {LINKS[0] / 1e9:.0f} Gb/s", payloads_on_link, "the link"),
        ("one level of relays", HOSTS_PER_RELAY_LEVEL * PLACES, "peers of the publisher (assumed)"),
    ]  # fmt: skip
    found += [(f"experience over a link of {link / 1e9:.0f} Gb/s", link / per_actor, "the trunk's link") for link in LINKS]
    return sorted(found, key=lambda row: row[1])


def choices(known: Constants) -> str:
    return table("choice | ends at about, actors | because of", [[name, rounded(at), why] for name, at, why in ends(known)])


def connections(_: Constants) -> str:
    """Processor time of one shard: by what a step and a connection cost, and as measured with 100 to 1,000 connections."""
    per_step, per_connection = shard_cost()
    head = (
        "connections | steps/s of all | cores of the shard, computed | measured | difference | until all are connected, s | "
        "share of its pace that the slowest kept"
    )
    rows = []
    for count in MEASURED_CONNECTIONS:
        case = f"{count:,} connections"
        steps, measured = figure("connections", case, "inserts"), measured_cores(case)
        computed = steps * per_step + count * per_connection
        greeted, slowest = figure("connections", case, "greeted"), figure("connections", case, "slowest of its pace")
        rows.append([
            f"{count:,}", rounded(steps), f"{computed:.3f}", f"{measured:.3f}", f"{measured / computed - 1:+.0%}",
            rounded(greeted), f"{slowest:.2f}",
        ])  # fmt: skip
    return table(head, rows)


def trunks(known: Constants) -> str:
    """Several learners that average gradients, each with its shards and actors."""
    head = (
        "actors | trunks, each on a link of 25 Gb/s | shards of each | cores of all shards | Gb/s of gradients each, 10 updates/s"
    )
    most = int(min(LINKS[1] / known.bits(1), MOST_SHARDS / known.shard_cores_per_actor))
    rows = []
    for actors in ACTORS:
        count = math.ceil(actors / most)
        each = math.ceil(actors / count)
        # A ring sends and receives twice the gradients, but for one part, to each of its members.
        gradients = 2 * (count - 1) / count * PAYLOAD_BYTES * 8 * 10 / 1e9
        row = [
            f"{count:,}",
            f"{known.shards(each):,}",
            f"{count * known.shards(each):,}",
            rounded(gradients) if count > 1 else "none",
        ]
        rows.append([f"{actors:,}", *row])
    return table(head, rows)


def untrusted(known: Constants) -> str:
    """Chunks that a trusted machine simulates again, with the seed and the weights that the actor had."""
    head = (
        "share of chunks checked | cores for each 1,000 actors | "
        "false chunks until one is found, 19 times in 20 | in seconds of an actor"
    )
    rows = []
    for share in CHECKED_SHARES:
        until = math.ceil(math.log(1 - CERTAIN) / math.log(1 - share))
        rows.append([f"{share:.1%}", rounded(1000 * share), f"{until:,}", rounded(until * CHUNK_STEPS / known.steps_per_second)])
    return table(head, rows)


TABLES: dict[str, Callable[[Constants], str]] = {
    "needs": needs, "connections": connections, "weights": weights, "ends": choices, "trunks": trunks, "untrusted": untrusted,
}  # fmt: skip


def filled(page: str, known: Constants) -> str:
    """The page with the tables of today's figures."""
    return BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]](known)}\n{match[3]}", page)


def main(arguments: Any = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="What many actors need, on paper.")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.relative_to(ROOT)}")
    known = Constants.measured()
    if parser.parse_args(arguments).write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), known), encoding="utf-8")
        return 0
    for name, make in TABLES.items():
        print(f"{name}\n\n{make(known)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
