"""The protocols between the supervisor, which decides what runs, and the places where processes run.

A place starts processes, watches them, and ends what they leave behind. `deploy/places/local.py` is this machine,
`deploy/places/remote/hosts.py` are the hosts that have joined the run, and `deploy/places/choice.py` chooses between the two.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from deploy.process_spec import ProcessSpec
from transport.lifetime import signal_name
from transport.messages.control import Assignment

OUT_OF_MEMORY = "out of memory"  # the beginning of the reason when a process ended for lack of memory


class Exit(NamedTuple):
    """How a process ended. `code` is negative for a signal, as in subprocess; `last_words` is its last line.

    `explained`: that line began with the process's name, so its own code ended it: not a simulator, which may exit as it likes.
    `with_host` says why it went with the host that it ran on, which is no failure of the process; empty otherwise.
    """

    code: int
    last_words: str = ""
    out_of_memory: bool = False  # the kernel killed it
    explained: bool = False
    with_host: str = ""

    @property
    def reason(self) -> str:
        """In words."""
        if self.with_host:
            return self.with_host
        if self.out_of_memory:
            return f"{OUT_OF_MEMORY}: killed by the kernel"
        if self.code < 0:
            return f"killed by {signal_name(-self.code)}"
        if self.code == 0:
            return "it ended by itself"
        return f"exit {self.code}: {self.last_words}" if self.last_words else f"exit {self.code}"


class Usage(NamedTuple):
    """Memory and processor time of a process; None where they cannot be read."""

    rss_bytes: int | None = None
    cpu_percent: float | None = None  # of one core, since the last reading


class Process(Protocol):
    """A process of the run, on any machine."""

    incarnation: int  # in its environment as HEADRACE_INCARNATION, and in its reports: pids repeat, above all on several machines
    pid: int  # on the machine that it runs on; for people
    fault: str  # why it must be replaced although it runs; empty while there is no reason
    host: str  # the host that it runs on; empty: this machine
    away: bool  # its host is silent, so its own silence says nothing
    adopted: bool  # a supervisor before this one has started it

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs."""

    def ask(self) -> None:
        """Asks it to end. The supervisor sends it a message as well."""

    def kill(self) -> None:
        """Ends it and all that it has started, at once."""

    def usage(self) -> Usage:
        """Its memory and processor time."""


class Place(Protocol):
    """Where processes of a run can be started. Used by one thread, that of the supervisor."""

    def begin(self, spec: ProcessSpec, assignment: Assignment | None) -> Process | None:
        """Starts a process; `assignment` is an actor's. Returns None where there is no room yet: nothing has failed, and the
        supervisor calls again. Raises OSError where there is room but the process cannot be started."""

    def turn(self) -> None:
        """Called about ten times a second."""

    def close(self) -> None:
        """Ends what is left. Called when no process of the run is alive any more."""


class HostState(NamedTuple):
    """A host that has joined the run."""

    actors: int  # that it runs
    free: int  # places that an actor may have
