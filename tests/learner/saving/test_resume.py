"""A learner that was stopped goes on exactly as one that was not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from msgspec import structs

from learner.algorithms.base import join
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.pqn.config import PqnConfig
from learner.algorithms.r2d2.config import R2d2Config
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.saving import resume
from learner.serving.publish import announced
from learner.weights.checkpoint import CheckpointError, Checkpoints, read
from learner.weights.manifest import LOCK, MANIFEST, DamagedManifest, Entry, change, read_manifest
from tests.harness.waiting import outcome
from tests.learner.algorithms.sac import test_update as sac
from tests.learner.algorithms.sequences import batch_of, collect
from tests.learner.examples import algorithm_of, image, make_batch, make_spec, make_update, vector
from transport.experience import Categorical, Continuous, ExperienceSpec
from transport.run_dir import RunDir

SPEC = make_spec(image(shape=(8, 8)), vector(), stack=2, n_step=2)
ALGORITHM = DqnConfig(hidden=8, n_step=2, target_update_interval=3, network="nature_batchnorm")
LEARNER = LearnerConfig(batch_size=8, accumulation=2)


class Training:
    """An update; the batches come from torch's generator, so that its state must be restored, too."""

    def __init__(self, learner: LearnerConfig = LEARNER, algorithm: DqnConfig = ALGORITHM) -> None:
        self.algorithm = make_update(SPEC, algorithm, learner)
        self.optimiser = self.algorithm.optimiser
        self.runtime = self.optimiser.process

    def update(self, times: int) -> list[torch.Tensor]:
        return [self.algorithm.update(make_batch(SPEC, 8))[1] for _ in range(times)]

    def gather(self) -> resume.Contents:
        return resume.gather(self.algorithm, self.runtime, {"updates": 5.0}, {"epoch": "1"})


class Case(NamedTuple):
    config: Any
    learner: LearnerConfig = LEARNER
    spec: ExperienceSpec = SPEC


STATISTICS: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True}
VECTOR = ExperienceSpec((vector(),), Categorical(3), 8)
REALS = ExperienceSpec((vector(),), Continuous((-1.0, -2.0), (1.0, 2.0)), 8)
ROLLED = VECTOR, REALS
RECURRENT: dict[str, Any] = {"hidden": 8, "memory_width": 6}
CASES = {
    "dqn": Case(ALGORITHM),
    "dqn, bfloat16": Case(ALGORITHM, LearnerConfig(batch_size=8, accumulation=2, precision="bfloat16")),
    "dqn, averaged": Case(structs.replace(ALGORITHM, average_updates=3)),
    "dqn, statistics": Case(
        DqnConfig(hidden=8, n_step=2, target_update_interval=7, **STATISTICS), spec=make_spec(vector(), n_step=2)
    ),
    "sac": Case(SacConfig(hidden=8), spec=sac.make_spec(hindsight=4)),
    "sac, statistics": Case(SacConfig(hidden=8, **STATISTICS), spec=sac.make_spec(hindsight=4)),
    "pqn": Case(PqnConfig(hidden=8), spec=VECTOR),
    "reppo": Case(ReppoConfig(hidden=8, n_epochs=2), spec=REALS),
    "ppo": Case(PpoConfig(hidden=8, n_epochs=2, **STATISTICS), spec=VECTOR),
    "ppo, lstm": Case(PpoConfig(memory="lstm", n_epochs=2, minibatches=2, **RECURRENT), spec=VECTOR),
    "r2d2, lstm": Case(R2d2Config(target_update_interval=3, **RECURRENT), spec=VECTOR),
    "r2d2, gru": Case(R2d2Config(memory="gru", dueling=False, **RECURRENT), spec=VECTOR),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_half_the_updates_a_save_a_load_and_the_other_half_are_all_of_them_bit_for_bit(tmp_path: Path, case: Case) -> None:
    algorithm = algorithm_of(case.config)
    spec = join(case.spec, algorithm.needs(case.spec)) if case.spec in ROLLED else case.spec

    def begin(seed: int) -> Any:
        torch.manual_seed(seed)
        return make_update(spec, case.config, case.learner)

    straight = begin(3)
    rollout = batch_of(spec, collect(straight)[0], harsh=False) if case.spec in ROLLED else None

    def train(update: Any) -> list[Any]:
        drawn = sac.make_batch if isinstance(case.config, SacConfig) else make_batch
        return [update.update(rollout or drawn(spec, 8)).priorities for _ in range(4)]

    train(straight)
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.write(1, *resume.gather(straight, straight.optimiser.process, {"updates": 5.0}, {"epoch": "1"}))
    expected = train(straight)
    resumed = begin(99)
    train(resumed)  # whatever was there is replaced
    found = checkpoints.newest(pytest.fail)
    assert found is not None
    assert resume.restore(resumed, resumed.optimiser.process, found[1], found[2]) == {"updates": 5.0}
    for before, after in zip(expected, train(resumed), strict=True):
        assert before is after is None or torch.equal(before, after)
    assert resumed.counters == straight.counters
    first, second = (resume.gather(update, update.optimiser.process, {}, {})[0] for update in (straight, resumed))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_checkpoint_before_the_first_update_can_be_resumed_from(tmp_path: Path) -> None:
    first, second = Training(), Training()
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.write(0, *first.gather())
    _, weights, metadata = checkpoints.newest(pytest.fail) or pytest.fail("nothing written")
    resume.restore(second.algorithm, second.runtime, weights, metadata)
    second.update(1)
    assert second.algorithm.counters["updates"] == 1


def test_a_checkpoint_from_before_weights_were_averaged_can_be_resumed_from(tmp_path: Path) -> None:
    first, second = Training(), Training(algorithm=structs.replace(ALGORITHM, average_updates=3))
    first.update(4)
    Checkpoints(tmp_path, keep=1).write(1, *first.gather())
    _, weights, metadata = Checkpoints(tmp_path, keep=1).newest(pytest.fail) or pytest.fail("nothing written")
    resume.restore(second.algorithm, second.runtime, weights, metadata)
    trained, modules = first.algorithm.policy.state_dict(), second.algorithm.modules
    for name in ("policy", "online"):
        assert all(torch.equal(value, trained[key]) for key, value in modules[name].state_dict().items())


def test_the_learning_rate_is_the_one_configured_now(tmp_path: Path) -> None:
    first = Training()
    first.update(2)
    Checkpoints(tmp_path, keep=1).write(1, *first.gather())
    second = Training(LearnerConfig(batch_size=8, learning_rate=0.5))
    _, weights, metadata = Checkpoints(tmp_path, keep=1).newest(pytest.fail) or pytest.fail("nothing written")
    resume.restore(second.algorithm, second.runtime, weights, metadata)
    assert [group["lr"] for group in second.optimiser.adam.param_groups] == [0.5]


def test_a_schedule_goes_on_with_the_steps_of_the_checkpoint_and_one_of_an_older_version_begins_it(tmp_path: Path) -> None:
    first, second = Training(), Training()
    first.runtime.follow_schedule([700, 300])
    tensors, metadata = first.gather()
    Checkpoints(tmp_path, keep=1).write(1, tensors, metadata)
    _, weights, metadata = Checkpoints(tmp_path, keep=1).newest(pytest.fail) or pytest.fail("nothing written")
    resume.restore(second.algorithm, second.runtime, weights, metadata)
    second.runtime.follow_schedule([750, 300])
    assert second.runtime.collected.steps == 1_050
    del metadata["collected"]
    resume.restore(second.algorithm, second.runtime, weights, metadata)
    assert second.runtime.collected.steps == 0


def test_only_so_many_are_kept_and_leftovers_of_a_killed_writer_go(tmp_path: Path) -> None:
    (tmp_path / ".epoch-0000000001.safetensors.999999999.partial").write_bytes(b"half")
    at_work = tmp_path / f".best.safetensors.{os.getppid()}.partial"
    at_work.write_bytes(b"half")
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert os.listdir(tmp_path) == [at_work.name], "a living process may be writing"
    at_work.unlink()
    for epoch in (9, 10, 11):
        checkpoints.write(epoch, {"x": np.zeros(1, np.float32)}, {})
    names = ["epoch-0000000010.safetensors", "epoch-0000000011.safetensors"]
    assert sorted(os.listdir(tmp_path)) == [LOCK, *names, MANIFEST]
    assert sorted(read_manifest(tmp_path) or {}) == names, "what is deleted leaves the manifest"


def test_a_damaged_newest_falls_back_with_one_line_each_and_never_to_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    assert checkpoints.newest(pytest.fail) is None
    for epoch in (1, 2, 3):
        checkpoints.write(epoch, {"x": np.full(9, epoch, np.float32)}, {"epoch": str(epoch)})
    newest, middle, oldest = checkpoints.paths()
    newest.write_bytes(newest.read_bytes()[:-3])
    data = bytearray(middle.read_bytes())
    data[data.index(b'"epoch":"2"') + 9] = ord("7")  # even the metadata is under the checksum
    middle.write_bytes(data)
    lines: list[str] = []
    path, _, metadata = checkpoints.newest(lines.append) or pytest.fail("nothing found")
    assert path == oldest and metadata["epoch"] == "1"
    assert len(lines) == 2 and all("\n" not in line for line in lines)
    oldest.write_bytes(b"")
    with pytest.raises(CheckpointError, match="--fresh"):
        checkpoints.newest(lines.append)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_checkpoint_of_a_later_epoch_does_not_count_as_one_that_is_kept(tmp_path: Path, keep: int) -> None:
    for epoch in (10, 20):
        Checkpoints(tmp_path, keep=2).write(epoch, {"x": np.zeros(9, np.float32)}, {})
    (tmp_path / "epoch-0000000020.safetensors").write_bytes(b"")
    checkpoints = Checkpoints(tmp_path, keep)
    for epoch in (12, 13, 14):  # a run that was resumed from epoch 10, and stopped soon
        checkpoints.write(epoch, {"x": np.zeros(9, np.float32)}, {})
    sound = [path.name for path in checkpoints.paths() if path.stat().st_size]
    assert sound == ["epoch-0000000014.safetensors", "epoch-0000000013.safetensors"][:keep]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_no_file_of_a_run_is_waited_for_where_it_is_a_pipe(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    checkpoints = Checkpoints(run.checkpoints, keep=3)
    sound, pipe = checkpoints.write(1, {"x": np.zeros(3, np.float32)}, {}), run.checkpoints / "epoch-0000000002.safetensors"
    os.mkfifo(pipe)
    os.mkfifo(run.announced)
    assert isinstance(outcome(lambda: read(pipe)), CheckpointError) and outcome(lambda: announced(run)) == -1
    lines: list[str] = []
    for listed in (False, True):
        if listed:
            change(run.checkpoints, {pipe.name: Entry("0" * 64, 0, 1)})
        found = outcome(lambda: checkpoints.newest(lines.append))
        assert isinstance(found, tuple) and found[0] == sound and "not a file" in lines[-1]
    (run.checkpoints / MANIFEST).unlink()
    os.mkfifo(run.checkpoints / MANIFEST)
    assert isinstance(outcome(lambda: read_manifest(run.checkpoints)), DamagedManifest)


def test_a_checkpoint_of_another_network_or_algorithm_is_refused(tmp_path: Path) -> None:
    first = Training()
    first.update(1)
    tensors, metadata = first.gather()
    Checkpoints(tmp_path, keep=1).write(1, tensors, metadata)
    weights, metadata = read(Checkpoints(tmp_path, keep=1).paths()[0])
    other = Training(algorithm=DqnConfig(hidden=9, n_step=2, network="nature_batchnorm"))
    with pytest.raises(CheckpointError, match="another network"):
        resume.restore(other.algorithm, other.runtime, weights, metadata)
    with pytest.raises(CheckpointError, match="another algorithm"):
        resume.restore(first.algorithm, first.runtime, weights, {"epoch": "1"})


def test_the_loss_scale_of_float16_is_kept() -> None:
    config = LearnerConfig(batch_size=8)
    first, second = Training(config), Training(config)
    for training in (first, second):
        training.optimiser.scaler = torch.amp.GradScaler("cpu")
    assert first.optimiser.scaler is not None and second.optimiser.scaler is not None
    first.optimiser.scaler.load_state_dict(first.optimiser.scaler.state_dict() | {"scale": 128.0, "_growth_tracker": 7})
    state = {name: torch.from_numpy(value.numpy().copy()) for name, value in first.optimiser.state().items()}
    second.optimiser.load_state(state)
    after = second.optimiser.scaler.state_dict()
    assert (after["scale"], after["_growth_tracker"]) == (128.0, 7)
