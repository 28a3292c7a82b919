"""Disk work in a thread of its own, so that the thread that owns the table does not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from transport.text import say


class Background:
    """Runs tasks in order in one thread. A task must not use the table."""

    def __init__(self) -> None:
        self.failed = ""  # why the last task failed; empty if it did not
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self._thread.start()

    @property
    def behind(self) -> bool:
        """Whether tasks wait."""
        return not self._tasks.empty()

    def submit(self, task: Callable[[], object]) -> None:
        self._tasks.put(task)

    def close(self) -> None:
        """Returns when all tasks are done."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            self.failed = ""
            try:
                task()
            except OSError as error:
                self.failed = str(error)
            except Exception as error:  # in a state of a user's selector, for example; the tasks after it must not wait for ever
                self.failed = f"{type(error).__name__}: {error}"
            if self.failed:
                say(f"replay could not write to the disk ({self.failed})")
