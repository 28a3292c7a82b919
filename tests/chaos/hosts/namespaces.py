"""Machines on one switch, as network namespaces: nothing but processes in them sees their addresses, which are always the same.

    trunk 10.77.0.1 ──┐
    host-0 10.77.0.10 ├── switch
    host-1 10.77.0.11 ┘

A host that is behind a line is connected to that namespace instead, where a proxy has the trunk's address and passes on what
comes. The trunk has another address for it, 10.77.1.1.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

import pytest

from tests.harness.waiting import wait_until

TRUNK, TRUNK_FOR_LINE, LINE = "10.77.0.1", "10.77.1.1", "10.77.1.9"
PORTS = (7701, 7702, 7703, 7704)  # of the run's servers: each trunk has all ports for itself
USER = ("unshare", "--user", "--map-user=1000")  # root may not listen for other machines


@cache
def why_not() -> str:
    """Why no namespaces can be made here; empty where they can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "network namespaces need root on Linux"
    if lacking := [command for command in ("ip", "unshare", "ss") if not shutil.which(command)]:
        return f"network namespaces need the command {lacking[0]}"
    probe = f"hr-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    try:
        tried = made if made.returncode else _try(["ip", "netns", "exec", probe, *USER, "true"])
        tried = tried if tried.returncode else _try(["ip", "-n", probe, "link", "add", "probe", "type", "bridge"])
        return f"no network namespace can be made: {tried.stderr.strip()}" if tried.returncode else ""
    finally:
        _try(["ip", "netns", "delete", probe])


class Network:
    """Namespaces that are named by this process's pid, until `close`."""

    def __init__(self, hosts: Sequence[str], behind_line: Sequence[str] = ()) -> None:
        """The trunk, these hosts, and a line between the trunk and those that are behind it. Skips the test where none can be
        made."""
        if reason := why_not():
            pytest.skip(reason)
        self.addresses = {host: f"10.77.0.{10 + number}" for number, host in enumerate(hosts)}
        self._cables = {host: "line" if host in behind_line else "switch" for host in hosts}  # where their other ends are
        self._made: list[str] = []
        try:
            for machine in ("switch", "trunk", *hosts, *(["line"] if behind_line else [])):
                ip("netns", "add", self._name(machine))
                self._made.append(machine)
                self._ip(machine, "link", "set", "lo", "up")
            self._ip("switch", "link", "add", "bridge", "type", "bridge")
            self._ip("switch", "link", "set", "bridge", "up")
            self._connect("trunk", "switch", TRUNK, TRUNK_FOR_LINE)
            for host, address in self.addresses.items():
                self._connect(host, self._cables[host], address)
            if behind_line:
                # Else it would tell the switch as well that the trunk's address is its.
                run([*self.inside("line"), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore"])
                self._connect("line", "switch", LINE)
                for host in behind_line:
                    self._ip("line", "address", "add", f"{TRUNK}/24", "dev", host)
        except BaseException:
            self.close()
            raise

    def inside(self, machine: str) -> list[str]:
        """A command that starts another one on this machine, with the same pid."""
        return ["ip", "netns", "exec", self._name(machine)]

    def cut(self, host: str) -> None:
        """Pulls a host's cable, on the other machine's side: nobody is told, and packets are dropped."""
        self._ip(self._cables[host], "link", "set", host, "down")

    def heal(self, host: str) -> None:
        """Puts it in again."""
        self._ip(self._cables[host], "link", "set", host, "up")

    def processes(self, machine: str) -> list[int]:
        """All that run there, whoever started them."""
        return [int(pid) for pid in ip("netns", "pids", self._name(machine)).split()]

    def sockets(self, machine: str) -> list[str]:
        """The TCP connections and ports of processes there. The system itself keeps those that have ended for a while."""
        states = ("established", "syn-sent", "syn-recv", "close-wait", "listening")
        return run([*self.inside(machine), "ss", "-Htan", *(word for state in states for word in ("state", state))]).splitlines()

    def kill(self, machine: str) -> None:
        """Everything on a machine at once, by SIGKILL."""

        def none_left() -> bool:
            for pid in self.processes(machine):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            return not self.processes(machine)

        wait_until(none_left, what=f"no process on {machine}")

    def close(self) -> None:
        """Ends every process in the namespaces and removes them, and with them their links."""
        try:
            for machine in self._made:
                self.kill(machine)
        finally:
            while self._made:
                ip("netns", "delete", self._name(self._made.pop()))

    def _connect(self, machine: str, other: str, *addresses: str) -> None:
        """A cable from `eth0` of a machine to another one, where its end has the name of the machine."""
        self._ip(other, "link", "add", machine, "type", "veth", "peer", "name", "eth0", "netns", self._name(machine))
        for address in addresses:
            self._ip(machine, "address", "add", f"{address}/24", "dev", "eth0")
        if other == "switch":
            self._ip(other, "link", "set", machine, "master", "bridge")
        self._ip(machine, "link", "set", "eth0", "up")
        self._ip(other, "link", "set", machine, "up")

    def _ip(self, machine: str, *words: str) -> None:
        ip("-n", self._name(machine), *words)

    def _name(self, machine: str) -> str:
        return f"hr-{os.getpid()}-{machine}"


def ip(*words: str) -> str:
    return run(["ip", *words])


def run(command: Sequence[str]) -> str:
    """A command, which must succeed. Returns what it prints."""
    done = _try(command)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


def _try(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=30)
