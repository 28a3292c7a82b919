"""The engine `ray`, in the supervisor. It connects to the cluster in a separate process, so that Ray cannot hold up this one.

Ray's library ends its process when the cluster ends. The separate process (`deploy/engines/driver.py`) reads orders
from its standard input and prints events, a line of JSON each. It is started again when it has ended; its hosts outlive it.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from collections import deque
from importlib import metadata
from typing import Any

import msgspec
from msgspec import Struct

from actors import trust
from deploy import settings as files
from deploy.children import THREAD_VARIABLES, child_environment, python_command, run_child
from deploy.config.run import RunConfig
from deploy.engines.base import EngineContext
from deploy.engines.fleet import Connected, Disconnected, Event, Fleet
from deploy.errors import ConfigError, RunRefused
from deploy.places.child import Child
from deploy.process_spec import restart_seconds
from learner.devices import installing
from transport.run_dir import RunDir
from transport.sockets.keys import LIST, KeyList
from transport.text import plain

MODULE = "deploy.engines.driver"
LOCAL, CLIENT = "local", "ray://"
OLDEST = (2, 60)
CHECK, CHECK_SECONDS = "--check", 90.0
ANSWER_SOON = {f"RAY_gcs_rpc_server_{what}_timeout_s": "15" for what in ("connect", "reconnect")}  # then Ray ends its process
CLOSE_SECONDS = 30.0  # longer than it takes to end hosts that do not end by themselves
SHORT_CLOSE_SECONDS = 10.0  # where the cluster did not answer lately
POLL_SECONDS = 0.05
LONGEST_DELAY_SECONDS = 30.0
MOST_LETTERS = 300  # of a line: Ray writes whole paragraphs
PREFIX = re.compile(r"\[\d{4}-[^]]*\] \S+:\d+: ")  # of its log: time, level, process, place in its source
NOISE = re.compile(r"\(raylet\b|\s")  # lines of Ray's daemons, about what the events of this process say already


class StartHost(Struct, frozen=True, tag=True):
    """An order: start a host, which joins the supervisor at `address` by the content of a ticket."""

    host: str
    places: int
    address: str
    ticket: str


class EndHost(Struct, frozen=True, tag=True):
    """An order: end a host at once."""

    host: str


class Close(Struct, frozen=True, tag=True):
    """An order: end all hosts of the run, then this process."""


Order = StartHost | EndHost | Close


class ClusterSettings(Struct, frozen=True):
    """The command line of the separate process; it contains no secret."""

    address: str  # of the cluster
    namespace: str = ""  # the names of its hosts are unique in it
    cpus: float = 1.0  # for each place
    memory_bytes: int = 0  # for each place; 0: not asked for
    allowed: tuple[str, ...] = ()  # packages that the run's settings may name for actors to import
    folder: str = ""  # in which hosts work, where there is one of that path


class ClusterProcess:
    """The supervisor's side."""

    def __init__(self, name: str, settings: ClusterSettings, context: EngineContext) -> None:
        """`name`: of the process, in the log. It is started by the first call of `events`."""
        self._name, self._settings, self._context = name, settings, context
        self._child: Child | None = None
        self._lines: deque[str] = deque()  # events, in JSON; another thread appends
        self._last_line, self._failures, self._start_at = "", 0, 0.0

    def start(self, host: str, places: int, ticket: str) -> None:
        self._tell(StartHost(host, places, self._context.address() or "", ticket))

    def end(self, host: str) -> None:
        self._tell(EndHost(host))

    def events(self) -> list[Event]:
        """Raises msgspec.ValidationError for a line that is not an event."""
        now, found = self._context.clock(), self._arrived()
        if self._child is not None and _ended(self._child):
            found += [*self._arrived(), Disconnected()]
            self._forget()
            self._failures += 1
            delay = restart_seconds(self._failures + 1, LONGEST_DELAY_SECONDS)
            self._start_at = now + delay
            reason = self._last_line.partition(". ")[0] or "it was killed"
            self._context.say(f"{self._name}: {reason}; asking the cluster again in {delay:.0f} s, hosts that have joined go on")
        if self._child is None and now >= self._start_at:
            self._begin()
        return found

    def _arrived(self) -> list[Event]:
        found: list[Event] = [msgspec.json.decode(self._lines.popleft(), type=Event) for _ in range(len(self._lines))]
        if any(isinstance(event, Connected) for event in found):
            self._failures = 0
        return found

    def close(self) -> None:
        if self._child is None or _ended(self._child):
            self._forget()
            self._begin()
        self._tell(Close())
        deadline = time.monotonic() + (SHORT_CLOSE_SECONDS if self._failures else CLOSE_SECONDS)
        while self._child is not None and not _ended(self._child):
            if time.monotonic() > deadline:
                self._context.say(f"{self._name}: the cluster does not answer; hosts that it still has end by themselves")
                self._child.end()
                break
            time.sleep(POLL_SECONDS)
        self._forget()

    def _begin(self) -> None:
        command = python_command(MODULE, msgspec.json.encode(self._settings).decode())
        environment = child_environment(**dict.fromkeys(THREAD_VARIABLES, "1"))
        self._last_line = ""
        try:
            self._child = Child(self._name, command, environment, self._take, asked=True)
        except OSError as error:
            self._context.say(f"{self._name} could not be started: {error}")
            self._start_at = self._context.clock() + LONGEST_DELAY_SECONDS

    def _forget(self) -> None:
        if self._child is not None:
            self._child.hang_up()
            self._child = None

    def _tell(self, order: Order) -> None:
        if self._child is not None:
            self._child.tell(msgspec.json.encode(order).decode(), last=isinstance(order, Close))

    def _take(self, name: str, line: str) -> None:
        if line.startswith('{"type":'):
            self._lines.append(line)
        elif line and not NOISE.match(line := plain(line)):
            self._last_line = PREFIX.sub("", line)[:MOST_LETTERS]
            self._context.line(name, self._last_line)


def _ended(child: Child) -> bool:
    try:
        return child.poll() is not None
    except ChildProcessError:  # the supervisor has reaped it with the orphans
        return True


class ClusterInfo(Struct, frozen=True):
    """The answer to `headrace up` before a launch."""

    own_address: str  # of this machine, as the cluster's others know it


class RayEngine(Fleet):
    """The engine `ray` of a run."""

    def __init__(self, run: RunDir, config: RunConfig, context: EngineContext) -> None:
        code = trust.code_of(files.acting(config))
        settings = ClusterSettings(
            config.ray.address,
            namespace_of(run),
            config.ray.cpus_per_place,
            config.actors.memory_bytes,
            tuple(sorted({value.partition(":")[0] for values in code.values() for value in values})),
            os.getcwd(),
        )
        super().__init__(ClusterProcess("ray", settings, context), config.ray.places_per_host, context)

    @classmethod
    def prepare(cls, config: RunConfig) -> dict[str, Any]:
        _check_version()
        address = config.ray.address
        if address.startswith(CLIENT):
            raise ConfigError(
                f"--ray.address {address}: a run belongs to a machine of the cluster; start it there with --ray.address auto, or "
                "by `ray job submit`"
            )
        own = "127.0.0.1" if address == LOCAL else ask(address).own_address
        return {"deploy": {"bind": own, "local_actors": 0}}


def namespace_of(run: RunDir) -> str:
    """The Ray namespace of a run's hosts: another run of the same name has another one."""
    public = KeyList(run.key_folder / LIST).by_name()["supervisor"]
    return f"headrace-{run.name}-{hashlib.sha256(public.encode()).hexdigest()[:8]}"


def _check_version() -> None:
    oldest = ".".join(map(str, OLDEST))
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise ConfigError(f"--on ray needs Ray, which is not installed: {installing.headrace('ray')}") from None
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise ConfigError(f"--on ray needs Ray {oldest} or later, and this is {version}: pip install -U ray")


def ask(address: str) -> ClusterInfo:
    """Connects to the cluster for a moment, in another process. Raises RunRefused."""
    command = python_command(MODULE, msgspec.json.encode(ClusterSettings(address)).decode(), CHECK)
    try:
        done = run_child(command, CHECK_SECONDS, child_environment(**ANSWER_SOON))
    except subprocess.TimeoutExpired:
        raise RunRefused(f"--ray.address {address}: no answer for {CHECK_SECONDS:.0f} s") from None
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0:
        return msgspec.json.decode(last, type=ClusterInfo)
    words = last or "no Ray cluster answers there: is it up, and does this machine belong to it?"
    raise RunRefused(f"--ray.address {address}: {words}")
