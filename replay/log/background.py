"""What may wait for the disk, out of the way of the thread that owns the table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from transport.lifetime import say


class Background:
    """Runs tasks one after the other, in order, in a thread of its own. A task must not touch the table."""

    def __init__(self) -> None:
        """Starts the thread."""
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self._thread.start()

    @property
    def behind(self) -> bool:
        """Whether tasks are waiting to be begun."""
        return not self._tasks.empty()

    def submit(self, task: Callable[[], object]) -> None:
        """Queues a task."""
        self._tasks.put(task)

    def close(self) -> None:
        """Returns when all tasks are done."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except OSError as error:
                say(f"replay could not finish its work on the disk ({error}); training goes on")
