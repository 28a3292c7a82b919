"""Control groups of Linux, versions 1 and 2: what a container may use of the machine's processors and memory."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")
GROUPS = "/proc/{}/cgroup"
LIMIT = {2: "memory.max", 1: "memory.limit_in_bytes"}
USED = {2: "memory.current", 1: "memory.usage_in_bytes"}
DROPPABLE = {2: ("inactive_file", "active_file", "slab_reclaimable"), 1: ("total_inactive_file", "total_active_file")}
ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")  # a space or a backslash in a name


class Group(NamedTuple):
    version: int
    folder: Path
    top: Path  # the folder of the topmost group that can be seen


def groups(controller: str, pid: int | None = None) -> list[Group]:
    """The groups of a process, by default this one, in the hierarchies that have a controller, such as `memory`."""
    found = []
    for line in _lines(Path(GROUPS.format(pid or "self"))):  # 4:cpu,memory:/group, or 0::/group in version 2
        _, _, names = line.partition(b":")
        controllers, _, group = names.partition(b":")
        for version, root, where in _mounts(controller):
            below = os.path.relpath(group or b"/", root)
            fits = controller.encode() in controllers.split(b",") if version == 1 else not controllers
            if fits and not below.startswith(b".."):
                found.append(Group(version, Path(os.fsdecode(where), os.fsdecode(below)), Path(os.fsdecode(where))))
    return found


def processor_quota() -> float:
    """The processors whose time this process may use up, such as 1.5; infinite without a limit."""
    least = math.inf
    for version, folder in _up("cpu"):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0:
                least = min(least, int(quota) / int(period))
        except (OSError, ValueError):
            continue
    return least


def memory_limits() -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of each group that holds this process. Pages of files that can be dropped do not count as used."""
    for version, folder in _up("memory"):
        try:
            most, now = (int((folder / names[version]).read_text()) for names in (LIMIT, USED))
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            droppable = sum(int(value) for name, value in lines if name in DROPPABLE[version])
        except (OSError, ValueError):  # "max" is no limit
            continue
        yield most, max(now - droppable, 0)


def _up(controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of this process's groups and of those that contain them: the limits of all hold."""
    for version, folder, top in groups(controller):
        yield from ((version, each) for each in (folder, *folder.parents) if each == top or top in each.parents)


@cache
def _mounts(controller: str) -> tuple[tuple[int, bytes, bytes], ...]:
    """The mounts of hierarchies that may have a controller: (version, the group at the top of the mount, folder) each."""
    found = []
    for line in _lines(MOUNTS):  # 36 35 0:30 /group /folder rw,… - cgroup source rw,memory
        before, _, after = line.partition(b" - ")
        kind, options = after.split(b" ")[0], after.split(b" ")[-1]
        places = [ESCAPED.sub(lambda code: bytes([int(code[1], 8)]), place) for place in before.split(b" ")[3:5]]
        if len(places) == 2 and (kind == b"cgroup2" or (kind == b"cgroup" and controller.encode() in options.split(b","))):
            found.append((2 if kind == b"cgroup2" else 1, places[0], places[1]))
    return tuple(found)


def _lines(file: Path) -> list[bytes]:
    """Bytes: names of groups and folders may have any."""
    try:
        return file.read_bytes().splitlines()
    except OSError:
        return []
