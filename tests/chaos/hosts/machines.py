"""A run whose trunk and hosts are machines of a network: hosts are killed, cables are pulled, and what follows is counted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.chaos.checker import Verdict, check
from tests.chaos.history import read_life
from tests.chaos.hosts.namespaces import PORTS, TRUNK, TRUNK_FOR_LINE, USER, Network
from tests.harness.spread import Spread
from tests.harness.waiting import PATIENCE_SECONDS, ROOT, gone, shared_memory, wait_until

HOSTS = ("host-0", "host-1")
ACTORS = tuple(f"actor-{index}" for index in range(4))
SETTINGS = f"""
--actors {len(ACTORS)} --deploy.port {PORTS[0]} --replay.samples-per-insert-low 0 --replay.samples-per-insert-high 1e9
""".split()  # actors never wait for the learner


@dataclass
class Seen:
    """What became of the hosts that were struck."""

    elsewhere: list[float] = field(default_factory=list)  # seconds until all actors were at work on the other host
    gone: list[float] = field(default_factory=list)  # seconds until no process and no socket of a killed host was left
    folders: int = 0  # with keys or sockets, of hosts whose agent alone was killed
    shared_memory: int = 0
    abandoned: int = 0  # hosts whose link was cut for long enough
    old: int = 0  # actors behind these links
    acknowledged: int = 0  # of these actors, those that were acknowledged anything after the link was back

    @property
    def elsewhere_p95(self) -> float:
        return float(np.quantile(self.elsewhere, 0.95))

    @property
    def left(self) -> dict[str, int]:
        """What killed hosts have left."""
        return {"folders": self.folders, "shared_memory": self.shared_memory}

    @property
    def behind_cuts(self) -> dict[str, int]:
        return {"abandoned": self.abandoned, "old_actors": self.old, "acknowledged_afterwards": self.acknowledged}


class Machines(Spread):
    """Two hosts with room for all actors each."""

    def __init__(self, folder: Path, network: Network, line: Line | None, *settings: str) -> None:
        super().__init__(folder, "tests.chaos.simulator:slow_vector", *SETTINGS, *settings)
        self.network, self.line, self.seen = network, line, Seen()
        self.disks = Path(tempfile.mkdtemp(prefix="hr-"))  # of the hosts: pytest's folders are too deep for sockets
        self.prefix = self.prefix_of("trunk")

    def prefix_of(self, name: str) -> list[str]:
        return [*self.network.inside(name), *USER]

    def join(self, name: str, *arguments: str) -> None:
        """Starts a new agent with the ticket of the previous one, as an engine would."""
        usual, own = self.environment, self.disks / name
        own.mkdir(exist_ok=True)
        self.environment = usual | {"TMPDIR": str(own), "XDG_CACHE_HOME": str(own)}
        super().join(name, "--places", str(len(ACTORS)), "--allow", "tests", *arguments)
        self.environment = usual

    def begin(self) -> None:
        """All actors at work, on both hosts."""
        self.start()
        for name in HOSTS:
            self.join(name)
        self.settle()
        self.until(lambda: all(map(self.collected, ACTORS)), "records of all")

    def settle(self) -> None:
        """Both hosts there and all actors at work, with steps that are new."""
        self.until(
            lambda: (
                [host["state"] for host in self.status.get("hosts", [])] == ["joined"] * 2
                and sum(host["actors"] for host in self.status["hosts"]) == len(ACTORS) == len(self.at_work())
            ),
            "both hosts and all actors at work",
        )
        before = self.status["steps"]
        self.until(lambda: self.status["steps"] > before + 50, "steps go on")

    def sides(self) -> tuple[str, str]:
        """The host that has most actors, and the other one."""
        places = list(self.at_work().values())
        first, second = sorted(HOSTS, key=places.count)
        return second, first

    def kill_host(self, everything: bool) -> None:
        """By SIGKILL: `everything` on the machine at once, or the agent alone, whose actors must end by themselves."""
        host, other = self.sides()
        memory, began = shared_memory(), time.monotonic()
        agent = self.agents.pop(host)
        if everything:
            self.network.kill(host)
        agent.kill()
        agent.wait()
        wait_until(lambda: not self._left(host), what=f"nothing left of {host}")
        self.seen.gone.append(time.monotonic() - began)
        self.seen.shared_memory += len(shared_memory() - memory)
        folders = list((self.disks / host).iterdir())
        if everything:  # no process was left that could have removed it
            for folder in folders:
                shutil.rmtree(folder)
        else:
            self.seen.folders += len(folders)
        self.until(lambda: self._all_on(other), f"all actors at work on {other}")
        self.seen.elsewhere.append(time.monotonic() - began)
        self.join(host)
        self.settle()

    def cut_link(self, seconds: float) -> None:
        """Cuts the link, then counts the actors behind it that were abandoned and acknowledged something afterwards."""
        host, other = self.sides()
        names = [name for name, place in self.at_work().items() if place == host]
        old = {name: self.pid(name) for name in names}
        silences, moved = self._silences(host), 0.0
        self.network.cut(host)
        began = time.monotonic()

        def look(over: float) -> bool:
            nonlocal moved
            if not moved and self._all_on(other):
                moved = time.monotonic() - began
            return time.monotonic() - began >= over

        self.until(lambda: look(seconds), "the cut is over", seconds + PATIENCE_SECONDS)
        abandoned = self._silences(host) > silences
        before = {path: read_life(path).acknowledged for name, pid in old.items() for path in self._histories(name, pid)}
        self.network.heal(host)
        if abandoned:
            self.until(lambda: look(0) and moved, f"all actors at work on {other}")
            self.until(lambda: all(map(gone, old.values())), "the old actors have ended")
            self.seen.elsewhere.append(moved)
            self.seen.abandoned += 1
            self.seen.old += len(before)
            self.seen.acknowledged += sum(read_life(path).acknowledged > known for path, known in before.items())
        self.settle()

    def down(self) -> Verdict:
        """Ctrl-C: the hosts leave, and nothing is left on any machine. What became of all steps."""
        assert self.interrupt() == 0, self.text[-3000:]
        for name, agent in self.agents.items():
            assert agent.wait(PATIENCE_SECONDS) == 0, (self.folder / name).read_text()[-3000:]
        wait_until(lambda: not any(map(self.network.processes, ("trunk", *HOSTS))), what="no process left anywhere")
        assert not shared_memory() - self.shared_memory
        return check(self.run_dir.segments, self.spec, self.histories)

    def close(self) -> None:
        """Ends everything on all machines, and the machines."""
        self.network.close()
        super().close()
        shutil.rmtree(self.disks, ignore_errors=True)

    def _all_on(self, host: str) -> bool:
        return self.at_work() == dict.fromkeys(ACTORS, host)

    def _left(self, host: str) -> list[object]:
        """Processes and sockets of a killed host, and connections to it."""
        to_it = [line for line in self.network.sockets("trunk") if self.network.addresses[host] in line]
        return [*self.network.processes(host), *self.network.sockets(host), *to_it]

    def _silences(self, host: str) -> int:
        """How often this host was abandoned because it was silent; its actors' keys have been refused by then."""
        return sum(f"{host} has not been heard for" in line for line in self.text.splitlines())

    def _histories(self, name: str, pid: int) -> list[Path]:
        return list(self.histories.glob(f"{name}-{pid}-*.history"))


class Line:
    """The slow line that breaks, for the hosts behind it."""

    def __init__(self, network: Network) -> None:
        command = [sys.executable, "-m", "tests.chaos.hosts.line", TRUNK, TRUNK_FOR_LINE, *map(str, PORTS)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([*network.inside("line"), *command], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def end(self) -> dict[str, int]:
        """How many `connections` there were, and how many of them broke (`resets`)."""
        printed, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        return {str(name): int(number) for name, number in json.loads(printed).items()}

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def machines(folder: Path, behind_line: bool = False) -> Iterator[Machines]:
    """A run that is at work, and gone after the block with all machines. With `behind_line` one host is behind the line."""
    with ExitStack() as stack:
        network = Network(HOSTS, HOSTS[:1] if behind_line else ())
        stack.callback(network.close)
        line = Line(network) if behind_line else None
        if line:
            stack.callback(line.close)
        bind = ("0.0.0.0", "--deploy.advertise", TRUNK) if behind_line else (TRUNK,)
        made = Machines(folder, network, line, "--deploy.bind", *bind)
        stack.callback(made.close)
        made.begin()
        yield made
