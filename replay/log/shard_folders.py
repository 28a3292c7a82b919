"""Where the shards of a run keep their segment logs, and for how many shards the experience on the disk is divided.

One shard's log is in the run's folder `replay`, that of shard I of N in its folder `I-of-N`. The file `shards` holds N, so
that the logs of another division are ignored: `headrace reshard` writes the new logs, then this file, then deletes the old logs.
"""

from __future__ import annotations

import re
from pathlib import Path

from replay.log.files import open_regular
from replay.log.segments import LogRefused, segments
from replay.shards import Shard
from transport.files.writing import replacing
from transport.messages.fields import MOST_SHARDS

COUNT_FILE = "shards"
MOST_BYTES = 16
DIVIDED = re.compile(r"\d{1,6}-of-\d{1,6}")


def shard_folder(base: Path, shard: Shard) -> Path:
    return base if shard.count == 1 else base / f"{shard.index}-of-{shard.count}"


def shard_folders(base: Path, count: int) -> list[Path]:
    return [shard_folder(base, Shard(index, count)) for index in range(count)]


def stored_shards(base: Path) -> int | None:
    """The number of shards whose logs hold experience; None where there is none. Raises LogRefused.

    A lost file `shards` does not decide over the logs: they lie in folders that say their number.
    """
    noted = _noted(base)
    if noted is not None and _holds_experience(base, noted):
        return noted
    held = count_in_folders(base)
    if len(held) > 1:
        numbers = " and ".join(map(str, held))
        raise LogRefused(f"{base / COUNT_FILE} is lost, and there are logs for {numbers} shards: write the right number into it")
    return held[0] if held else None


def count_in_folders(base: Path) -> list[int]:
    """The numbers of shards for which there are logs with experience, by the names of their folders."""
    found = {int(folder.name.rpartition("-")[2]) for folder in base.glob("*-of-*") if DIVIDED.fullmatch(folder.name)}
    return [count for count in sorted(found | {1}) if 1 <= count <= MOST_SHARDS and _holds_experience(base, count)]


def _holds_experience(base: Path, count: int) -> bool:
    return any(segments(folder) for folder in shard_folders(base, count))


def log_folders(base: Path) -> list[Path]:
    """The folders of all logs that hold experience. Raises LogRefused."""
    return shard_folders(base, stored_shards(base) or 1)


def open_folder(base: Path, shard: Shard) -> Path:
    """The folder of a shard's log. Raises LogRefused if the log is divided for another number of shards, OSError."""
    stored = stored_shards(base)
    if stored not in (None, shard.count):
        raise LogRefused(f"the experience in {base} is divided for {stored} shards, not {shard.count}: see `headrace reshard`")
    if (_noted(base) or 1) != shard.count:
        note(base, shard.count)
    return shard_folder(base, shard)


def note(base: Path, count: int) -> None:
    """Notes that the logs of `count` shards are the valid ones from now on. Raises OSError."""
    base.mkdir(parents=True, exist_ok=True)
    with replacing(base / COUNT_FILE) as file:
        file.write(f"{count}\n".encode())


def _noted(base: Path) -> int | None:
    path = base / COUNT_FILE
    try:
        with open_regular(path) as file:
            count = int(file.read(MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LogRefused(f"{path} is damaged: it should hold the number of replay shards ({error})") from error
    if not 1 <= count <= MOST_SHARDS:
        raise LogRefused(f"{path} is damaged: {count} is no number of replay shards")
    return count
