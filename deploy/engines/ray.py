"""Hosts on a cluster of Ray: each is one Ray actor, which is the agent of a host with several places.

Ray chooses the machine of each host, and adds machines if the cluster has an autoscaler; each host states what it needs.
Ray does not restart hosts: a restarted host would repeat its actors' seeds, and its failures would not be counted. The Ray actors
are detached: they outlive a supervisor that is killed, and end by themselves when no new one connects. A ticket is sent to a host
as an argument of a method, so it is on no command line, in no log, and in nothing that Ray's dashboard shows.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.engines.fleet import Connected, Event, HostEnded, Placed, Waiting
from deploy.engines.ray_engine import LOCAL, MOST_LETTERS, ClusterInfo, ClusterSettings, StartHost
from transport.sockets.keys import parse_ticket

STORE_BYTES = 80_000_000  # of the object store of a cluster of our own: nothing of a run goes through it
PATIENCE_SECONDS = 10.0  # for a machine, before it is said that there is no room yet
# Otherwise Ray kills the reaper of a host with the host, and what simulators have started is left.
SPARE_REAPER = {"RAY_kill_child_processes_on_worker_exit": "false"}
NODE = "ray.io/node-id"  # Ray's label of each machine
SUSPECT_SECONDS = 25.0  # for Ray to notice that a machine is dead: until then it would start hosts there
UNUSED_SECONDS = 60.0  # without a call, after which a host ends
LEAVE_SECONDS = 10.0  # for hosts to end after they were sent home; for a host to be told that it may go
KILL_SECONDS = 5.0
VERSIONS = r"Ray: (\S+)\s*Python: (\S+)"
MISMATCH = re.compile(rf"cluster was started with:\s*{VERSIONS}\s*This process.*?{VERSIONS}", re.DOTALL)

ADVICE = (
    "start a cluster with `ray start --head`, or let the run have its own with --ray.address local; one that wants a token needs "
    "RAY_AUTH_MODE=token here, too"
)


class ClusterError(RuntimeError):
    """The cluster cannot be used; one line."""


class HeadraceHost:
    """The Ray actor. Its methods are called one after another, in the main thread of its process."""

    def __init__(self) -> None:
        self._result = 1, "it was told nothing"
        self._begun = False
        _later(UNUSED_SECONDS, self._end_if_unused)

    def node(self) -> str:
        """The machine that this host has."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def run(self, order: StartHost, allowed: tuple[str, ...], folder: str) -> None:
        """Is the agent of a host until that leaves the run, as `headrace join` is."""
        from deploy.places.remote.join import serve

        self._begun = True
        if os.path.isdir(folder):
            os.chdir(folder)  # the user's own modules, where machines share their files
        try:
            _, status, reason = serve(order.address, parse_ticket(order.ticket), order.places, allowed)
            self._result = status, reason
        except Exception as error:  # whatever it is, the run's log says it
            self._result = 1, f"{type(error).__name__}: {error}"
        _later(LEAVE_SECONDS, lambda: os._exit(0))  # the driver, which would call `leave`, may have ended

    def result(self) -> tuple[int, str]:
        """The exit status of the agent, and why it has left. Called while `run` works, it waits for that."""
        return self._result

    def leave(self) -> None:
        """Ends the Ray actor, in a way that Ray does not take for a failure."""
        import ray

        ray.actor.exit_actor()

    def _end_if_unused(self) -> None:
        if not self._begun:  # its driver was killed before it had a machine
            os._exit(0)


def _later(seconds: float, act: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


@dataclass
class Handle:
    """A host that was asked for. `ready` and `result` are references of Ray; without `ready` it has a machine."""

    actor: Any
    ready: Any
    result: Any
    began: float
    places: int
    node: str = ""  # its machine, where this process has asked for it
    avoiding: bool = False  # whether it must not be started on some machines


class RayCluster:
    """The hosts of a run on Ray, in the process that is connected to Ray."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Connects. Raises ClusterError."""
        self._settings, self._hosts = settings, dict[str, Handle]()
        self._suspects: dict[str, float] = {}  # machine whose host the run did not hear -> until when it is avoided
        self._ray = connect(settings)

    def facts(self) -> ClusterInfo:
        return ClusterInfo(self._ray.util.get_node_ip_address())

    def found(self) -> Connected:
        """The hosts of the run that the cluster has; a supervisor before this one has started them."""
        names = self._ray.util.list_named_actors()
        for name in names:
            actor = self._ray.get_actor(name)
            self._hosts[name] = Handle(actor, None, actor.result.remote(), time.monotonic(), 0)
        return Connected(tuple(names))

    def start(self, order: StartHost) -> None:
        """The methods of a host are called in this order, once it has a machine."""
        resources: dict[str, Any] = {"num_cpus": self._settings.cpus * order.places}
        if self._settings.memory_bytes:
            resources["memory"] = self._settings.memory_bytes * order.places
        if suspects := self._suspected():
            resources["label_selector"] = {NODE: f"!in({','.join(suspects)})"}
            resources["fallback_strategy"] = [{"label_selector": {}}]  # where the cluster has no other machine
        made = self._ray.remote(
            max_restarts=0,
            max_task_retries=0,
            lifetime="detached",
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": SPARE_REAPER},
            **resources,
        )(HeadraceHost)
        actor = made.options(name=order.host).remote()
        ready = actor.node.remote()
        actor.run.remote(order, self._settings.allowed, self._settings.folder)
        result = actor.result.remote()
        self._hosts[order.host] = Handle(actor, ready, result, time.monotonic(), order.places, avoiding=bool(suspects))

    def end(self, host: str) -> None:
        """The host was not heard, or is not wanted: its machine is avoided for a while, since it may be dead."""
        if (handle := self._hosts.pop(host, None)) is not None:
            self._ray.kill(handle.actor)
            if handle.node:
                self._suspects[handle.node] = time.monotonic() + SUSPECT_SECONDS

    def turn(self) -> list[Event]:
        """The events since the last call."""
        events: list[Event] = []
        for host, handle in list(self._hosts.items()):
            if handle.ready is not None and self._done(handle.ready):
                handle.node, handle.ready = self._node(handle), None
                events.append(Placed(host))
            if self._done(handle.result):
                if (reason := self._reason(handle)) is not None:
                    events.append(HostEnded(host, reason))
                    del self._hosts[host]
            elif handle.ready is not None and handle.avoiding and not self._suspected():
                self.end(host)
                events.append(HostEnded(host, "no other machine had room"))
            elif handle.ready is not None and time.monotonic() > handle.began + PATIENCE_SECONDS:
                handle.began = float("inf")  # said once
                events.append(Waiting(host, self._needs(handle.places)))
        return events

    def close(self) -> None:
        """Ends all hosts of the run: those that have a machine were sent home, and get the time for that."""
        for host, handle in list(self._hosts.items()):
            if handle.ready is not None and not self._done(handle.ready):
                self.end(host)
        self._until(lambda: not self.turn() and not self._hosts, LEAVE_SECONDS)
        for host in list(self._hosts):
            self.end(host)
        self._until(lambda: not self._ray.util.list_named_actors(), KILL_SECONDS)
        self.leave()

    def leave(self) -> None:
        self._ray.shutdown()

    def _suspected(self) -> list[str]:
        now = time.monotonic()
        self._suspects = {node: until for node, until in self._suspects.items() if until > now}
        return list(self._suspects)

    def _node(self, handle: Handle) -> str:
        """The machine of a host that has one; empty where it has died since."""
        try:
            return str(self._ray.get(handle.ready))
        except Exception:  # whatever it is, `result` says it
            return ""

    def _done(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])

    def _reason(self, handle: Handle) -> str | None:
        """Why a host has ended; lets it go. None where it only could not be reached for a moment: the run hears it or not."""
        try:
            reason: str = self._ray.get(handle.result)[1]
            handle.actor.leave.remote()
        except self._ray.exceptions.ActorUnavailableError:
            handle.result = handle.actor.result.remote()
            return None
        except Exception as error:  # what a Ray actor raises, or why it is no more
            return last_words(error)
        return reason

    def _needs(self, places: int) -> str:
        memory = self._settings.memory_bytes * places
        asked = f"{self._settings.cpus * places:g} CPUs" + (f" and {memory / 1e9:.1f} GB" if memory else "")
        nodes: list[Mapping[str, Any]] = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        largest = max((node.get("CPU", 0) for node in nodes), default=0)
        free, total = (found().get("CPU", 0) for found in (self._ray.available_resources, self._ray.cluster_resources))
        room = f"{free:g} of the {total:g} CPUs of the cluster are free, and its largest machine has {largest:g}"
        return f"each asks Ray for {asked}; {room}"

    def _until(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            time.sleep(0.1)


def connect(settings: ClusterSettings) -> Any:
    """Ray, connected. A cluster is started only for the address `local`. Raises ClusterError."""
    address = settings.address
    if address == LOCAL and "RAY_AUTH_MODE" not in os.environ:  # otherwise Ray leaves a token in the user's home
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    elif os.environ.get("RAY_ADDRESS") == LOCAL:
        del os.environ["RAY_ADDRESS"]
    import ray  # reads these variables

    own = {"include_dashboard": False, "object_store_memory": STORE_BYTES} if address == LOCAL else {}
    try:
        ray.init(address, namespace=settings.namespace or None, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if found := MISMATCH.search(str(error)):
            theirs, ours = found.group(1, 2), found.group(3, 4)
            raise ClusterError(
                f"the cluster has Ray {theirs[0]} on Python {theirs[1]}, and this is Ray {ours[0]} on Python {ours[1]}: install "
                "the same for both"
            ) from error
        if isinstance(error, ConnectionError):
            raise ClusterError(f"{last_words(error)}: {ADVICE}") from error
        raise ClusterError(last_words(error)) from error
    return ray


def last_words(error: Exception) -> str:
    """The telling sentence of an error of Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = next((line for line in lines if "because" in line), lines[-1] if lines else type(error).__name__)
    return telling.partition(". ")[0].removesuffix(".")[:MOST_LETTERS]
