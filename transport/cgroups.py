"""Control groups of Linux, versions 1 and 2: what a container may use of the machine's processors and memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")
MEMORY = {2: ("memory.max", "memory.current", "inactive_file"),
          1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}  # fmt: skip


class Group(NamedTuple):
    version: int
    folder: Path
    top: Path  # the folder of the topmost group that can be seen


def groups(controller: str, pid: int | None = None) -> list[Group]:
    """The groups of a process, by default this one, in the hierarchies that have a controller, such as `memory`."""
    try:
        lines = os.fsdecode(Path(f"/proc/{pid or 'self'}/cgroup").read_bytes()).splitlines()
    except OSError:
        return []
    found = []
    for line in lines:  # 4:cpu,memory:/group, or 0::/group in version 2
        _, controllers, group = line.split(":", 2)
        for version, root, where in _mounts(controller):
            below = os.path.relpath(group, root)
            fits = controller in controllers.split(",") if version == 1 else not controllers
            if fits and not below.startswith(".."):
                found.append(Group(version, Path(where, below), Path(where)))
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
        limit, used, cached = MEMORY[version]
        try:
            most, now = int((folder / limit).read_text()), int((folder / used).read_text())
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            droppable = next((int(value) for name, value in lines if name == cached), 0)
        except (OSError, ValueError):  # "max" is no limit
            continue
        yield most, max(now - droppable, 0)


def _up(controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of this process's groups and of those that contain them: the limits of all hold."""
    for version, folder, top in groups(controller):
        yield from ((version, each) for each in (folder, *folder.parents) if each == top or top in each.parents)


@cache
def _mounts(controller: str) -> tuple[tuple[int, str, str], ...]:
    """The mounts of hierarchies that may have a controller: (version, the group at the top of the mount, folder) each."""
    try:
        lines = os.fsdecode(MOUNTS.read_bytes()).rstrip("\n").split("\n")  # a folder's name may contain any byte
    except OSError:
        return ()
    found = []
    for line in lines:  # 36 35 0:30 /group /folder rw,… - cgroup source rw,memory
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            root, where = before.split()[3:5]
            found.append((2 if kind == "cgroup2" else 1, root, where))
    return tuple(found)
