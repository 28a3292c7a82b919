"""One process of a run, as it is started."""

from __future__ import annotations

from dataclasses import dataclass

from actors.trust import FLAG

MOST_DOUBLINGS = 10  # of a delay; more would in the end exceed a float


def restart_seconds(failures: float, longest: float) -> float:
    """The delay before what has failed is started again: none after the first failure, then 1, 2, 4 … seconds."""
    return 0.0 if failures < 2 else min(2.0 ** min(int(failures) - 2, MOST_DOUBLINGS), longest)


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a run: `python -m MODULE ARGUMENTS`, started once a process of each role in `needs` has been ready.

    `python` is its interpreter, where that is not the supervisor's. The run fails without a `vital` process, and without any
    process of a role that is not `dispensable`. A vital process saves what it holds when the run stops. Where the run has reached
    its planned end, a process with `finishing_seconds` is asked to stop after the learner, and may work that long before it ends.
    """

    name: str
    role: str
    module: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()  # roles
    vital: bool = False
    dispensable: bool = False
    finishing_seconds: float = 0.0
    threads: int = 1
    processes: int = 1  # more than one: the process starts these to do its work
    python: str = ""


def actor(folder: str, index: int, threads: int, python: str = "") -> ProcessSpec:
    """One actor of a run, here or on a host."""
    return ProcessSpec(f"actor-{index}", "actor", "actors", (folder, "--actor", str(index), FLAG), threads=threads, python=python)


def inference(folder: str, name: str) -> ProcessSpec:
    """The process of a machine that acts for its actors."""
    return ProcessSpec(name, "inference", "learner.serving.inference", (folder, name))


def relay(folder: str, name: str) -> ProcessSpec:
    """The process of a host that fetches the weights for its actors."""
    return ProcessSpec(name, "relay", "learner.serving.relay", (folder, name))


SERVERS = {"relay": relay, "inference": inference}  # by role, the processes that serve the actors of a host
