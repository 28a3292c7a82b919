"""`python -m tests.flow.dying_replay RUN_DIR HOW CHUNKS`: replay, killed at the worst moment after so many chunks."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from replay import __main__ as replay
from replay.log.segment_log import SegmentLog


def die() -> None:
    """As kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    how, left = sys.argv[2], int(sys.argv[3])
    del sys.argv[2:]  # the rest is replay's own
    append, write = SegmentLog.append, SegmentLog._write

    def dying_append(log: SegmentLog, *arguments: Any) -> None:
        nonlocal left
        left -= 1
        append(log, *arguments)
        if left <= 0 and how == "between_log_and_table":
            die()

    def dying_write(log: SegmentLog, record: bytes) -> None:
        if left <= 0 and how == "inside_a_record":
            write(log, record[: len(record) // 2])
            die()
        write(log, record)

    SegmentLog.append = dying_append  # type: ignore[assignment,method-assign]
    SegmentLog._write = dying_write  # type: ignore[assignment,method-assign]
    return replay.main()


if __name__ == "__main__":
    sys.exit(main())
