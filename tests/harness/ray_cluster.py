"""A Ray cluster of one node on this machine, seen from outside: this process does not import Ray."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

import psutil

from deploy.children import child_environment
from tests.harness.waiting import wait_until
from transport.system import is_free

START_SECONDS = 120.0
CONNECTED = """
import json, ray
ray.init({address!r}, log_to_driver=False, logging_level="error")
found = ray.util.list_named_actors(all_namespaces=True)
"""
KILL = "for each in found: ray.kill(ray.get_actor(**each))\n"
PRINT = "print(json.dumps([each['name'] for each in found]))\n"


class RayCluster:
    """Started at once. Its processes are its session's, which `close` ends."""

    def __init__(self, cpus: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hr-"))  # sockets are in it: a longer path would not do
        self.log = self.folder / "log"
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of all that connect to it
        ports = free_ports(5)
        flags = "ray-client-server-port dashboard-port dashboard-agent-listen-port dashboard-agent-grpc-port metrics-export-port"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port", "0"]
        command += ["--num-cpus", str(cpus), "--object-store-memory", "80000000", "--temp-dir", str(self.folder)]
        command += ["--include-dashboard", "false", "--disable-usage-stats"]
        command += [f"--{flag}={port}" for flag, port in zip(flags.split(), ports, strict=True)]
        with self.log.open("wb") as log:
            environment = child_environment(**self.environment)
            self._head = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.address = wait_until(self._address, START_SECONDS, "the cluster's address")

    def _address(self) -> str:
        assert self._head.poll() is None, self.log.read_text()
        found = re.search(r"--address='(\S+)'", self.log.read_text())
        return found[1] if found and "Ray runtime started" in self.log.read_text() else ""

    def named_actors(self) -> list[str]:
        """Of all drivers, those that are alive or wait for a machine."""
        names: list[str] = json.loads(self._run(CONNECTED + PRINT).splitlines()[-1])
        return names

    def kill_actors(self) -> None:
        """All of them, as somebody may who has the cluster."""
        self._run(CONNECTED + KILL)

    def _run(self, code: str) -> str:
        """What a driver of this cluster prints."""
        command, environment = [sys.executable, "-c", code.format(address=self.address)], child_environment(**self.environment)
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def contains(self, secret: str) -> list[Path]:
        """The files of the cluster, its logs above all, in which this is."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return [path for path in files if secret.encode() in _content(path)]

    def close(self) -> None:
        mine = [each for each in psutil.process_iter() if str(self.folder) in " ".join(_words(each))]
        mine += [child for process in mine for child in _children(process)]
        if self._head.poll() is None:
            self._head.send_signal(signal.SIGTERM)
            try:
                self._head.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._head.pid, signal.SIGKILL)
                self._head.wait()
        for process in mine:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(mine, timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # the cluster has removed it meanwhile
        return b""


def _words(process: psutil.Process) -> list[str]:
    try:
        words: list[str] = process.cmdline()
    except psutil.Error:
        words = []
    return words


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except psutil.Error:
        found = []
    return found


def free_ports(count: int) -> list[int]:
    """Ports that are free, outside the ranges from which the system and Ray choose: no other process is given them meanwhile."""
    candidates = random.sample(range(20_000, 32_000), 1_000)
    return list(islice((port for port in candidates if is_free("0.0.0.0", port)), count))
