"""Processes that are started before their run exists, and wait for it.

They import their modules while `headrace up` tries the environment. The learner also answers what only it can answer
(learner/probe.py). Then they are the first processes of the run; their replacements are started like every other process.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue

import msgspec

from deploy.children import THREAD_VARIABLES, child_environment, python_command
from deploy.places.child import LOG_LINE_BYTES, Child
from deploy.places.reaper import MARK_VARIABLE
from deploy.process_spec import ProcessSpec
from learner.config import LearnerConfig
from transport.lifetime import PARENT_VARIABLE, WAIT

ANSWER_BYTES = 16 << 20  # a longer line of an answer is cut
POLL_SECONDS = 0.1  # between two looks whether the process has ended; a line is seen at once
OnLine = Callable[[str, str], None]


class Waiting:
    """A process that waits for its arguments. It ends with this one in any case: its standard input ends, and the kernel kills it
    (transport/lifetime.py)."""

    def __init__(
        self, name: str, words: Sequence[str], mark: str, threads: int, longest_line_bytes: int = LOG_LINE_BYTES
    ) -> None:
        """Starts `python -m WORDS`, with that mark in its environment. Raises OSError."""
        self.mark, self.threads = mark, threads
        self._lock = threading.Lock()
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._on_line: OnLine | None = None
        marks = {PARENT_VARIABLE: str(os.getpid()), MARK_VARIABLE: mark}
        environment = child_environment(**marks, **dict.fromkeys(THREAD_VARIABLES, str(threads)))
        command, own = python_command(*words), {"asked": True, "yields": True, "longest_line_bytes": longest_line_bytes}
        self._child: Child | None = Child(name, command, environment, self._take, **own)

    def begin(self, spec: ProcessSpec, arguments: Sequence[str], on_line: OnLine) -> Child | None:
        """Makes it the process of `spec`, with these arguments; the caller ends it. None: it does not suit, and ends here."""
        if self._child is None or spec.processes > 1 or not self._suits(spec):
            self.close()
            return None
        child, self._child = self._child, None
        child.longest_line_bytes = LOG_LINE_BYTES
        with self._lock:
            while not self._lines.empty():
                on_line(spec.name, self._lines.get())
            self._on_line = on_line
        child.tell(self._order(arguments), last=True)
        return child

    def close(self) -> None:
        """Ends it, unless it has begun its run."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _suits(self, spec: ProcessSpec) -> bool:
        """Threads are counted, and libraries loaded, when a process begins."""
        return spec.threads == self.threads and not spec.python and self._child is not None and self._child.poll() is None

    def _order(self, arguments: Sequence[str]) -> str:
        return msgspec.json.encode(list(arguments)).decode()

    def _take(self, name: str, line: str) -> None:
        with self._lock:
            if self._on_line is None:
                self._lines.put(line)
            else:
                self._on_line(name, line)


class WaitingLearner(Waiting):
    """The learner, which waits for the run's folder. It sets torch's number of threads by itself, once its settings are there;
    several learner processes inherit theirs from the environment, and are started anew."""

    def __init__(self, learner: LearnerConfig) -> None:
        """Starts it. Raises OSError."""
        self.run_mark = secrets.token_hex(8)
        words = ("learner", WAIT, learner.device, learner.precision, str(learner.processes))
        super().__init__("learner", words, f"{self.run_mark}:0", learner.threads or 1, ANSWER_BYTES)

    def ask(self, line: str) -> None:
        """Writes a line to its standard input."""
        assert self._child is not None
        self._child.tell(line)

    def lines(self, seconds: float) -> Iterator[str]:
        """Yields its output lines until it exits. Raises TimeoutError after `seconds`."""
        assert self._child is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = self._child.poll() is not None  # asked first: what it printed before is still read
            try:
                yield self._lines.get(timeout=0 if ended else POLL_SECONDS)
            except Empty:
                if ended:
                    return
        raise TimeoutError

    @property
    def exit_code(self) -> int:
        """Its exit code; 0 while it runs."""
        ended = self._child.poll() if self._child is not None else None
        return 0 if ended is None else ended.code

    def _suits(self, spec: ProcessSpec) -> bool:
        return True

    def _order(self, arguments: Sequence[str]) -> str:
        return arguments[0]
