"""A cluster of Ray over machines of a network. The trunk is its head and has no CPUs for hosts: they run on the other two."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from deploy.children import child_environment, python_command
from deploy.engines.fleet import HEALTHY_SECONDS
from tests.chaos.checker import Verdict, check
from tests.chaos.history import HISTORY_VARIABLE
from tests.chaos.hosts.namespaces import PORTS, TRUNK, USER, Network
from tests.harness.run import World
from tests.harness.waiting import PATIENCE_SECONDS, shared_memory, wait_until

NODES = ("host-0", "host-1")
CPUS = 8  # of each, so that one has room for all actors
CLUSTER = f"{TRUNK}:6379"
START_SECONDS = 120.0
ENDED_SECONDS = 5.0  # for the processes of Ray actors that have ended
STORE_BYTES = "80000000"  # of Ray's object store, which a run does not use
COUNT_ACTORS = f"""
import ray
ray.init("{CLUSTER}", log_to_driver=False, logging_level="ERROR")
print(len(ray.util.list_named_actors(all_namespaces=True)))
"""


class RayMachines(World):
    """A run on a cluster of Ray, whose hosts have two places each."""

    def __init__(self, folder: Path, network: Network, env: str, *settings: str) -> None:
        on = ["--on", "ray", "--ray.address", CLUSTER, "--ray.places-per-host", "2", "--deploy.port", str(PORTS[0])]
        super().__init__(folder, env, [*on, *settings])
        self.network = network
        self.prefix = [*network.inside("trunk"), *USER]
        self.disk = Path(tempfile.mkdtemp(prefix="hr-"))  # pytest's folders are too deep for sockets
        self._healthy_at = 0.0
        self.histories = folder / "histories"
        self.histories.mkdir()
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment = child_environment(**{HISTORY_VARIABLE: str(self.histories), "TMPDIR": str(self.disk)}, **token)

    def start_node(self, machine: str) -> None:
        """Ray on a machine; on the trunk it is the head of a new cluster."""
        if machine == "trunk":
            place = ["--head", "--port", CLUSTER.rpartition(":")[2], "--num-cpus", "0", "--include-dashboard", "false"]
            own = ["--node-ip-address", TRUNK, "--temp-dir", str(self.disk / "ray")]
        else:
            place = ["--address", CLUSTER, "--num-cpus", str(CPUS)]
            own = ["--node-ip-address", self.network.addresses[machine]]
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", "--object-store-memory"]
        self._inside(machine, *start, STORE_BYTES, *place, *own)

    def machine_of(self, actor: str) -> str:
        """Where an actor runs: pids are the same in all namespaces of the network."""
        pid = self.process(actor).get("pid")
        return next((machine for machine in NODES if pid in self.network.processes(machine)), "")

    def wait_for(self, count: int) -> float:
        """Until so many actors are at work; returns the seconds it took."""
        began = time.monotonic()

        def there() -> bool:
            actors = [each for each in self.status.get("processes", []) if each["role"] == "actor"]
            return len(actors) == len(self.at_work()) == count

        self.until(there, f"{count} actors at work")
        return time.monotonic() - began

    def scale(self, count: int) -> float:
        """`headrace scale` while actors work; returns the seconds until so many are at work."""
        self._inside("trunk", *python_command("deploy.cli.main", "scale", str(count)))
        return self.wait_for(count)

    def kill_node(self, everything: bool) -> tuple[float, float]:
        """Kills, by SIGKILL, the raylet of the machine that has most actors, or `everything` on it; then starts Ray there anew.

        Returns the seconds until nothing of the run was left on it, and until all actors were at work on the other one. A host
        that dies soon after its start is replaced with a delay, so this first waits until all have been there for long enough.
        """
        self.until(lambda: time.monotonic() > self._healthy_at, "the hosts count as healthy", HEALTHY_SECONDS + PATIENCE_SECONDS)
        names = list(self.at_work())
        places = [self.machine_of(name) for name in names]
        other, struck = sorted(NODES, key=places.count)
        began = time.monotonic()
        if everything:
            self.network.kill(struck)
        else:
            (raylet,) = [each for each in self._processes(struck) if each.name() == "raylet"]
            raylet.send_signal(signal.SIGKILL)
        wait_until(lambda: not self._of_run(struck), what=f"nothing of the run left on {struck}")
        gone = time.monotonic() - began
        self.until(
            lambda: len(self.at_work()) == len(names) and all(self.machine_of(name) == other for name in names),
            f"all actors at work on {other}",
        )
        elsewhere = time.monotonic() - began
        self._healthy_at = time.monotonic() + HEALTHY_SECONDS
        self.network.kill(struck)
        self.start_node(struck)
        return gone, elsewhere

    def down(self) -> int:
        """Ctrl-C, after which no process of the run is left. Returns how many Ray actors are left.

        Ray reports an actor as ended before its process has ended.
        """
        assert self.interrupt() == 0, self.text[-3000:]
        left = lambda: [line for machine in NODES for line in self._of_run(machine)]  # noqa: E731
        wait_until(lambda: not left(), ENDED_SECONDS, what=f"nothing left of the run: {left()}")
        return int(self._inside("trunk", sys.executable, "-c", COUNT_ACTORS).split()[-1])

    def verdict(self) -> Verdict:
        """What became of all steps."""
        return check(self.run_dir.segments, self.spec, self.histories)

    def close(self) -> None:
        """Ends everything on all machines, and the machines."""
        self.network.close()
        super().close()
        for name in shared_memory() - self.shared_memory:  # of Ray's nodes that were killed
            os.unlink(f"/dev/shm/{name}")
        shutil.rmtree(self.disk, ignore_errors=True)

    def _processes(self, machine: str) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in self.network.processes(machine) if psutil.pid_exists(pid)]

    def _of_run(self, machine: str) -> list[str]:
        """The command lines of processes there that are not Ray's own: agents of hosts, and what they have started."""
        found = []
        for each in self._processes(machine):
            try:
                line = " ".join(each.cmdline())
            except psutil.Error:
                continue
            own = "/ray/" in line or (line.startswith("ray::") and not line.startswith("ray::HeadraceHost"))
            if line and not own:
                found.append(line.strip())
        return found

    def _inside(self, machine: str, *command: str) -> str:
        """A command on a machine, which must succeed. Returns what it prints."""
        done = subprocess.run(
            [*self.network.inside(machine), *USER, *command],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=START_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        return done.stdout


@contextmanager
def ray_machines(folder: Path, env: str, *settings: str) -> Iterator[RayMachines]:
    """A cluster of three machines and a run that is not started yet; nothing is left of both after the block."""
    with ExitStack() as stack:
        network = Network(NODES)
        stack.callback(network.close)
        made = RayMachines(folder, network, env, *settings)
        stack.callback(made.close)
        for machine in ("trunk", *NODES):
            made.start_node(machine)
        yield made
