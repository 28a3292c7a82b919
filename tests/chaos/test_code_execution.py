"""What would run if anything unpickled it, sent to every port and written into every file that is loaded: nothing runs."""

from __future__ import annotations

import os
import pickle
import pickletools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from deploy import runs
from deploy.config.layers import load_run_config
from deploy.errors import ConfigError
from learner.inference.module import Module
from learner.serving.publish import WeightPublisher
from learner.weights import checkpoint
from learner.weights.checkpoint import CheckpointError, Checkpoints
from learner.weights.follow import WeightFollower
from replay.log.segments import LogRefused, scan
from replay.log.state import DamagedState, read_state
from tests.chaos.raw import Raw
from tests.chaos.rows import Row
from tests.chaos.siege import SPEC, Siege
from tests.harness.waiting import wait_until
from transport.experience import SpecError, read_spec
from transport.messages.codec import pack
from transport.messages.weights import Weights
from transport.run_dir import RunDir
from transport.sockets.channel import FRAME_BYTES
from transport.sockets.server import Server

pytestmark = pytest.mark.chaos


class Payload:
    """Whoever unpickles this makes a folder."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._canary),)


def payloads(canary: Path) -> list[bytes]:
    """In every protocol of pickle, and in the clothes that other loaders know."""
    found = [pickle.dumps(Payload(canary), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    found.append(pickletools.optimize(found[-1]))
    with suppress(Exception):
        path = canary.with_suffix(".pt")
        torch.save({"weights": Payload(canary)}, path)
        found.append(path.read_bytes())
    path = canary.with_suffix(".npy")
    np.save(path, np.array([Payload(canary)], dtype=object), allow_pickle=True)
    found.append(path.read_bytes())
    found.append(f"!!python/object/apply:os.mkdir ['{canary}']".encode())
    found.append(f"__import__('os').mkdir('{canary}')".encode())
    return found


def loaders(folder: Path) -> list[Callable[[bytes], object]]:
    """Every loader of a file, and of what comes in a message."""

    def written(name: str, load: Callable[[Path], object]) -> Callable[[bytes], object]:
        def loads(content: bytes) -> object:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            return load(path)

        return loads

    run = RunDir(folder)
    run.create()
    return [
        written("state.npz", lambda path: read_state(path, SPEC.chunk_length)),
        written("log/0000000000000000.segment", lambda path: scan(path.parent, SPEC)),
        written("checkpoints/epoch-0000000001.safetensors", lambda path: Checkpoints(path.parent, 3).newest(lambda line: None)),
        written("latest.safetensors", checkpoint.read),
        written("config.toml", lambda path: load_run_config(run)),
        written("spec.json", lambda path: read_spec(path.read_bytes())),
        written("endpoints/replay.json", lambda path: run.endpoint("replay")),
        written("status.json", lambda path: runs.read_status(run)),
        checkpoint.unpack,
        read_spec,
    ]


REFUSALS = (DamagedState, LogRefused, CheckpointError, ConfigError, SpecError)


@pytest.mark.row("S1", "pickles for every port and every file loader", "the canary file absent, the process alive")
def test_nothing_that_arrives_or_lies_on_the_disk_is_run(row: Row, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    hostile = payloads(canary)
    pickle.loads(hostile[0])
    assert canary.exists(), "the payload does what it says"
    canary.rmdir()
    loaded = 0
    for load in loaders(tmp_path / "run"):
        for payload in hostile:
            with suppress(*REFUSALS):
                load(payload)
            loaded += 1
    sent = 0
    publisher = WeightPublisher(f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/p", 1)
    publisher.publish(nn.Linear(3, 2), 0)
    control = Server(f"ipc://{tmp_path}/c")
    with Siege(tmp_path / "siege") as siege:
        honest = siege.honest(200)
        for address in (siege.address, *publisher.addresses, control.address):
            for payload in hostile:
                for parts in ([payload], [pack(Weights(1, 1, "x")), payload], [b"", payload]):
                    raw = Raw(address, b"SUB" if address == publisher.addresses[0] else b"DEALER")
                    raw.send(*parts)
                    raw.close()
                    sent += 1
                while control.receive(0.01):
                    pass
        follower = WeightFollower(*publisher.addresses, Module(nn.Linear(3, 2)))
        wait_until(lambda: follower.poll() or follower.version == 0, what="weights are served still")
        served = honest.rate(1)
        honest.leave()
        record = siege.stop()
        lost, doubled = siege.stored()
    follower.close()
    publisher.close()
    control.close()
    row.measured(payloads=len(hostile), loads=loaded, sent=sent, canary=canary.exists(), malformed=int(record["malformed"]))
    row.measured(rate_after=served, lost=lost, doubled=doubled)
    assert not canary.exists() and served > 0 and record["malformed"] > 0 and control.malformed > 0
    assert lost == doubled == 0


def test_a_learner_with_pickles_for_weights_is_not_followed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    announcer, server = f"ipc://{tmp_path}/a", Server(f"ipc://{tmp_path}/p")
    follower = WeightFollower(announcer, server.address, Module(nn.Linear(3, 2)))
    follower.poll()
    arrival = server.receive(30)
    assert arrival is not None
    hostile = payloads(canary)
    for payload in hostile:
        server.send(arrival[0], Weights(1, 1, "x"), [payload])
    server.send(arrival[0], Weights(1, 1, "x"), [bytes(FRAME_BYTES)] * 20)
    wait_until(lambda: (follower.poll(), follower.rejected == len(hostile) + 1)[1], what="all are rejected")
    assert follower.version == -1 and not canary.exists()
    follower.close()
    server.close()
