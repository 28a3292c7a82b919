"""A learner of several processes, under torchrun's agent: all of them work, or all are ended."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import torch

from learner.devices.capabilities import DeviceError, capabilities, resolve
from learner.parallel.group import STORE_VARIABLE, process_name
from transport.lifetime import PARENT_VARIABLE, die_with_parent, say
from transport.run_dir import RunDir

BROKEN_STATUS = 3  # of a process that ended because another had
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def resolve_each(name: str, processes: int) -> list[torch.device]:
    """The device of each of so many processes: a GPU each, or the CPU for all. Raises DeviceError."""
    first = resolve(name)
    if processes == 1:
        return [first]
    if not capabilities(first).collectives:
        raise DeviceError(f"{first} serves one process only: leave out --learner.processes {processes}, or use cuda or cpu")
    if first.type == "cpu":
        return [first] * processes
    if ":" in name:
        raise DeviceError(f"{name} is one device for {processes} processes: say {first.type}, or leave out --learner.processes")
    count = getattr(torch, first.type).device_count()
    if count < processes:
        raise DeviceError(f"{processes} processes want a device each, but there are {count}: use --learner.processes {count}")
    return [torch.device(first.type, index) for index in range(processes)]


def launch(run_dir: RunDir, processes: int) -> int:
    """Starts `python -m learner` so many times and waits. The exit status: 0 after an orderly end, else of the first to fail.

    They die with this process, as it does with its supervisor. Nothing of it listens: they find each other through a file.
    """
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # until the agent takes signals
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    logging.disable()  # what torchrun tells of an end is told in one line here
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # a server for what the file does
    files = [run_dir.path / "endpoints" / f"{kind}-{os.getpid()}" for kind in ("ranks", "agent")]
    os.environ[STORE_VARIABLE] = str(files[0])
    try:
        return _run_agent(run_dir, processes, files[1])
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _run_agent(run_dir: RunDir, processes: int, store: Path) -> int:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint=str(store),
        rdzv_configs={"store_type": "file"},
        local_addr="localhost",
        max_restarts=0,  # that is the supervisor's business
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    try:
        path = ["-P"] if sys.flags.safe_path else []  # modules are looked for where this process found them
        elastic_launch(config, sys.executable)(*path, "-m", "learner", str(run_dir.path))
    except SignalException as asked:
        return 0 if asked.sigval in STOP_SIGNALS else 1
    except ChildFailedError as error:
        return _explain({rank: failure.exitcode for rank, failure in error.failures.items()})
    return 0


def _explain(ended: dict[int, int]) -> int:
    """The exit status for those of the processes, by rank; says what the processes cannot have said themselves."""
    rank, status = next(((rank, status) for rank, status in ended.items() if status != BROKEN_STATUS), (0, BROKEN_STATUS))
    if status == BROKEN_STATUS:
        say("learner: its processes have lost each other")
    elif status < 0:
        say(f"{process_name(rank)} was ended by {signal.Signals(-status).name}, and with it the others")
    return status if status > 0 else 1
