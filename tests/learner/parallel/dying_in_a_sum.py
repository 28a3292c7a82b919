"""Two processes under the launcher: rank 1 kills itself inside a sum, in which rank 0 waits. `python -m` this, with a folder.

`gloo` notices the death. `stuck`: rank 0 waits as for a device's sum, where its handlers of signals do not run and nothing
wakes it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from learner.parallel import group as grouping
from learner.parallel import peers, ranks
from learner.parallel.base import GroupBroken, rank_and_size
from learner.parallel.group import join
from tests.learner.examples import CPU
from tests.learner.parallel.learning_together import Beating
from transport.run_dir import RunDir

MODULE = "tests.learner.parallel.dying_in_a_sum"


def launch(folder: Path, how: str) -> int:
    """Starts this module where the launcher would start a learner."""
    from torch.distributed.launcher import api

    launcher: Any = api.elastic_launch
    api.elastic_launch = lambda config, program: lambda *_: launcher(config, program)("-m", MODULE, str(folder), how)  # type: ignore[misc,assignment]
    return ranks.launch(RunDir(folder), 2)


def learn(folder: Path, how: str) -> NoReturn:
    """One rank: sums until rank 1 dies. Rank 0 leaves the status with which it ends itself in the file `ended`."""
    leave = os._exit

    def exit_(status: int) -> NoReturn:
        (folder / "ended").write_text(str(status))
        leave(status)

    peers.os = type("os", (), {"_exit": staticmethod(exit_)})  # type: ignore[assignment,attr-defined]
    peers.LOSS_SECONDS = 1.0 if how == "stuck" else 1e6
    group = join(CPU, Beating(folder))
    group.total(1)
    if group.rank == 1:
        while not (folder / "waiting").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # as a learner's: the launcher sends it as soon as rank 1 is dead
    if how == "stuck":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        (folder / "waiting").touch()
        threading.Event().wait()
    (folder / "waiting").touch()
    try:
        group.total(1)
    except GroupBroken:
        exit_(peers.BROKEN_STATUS)
    exit_(0)


def main(name: str, how: str) -> int:
    folder = Path(name)
    if grouping.STORE_VARIABLE in os.environ and rank_and_size()[1] == 2:
        learn(folder, how)
    return launch(folder, how)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
