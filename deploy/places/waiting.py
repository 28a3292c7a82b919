"""A learner process that is started before its run exists, and waits for it.

It imports torch, which takes seconds, while `headrace up` tries the environment; it answers what only a process with torch can
answer (learner/probe.py); then it is the run's first learner. Its replacements are started like every other process.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

from deploy.children import THREAD_VARIABLES, child_environment, python_command
from deploy.places.child import LOG_LINE_BYTES, Child
from deploy.places.reaper import MARK_VARIABLE
from deploy.process_spec import ProcessSpec
from learner.config import LearnerConfig
from transport.lifetime import PARENT_VARIABLE

ANSWER_BYTES = 16 << 20  # a longer line of an answer is cut
POLL_SECONDS = 0.1  # between two looks whether the process has ended; a line is seen at once


class WaitingLearner:
    """Ends with this process in any case: its standard input ends, and the kernel kills it (transport/lifetime.py)."""

    def __init__(self, learner: LearnerConfig) -> None:
        """Starts it. Raises OSError."""
        self.run_mark = secrets.token_hex(8)
        self.mark = f"{self.run_mark}:0"
        self._lock = threading.Lock()
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._on_line: Callable[[str, str], None] | None = None
        marks = {PARENT_VARIABLE: str(os.getpid()), MARK_VARIABLE: self.mark}
        # The learner sets torch's own number of threads by itself, once its settings are there.
        threads = dict.fromkeys(THREAD_VARIABLES, str(learner.threads or 1))
        command = python_command("learner", "--wait", learner.device, learner.precision, str(learner.processes))
        environment = child_environment(**marks, **threads)
        self._child: Child | None = Child(
            "learner", command, environment, self._take, asked=True, longest_line_bytes=ANSWER_BYTES
        )

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

    def begin(self, spec: ProcessSpec, on_line: Callable[[str, str], None]) -> Child | None:
        """Makes it the process of `spec`, whose first argument is the run's folder; the caller ends it. Where several processes
        are wanted it ends here, and None is returned."""
        if self._child is None or spec.processes > 1:  # several processes inherit their threads from the environment
            self.close()
            return None
        child, self._child = self._child, None
        child.longest_line_bytes = LOG_LINE_BYTES
        with self._lock:
            while not self._lines.empty():
                on_line(spec.name, self._lines.get())
            self._on_line = on_line
        child.tell(spec.arguments[0], last=True)
        return child

    def close(self) -> None:
        """Ends it, unless it has begun its run."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _take(self, name: str, line: str) -> None:
        with self._lock:
            if self._on_line is None:
                self._lines.put(line)
            else:
                self._on_line(name, line)
