"""kill -9 of the learner, again and again: nothing starts over, and a damaged checkpoint is passed over."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tomli_w

from actors.config import ActorsConfig, EnvConfig
from benchmarks.common.settings import write_settings
from learner.config import LearnerConfig
from learner.weights.checkpoint import OLDER_KEPT
from replay.client.writer import ExperienceWriter
from replay.config import ReplayConfig
from tests.harness.fleet import Fleet
from tests.harness.waiting import wait_until
from transport.experience import Chunk
from transport.lifetime import new_incarnation
from transport.sockets.client import Listener


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    env = EnvConfig(id="tests.flow.counting_env:vector", chunk_length=16)
    replay = ReplayConfig(min_size=1, samples_per_insert_low=0.0, samples_per_insert_high=1e9, capacity=400_000)
    made = Fleet(tmp_path / "run", env, ActorsConfig(count=2, envs_per_actor=2, chunk_seconds=0.05), replay, 3)
    yield made
    made.close()


@contextmanager
def feeding(fleet: Fleet) -> Iterator[Callable[[], None]]:
    """An actor without an environment; call what is given to let it send."""
    spec = fleet.spec
    columns = {column.name: np.zeros((spec.rows(16), *column.shape), column.dtype) for column in spec.columns}
    columns["valid"][:] = 1
    writer = ExperienceWriter(str(fleet.run_dir.endpoint("replay")), "feeder", new_incarnation(), spec, 1)

    def send() -> None:
        writer.poll()
        if writer.has_credit:
            writer.insert(Chunk(0, 16, columns))

    yield send
    writer.close()


def kill_learners(fleet: Fleet, send: Callable[[], None]) -> list[int]:
    """Three incarnations of the learner that are killed and one that ends in order; one finds its newest checkpoint damaged.

    Returns the epoch that each reached.
    """
    checkpoints = fleet.run_dir.checkpoints
    announced: list[int] = []  # the highest version of each life
    epochs: list[int] = []
    for life in range(4):
        (fleet.run_dir.path / "endpoints" / "weights.json").unlink(missing_ok=True)
        before = set(checkpoints.glob("epoch-*"))
        fleet.start("learner", "learner", str(fleet.run_dir.path))
        wait_until(lambda: fleet.run_dir.endpoint("weights") is not None, 60, "the learner")
        listener = Listener(str(fleet.run_dir.endpoint("weights")))
        heard: list[int] = []

        def learned(heard: list[int] = heard, listener: Listener = listener, before: set[Path] = before) -> bool:
            send()
            announce = listener.newest()
            if announce is not None:
                heard.append(announce.version)
            return len(set(checkpoints.glob("epoch-*")) - before) > 1 and len(heard) > 3

        wait_until(learned, 60, "checkpoints")
        if life < 3:
            fleet.kill("learner")
        else:
            assert fleet.stop("learner") == 0, fleet.log("learner")
        listener.close()
        assert heard == sorted(heard) and heard[0] > max(announced, default=-1), "a version came again"
        announced.append(heard[-1])
        newest = sorted(checkpoints.glob("epoch-*.safetensors"))[-1]
        epochs.append(int(newest.stem.partition("-")[2]))
        if life == 1:
            newest.write_bytes(newest.read_bytes()[:-1])
    return epochs


@pytest.mark.flow
@pytest.mark.slow  # test_faults.py kills a learner, too
def test_a_learner_killed_goes_on_from_its_newest_sound_checkpoint(fleet: Fleet) -> None:
    assert fleet.publisher is not None
    fleet.publisher.close()  # the real learner takes its place
    document = tomllib.loads(fleet.run_dir.config.read_text())
    document["learner"] |= {"batch_size": 8, "updates_per_epoch": 5, "publish_epochs": 1, "checkpoint_epochs": 2}
    fleet.run_dir.config.write_text(tomli_w.dumps(document))
    write_settings(fleet.run_dir, document)
    fleet.start_replay()
    wait_until(lambda: fleet.run_dir.endpoint("replay") is not None, what="replay bound")
    with feeding(fleet) as send:
        epochs = kill_learners(fleet, send)
    assert epochs == sorted(set(epochs))
    newest = LearnerConfig().keep_checkpoints
    assert newest < len(list(fleet.run_dir.checkpoints.glob("epoch-*"))) <= newest + OLDER_KEPT
    log = fleet.log("learner")
    assert log.count("continues from epoch-") == 3 and log.count("trying the checkpoint before it") == 1, log
    records = [msgspec.json.decode(line) for line in fleet.run_dir.metrics("learner").read_bytes().splitlines()]
    later = [record for record in records if record["policy_version"] > 0]  # the first life may have waited for its first batch
    assert later and all(record["updates"] > 0 for record in later)
