"""A process and its system: cores, priority, memory, addresses."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import math
import os
import platform
import socket
import sys
import time
from pathlib import Path

from transport.cgroups import memory_limits, processor_quota

NICENESS = 5  # enough to yield to others; with much more a process could not stop in time on a busy machine
MOST_NICENESS = 19
STARTED_NICENESS = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0
GROUP_SECONDS, GROUP_TURN_SECONDS = 5.0, 0.02
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h


def processor() -> str:
    """The name of the processor, as far as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def cache_folder() -> Path:
    """HEADRACE_CACHE if it is set, otherwise headrace in XDG_CACHE_HOME or in ~/.cache."""
    if folder := os.environ.get("HEADRACE_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def own_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def core_count() -> int:
    """How many cores this process may use at once: `own_cores`, or fewer where its container has a quota."""
    return math.ceil(min(len(own_cores()), processor_quota()))


def free_memory() -> int:
    """Bytes that this machine has free, or fewer where this process's container has a limit."""
    import psutil

    free = (limit - used for limit, used in memory_limits())
    return max(min([int(psutil.virtual_memory().available), *free]), 0)


def total_memory() -> int:
    """Bytes that this machine has, or fewer where this process's container has a limit."""
    import psutil

    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in memory_limits())])


def lower_priority() -> None:
    """Lowers the priority of this process below that with which it was started, if the system has priorities."""
    _set_niceness(NICENESS)


def usual_priority() -> None:
    """Undoes `lower_priority` as far as the system allows: an ordinary user cannot raise the priority of a process, but can raise
    that of its autogroup."""
    _set_niceness(0)


def _set_niceness(more: int) -> None:
    """`more` than that with which the process was started."""
    if not hasattr(os, "setpriority"):
        return
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(STARTED_NICENESS + more, MOST_NICENESS))
    # With autogroups Linux shares the processors between sessions first, so that the niceness within a session has no effect.
    # Only change the group's if this process has its own session: that of a terminal contains other processes.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _set_group(NICENESS + more)  # the group of every process of a run yields to other sessions: see lower_group


def lower_child(pid: int) -> None:
    """Lowers the priority of a child that was just started below that of this process, if the system has priorities."""
    if hasattr(os, "setpriority"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, MOST_NICENESS))


def lower_group(pid: int) -> bool:
    """Lowers the priority of a child's autogroup below that of other sessions, unless the child has changed it. The child leads a
    session. False where the system allows that only later."""
    try:
        file = Path(f"/proc/{pid}/autogroup")
        if file.read_text().split()[-1:] == ["0"]:
            file.write_text(str(NICENESS))
    except BlockingIOError:
        return False
    except OSError:  # it has ended, or the system has no autogroups
        pass
    return True


def _set_group(niceness: int, file: Path = Path("/proc/self/autogroup")) -> None:
    """Tries again while other processes change theirs: Linux lets ordinary users change one autogroup every tenth of a second."""
    deadline = time.monotonic() + GROUP_SECONDS
    while True:
        try:
            file.write_text(str(niceness))
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return
            time.sleep(GROUP_TURN_SECONDS)


def keep_memory() -> None:
    """Makes glibc keep large freed blocks; does nothing with another C library.

    By default glibc returns blocks of a chunk's size to the system at once, and the next chunk faults all pages in again. Replay
    then inserts less than half as many steps per second, and an update of the Nature network on a CPU takes a tenth longer.
    """
    _mallopt(M_MMAP_THRESHOLD, 32 << 20)
    _mallopt(M_TRIM_THRESHOLD, 256 << 20)


def share_heap() -> None:
    """Makes glibc use one heap for all threads; does nothing with another C library. Call it before other threads start.

    By default ZeroMQ's thread has its own heap, which also keeps memory that the main thread frees: 11 of 142 MB with eight
    actors at full speed. Do not use it in a learner: its updates become slower.
    """
    _mallopt(M_ARENA_MAX, 1)


def _mallopt(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:
        mallopt(parameter, value)


def release_memory() -> None:
    """Makes glibc return all freed memory to the system; does nothing with another C library."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)


def is_wildcard(host: str) -> bool:
    """True for an address that means all addresses of this machine; a client cannot connect to it."""
    return ipaddress.ip_address(host).is_unspecified


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the address. False for a host name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_free(host: str, port: int) -> bool:
    """True if a server can listen on this port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # ignore closed connections of an earlier server (TIME_WAIT)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4])
        except OSError:
            return False
    return True


def in_url(host: str) -> str:
    """The host as written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
