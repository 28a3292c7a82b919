"""`python -m deploy.places.reaper MARK [FOLDER …]`: ends what the processes of a supervisor have left behind when it is killed.

A process of a run ends with its supervisor by itself; what a simulator has started does not. So the supervisor starts this
process and sends it the process groups of the run over a pipe ("+PGID", "-PGID"). When the pipe ends, for whatever reason, it
kills those groups and every process with the run's mark in its environment, also one in a session of its own, and removes the
folders.
It imports only the standard library, because it runs as long as the run.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable

MARK_VARIABLE = "HEADRACE_MARK"  # the run's mark, a colon, and the number of the process's incarnation
ROUNDS = 20  # a process may start another one while it is being killed


def families(mark: str) -> dict[str, list[int]]:
    """The pids of the processes whose mark begins with `mark`, by their mark. Empty on other systems than Linux."""
    found: dict[str, list[int]] = {}
    sought = f"{MARK_VARIABLE}={mark}".encode()
    for name in os.listdir("/proc") if sys.platform.startswith("linux") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environment = file.read()
            except OSError:  # it has gone, or is another user's
                continue
            for entry in environment.split(b"\0"):
                if entry.startswith(sought):
                    found.setdefault(entry.decode("ascii", "replace").partition("=")[2], []).append(int(name))
    return found


def kill(pids: Iterable[int]) -> None:
    """Kills processes; some may have ended already."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def kill_families(mark: str, spared: Iterable[str] = ()) -> int:
    """Kills every process whose mark begins with `mark`, but for the marks in `spared`. Returns how many there were."""
    spared, ended = set(spared), set[int]()
    for _ in range(ROUNDS):
        found = {pid for whole, pids in families(mark).items() if whole not in spared for pid in pids}
        if not found - ended:
            break
        kill(found)
        ended |= found
    return len(ended)


def main() -> int:
    """Waits until the pipe ends, then kills."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    groups = set[int]()
    for line in sys.stdin:
        groups.add(int(line[1:])) if line[0] == "+" else groups.discard(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    kill_families(sys.argv[1])
    for folder in sys.argv[2:]:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
