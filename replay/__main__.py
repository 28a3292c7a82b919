"""`python -m replay RUN_DIR`: the replay process of a run. `--wait` alone: these words arrive on standard input."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from replay.config import ReplayProcess
from replay.log.journal import RestoreStopped
from replay.log.shard_folders import open_folder
from replay.server.server import ReplayServer
from transport.experience import read_spec
from transport.files.documents import read_bytes, read_document
from transport.lifetime import Lifetime, command_arguments
from transport.metrics import Record
from transport.run_dir import RunDir
from transport.sockets.limits import ResourceLimits
from transport.system import share_heap
from transport.text import say

IDLE_SECONDS = 0.1
LOSSES = ("damaged_chunks", "missing_chunks", "unfit_priorities")  # shown where there are any


def describe_items(record: Record) -> str:
    """The throughput line for transitions and sequences."""
    get = record.get
    log = f" · log {record['log_bytes'] / 1e6:,.1f} MB" if "log_bytes" in record else ""
    log += f" ({get('unsynced_bytes', 0) / 1e6:,.1f} not synced)" if get("unsynced_bytes") else ""
    log += f" · demonstrations {record['demonstration_share']:.0%}" if "demonstrations" in record else ""
    log += f" · human steps {record['human_items']:,.0f} ({record['human_share']:.0%})" if "human_items" in record else ""
    band = f" (band {get('band_low', 0):g}-{get('band_high', 0):g})" if get("band_high") else ""
    lost = f" · {get('unlogged_chunks', 0):,.0f} chunks not on disk" if get("unlogged_chunks") else ""
    lost += "".join(f" · {get(name, 0):,.0f} {name.replace('_', ' ')}" for name in LOSSES if get(name))
    return (
        f"{_moved(record)} · size {get('items', 0):,.0f}/{get('capacity', 0):,.0f}"
        f" · samples/insert {get('samples_per_insert', 0):.1f}{band}"
        f"{_rejected(record)} · queue {get('queue', 0):.0f}/{get('queue_limit', 0):.0f}{_blocked(record)}{log}{lost}"
    )


def describe_rollouts(record: Record) -> str:
    """The throughput line for rollouts."""
    get = record.get
    waiting = f" · waiting chunks {get('queue', 0):.0f}/{get('queue_limit', 0):.0f}"
    return f"{_moved(record)}{waiting} · dropped {get('dropped_chunks', 0):,.0f}{_rejected(record)}{_blocked(record)}"


def _moved(record: Record) -> str:
    inserted, sampled = record.get("inserted_steps_per_second", 0), record.get("sampled_items_per_second", 0)
    return f"in {inserted:,.0f} steps/s · out {sampled:,.0f} items/s"


def _rejected(record: Record) -> str:
    get = record.get
    text = f" · duplicates {get('duplicates', 0):.0f} · rejected {get('rejected', 0) + get('malformed', 0):.0f}"
    return text + (f" · quarantined {get('quarantined', 0):.0f}" if get("quarantined") else "")


def _blocked(record: Record) -> str:
    actors, learner = record.get("insert_hold_fraction", 0), record.get("sample_hold_fraction", 0)
    return f" · actors blocked {actors:.0%} · learner blocked {learner:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m replay", description="The replay process of a run.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--shard", type=int, metavar="I", help="which of several shards, from 0; default: there is one")
    if (words := command_arguments()) is None:
        return 0
    arguments = parser.parse_args(words)
    run_dir = RunDir(arguments.run_dir)
    share_heap()
    name = "replay" if arguments.shard is None else f"replay-{arguments.shard}"
    try:
        settings = read_document(run_dir.settings(name), ReplayProcess)
        spec = read_spec(read_bytes(run_dir.spec))
        lifetime = Lifetime(name, run_dir, describe_rollouts if spec.unit == "rollouts" else describe_items)
        address = run_dir.bind_address(name)

        def interrupted() -> bool:
            lifetime.beat()
            return lifetime.stopping

        folder = open_folder(run_dir.segments, settings.place) if settings.replay.durable else None
        incarnation, metrics, keys = lifetime.incarnation, lifetime.metrics, lifetime.keys
        shown = run_dir.demonstrations if settings.replay.demonstrations else None
        human_steps = open_folder(run_dir.human_steps, settings.place) if folder else None
        server = ReplayServer(spec, settings, address, incarnation, metrics, folder, interrupted, keys, shown, human_steps)
        run_dir.write_endpoint(name, server.address)
    except RestoreStopped:
        lifetime.close()
        return 0
    except (ValueError, OSError) as error:
        say(f"{name}: {error}")
        return 2
    say(server.table.summary)
    lifetime.measure, lifetime.steps, lifetime.restored_steps = server.measure, server.steps, server.steps()
    limits = ResourceLimits([server.address], server.table.memory_bytes)
    lifetime.ready()
    while not lifetime.stopping:
        server.paused = lifetime.paused
        if lifetime.run_ends:
            server.end_of_run()
        server.turn(IDLE_SECONDS)
        limits.turn()
        lifetime.beat(resting=lifetime.paused)  # nothing arrives and nothing is drawn
    unsaved = server.close()
    lifetime.close()
    if unsaved:
        say(f"{name}: {unsaved}")
    return 1 if unsaved else 0


if __name__ == "__main__":
    sys.exit(main())
