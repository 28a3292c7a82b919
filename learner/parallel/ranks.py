"""Starts the learner processes under torchrun's agent: when one of them fails, all are ended."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import torch

from learner.devices.capabilities import DeviceError, capabilities
from learner.devices.detection import resolve
from learner.parallel.base import STORE_VARIABLE, process_name
from learner.parallel.peers import BROKEN_STATUS
from transport.files.writing import tidy
from transport.lifetime import PARENT_VARIABLE, die_with_parent, signal_name
from transport.run_dir import RunDir
from transport.text import say

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def resolve_each(name: str, processes: int) -> list[torch.device]:
    """The device of each process: one GPU each, or the CPU for all. Raises DeviceError."""
    first = resolve(name)
    if processes == 1:
        return [first]
    if not capabilities(first).collectives:
        raise DeviceError(
            f"{first} supports only one learner process: leave out --learner.processes {processes}, or use cuda or cpu"
        )
    if first.type == "cpu":
        return [first] * processes
    if ":" in name:
        raise DeviceError(
            f"{name} is one device, but there are {processes} processes: use {first.type}, or leave out --learner.processes"
        )
    count = getattr(torch, first.type).device_count()
    if count < processes:
        raise DeviceError(
            f"{processes} processes need {processes} devices, but there are {count}: use --learner.processes {count}"
        )
    return [resolve(f"{first.type}:{index}") for index in range(processes)]


def launch(run_dir: RunDir, processes: int) -> int:
    """Starts the processes (`python -m learner`) and waits for them. Returns 0, or the exit status of the first that failed.

    The processes die with this one, as this one dies with its supervisor. They find each other through a file, so that no port
    is opened.
    """
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # until the agent installs its own handler
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    logging.disable()  # of torchrun: explain() reports an end in one line
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # opens a port; the file replaces it
    files = [run_dir.path / "endpoints" / f"{kind}-{os.getpid()}" for kind in ("ranks", "agent")]
    os.environ[STORE_VARIABLE] = str(files[0])
    try:
        return _run_agent(run_dir, processes, files[1])
    finally:
        for file in files:
            tidy(file)


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
        max_restarts=0,  # the supervisor restarts
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    try:
        path = ["-P"] if sys.flags.safe_path else []  # import modules from where this process did
        elastic_launch(config, sys.executable)(*path, "-m", "learner", str(run_dir.path))
    except SignalException as stop:
        return 0 if stop.sigval in STOP_SIGNALS else 1
    except ChildFailedError as error:
        return explain({rank: failure.exitcode for rank, failure in error.failures.items()})
    return 0


def explain(failed: dict[int, int]) -> int:
    """The exit status of the group, given those of the processes by rank; logs what they could not log themselves."""
    rank, status = next(((rank, status) for rank, status in failed.items() if status != BROKEN_STATUS), (0, BROKEN_STATUS))
    if status == BROKEN_STATUS:
        say("learner: its processes have lost the connection to each other")
    elif status < 0:
        say(f"{process_name(rank)} was killed by {signal_name(-status)}, so the other learner processes were ended too")
    return status if status > 0 else 1
