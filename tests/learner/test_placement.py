"""The CPU instead of an accelerator, by the time of updates on both; the accelerator is a stand-in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from learner import placement
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import DqnUpdate
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.feed.batches import dummy_batch, to_batch
from learner.loop import Learner
from learner.parallel.group import ALONE, Group
from learner.placement import CPU, choose_device, update_seconds
from learner.settings import LearnerSettings
from learner.updates.acceleration import WARM_STEPS
from learner.updates.runtime import NoProcess
from learner.updates.trial import TRIED_STEPS
from tests.learner.algorithms.sac.test_update import make_spec as make_goal_spec
from tests.learner.examples import figures, image, make_spec, make_update, vector
from tests.learner.test_loop import ALGORITHM, CONFIG, SPEC, Bench
from tests.learner.test_loop import bench as bench  # noqa: PLC0414  # a fixture
from tests.transport.columns import scalars
from transport.experience import Categorical, Continuous, ExperienceSpec
from transport.names import Named

CARD = torch.device("meta")  # nothing can be computed there
ROLLOUTS = ExperienceSpec((vector(),), Categorical(3), 8, 1, 1, unit="rollouts", extras=scalars(LOG_PROB))
AUTO = LearnerConfig(batch_size=16, device="auto")


@pytest.fixture(autouse=True)
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learner.devices.capabilities.set_up", lambda device, threads: None)
    monkeypatch.setattr(placement, "resolve_each", lambda name, processes: [torch.device("cpu" if name == "cpu" else CARD)])


def settings(learner: LearnerConfig = AUTO, spec: ExperienceSpec | None = None, **options: Any) -> LearnerSettings:
    algorithm = Named("dqn", msgspec.convert({"hidden": 16, "n_step": 2} | options, DqnConfig))
    return LearnerSettings(1, "toy", algorithm, learner, spec or make_spec(vector(), n_step=2), 1)


def timed(monkeypatch: pytest.MonkeyPatch, there: float, here: float) -> list[torch.device]:
    """Updates take these seconds; what is returned lists the devices that were asked."""
    asked: list[torch.device] = []

    def seconds(given: LearnerSettings, device: torch.device, life: Any) -> float:
        asked.append(device)
        return here if device.type == "cpu" else there

    monkeypatch.setattr(placement, "update_seconds", seconds)
    return asked


@pytest.mark.parametrize(("here", "chosen"), [(0.3e-3, CPU), (0.9e-3, CARD), (5e-3, CARD)])
def test_auto_means_the_cpu_where_updates_are_clearly_faster_there_and_says_so(
    here: float, chosen: torch.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = timed(monkeypatch, 1e-3, here)
    assert choose_device(settings(), ALONE, NoProcess()) == chosen and asked == [CARD, CPU]
    line = "the CPU learns, because an update takes 0.3 ms there and 1 ms on meta; --device meta takes the other\n"
    assert capsys.readouterr().out == (line if chosen == CPU else "")


def test_a_device_that_was_asked_for_is_taken_without_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, 1.0, 1e-6)
    for name, device in (("cuda", CARD), ("cpu", CPU)):
        assert choose_device(settings(msgspec.structs.replace(AUTO, device=name)), ALONE, NoProcess()) == device
    assert asked == []


def test_large_networks_those_of_images_and_several_processes_keep_the_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Two(Group):
        size = 2

    asked = timed(monkeypatch, 1.0, 1e-6)
    pixels = settings(spec=make_spec(image(shape=(36, 36)), n=4, stack=2, n_step=2), network="nature")
    for given, group in ((settings(hidden=1024), ALONE), (pixels, ALONE), (settings(), Two())):
        assert choose_device(given, group, NoProcess()) == CARD
    assert asked == []


def test_where_updates_cannot_be_tried_the_accelerator_is_kept() -> None:
    assert choose_device(settings(), ALONE, NoProcess()) == CARD, "an update there raises"


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        (DqnConfig(hidden=16, n_step=3), make_spec(image(shape=(12, 12)), vector(), stack=2, n_step=3)),
        (PpoConfig(hidden=16, n_epochs=2, minibatches=2), ROLLOUTS),
        (PpoConfig(hidden=16, n_epochs=2), msgspec.structs.replace(ROLLOUTS, action=Continuous((-1.0,), (1.0,)))),
        (SacConfig(hidden=16), make_goal_spec()),
    ],
)
def test_every_algorithm_learns_from_a_made_up_batch(config: Any, spec: ExperienceSpec) -> None:
    update = make_update(spec, config, LearnerConfig(batch_size=16))
    items = LearnerConfig(batch_size=16).batch_items(spec)
    batch = to_batch({name: torch.from_numpy(array) for name, array in dummy_batch(spec, items).items()}, spec, CPU)
    outcome = update.update(batch)
    known = {name: value for name, value in outcome.metrics.items() if name != "explained_variance"}  # all returns are alike
    assert all(bool(value.isfinite()) for value in known.values()) and figures(update)["skipped_updates"] == 0


def test_only_updates_are_timed_for_which_kernels_and_graphs_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 0.0, "updates": 0}
    learn = DqnUpdate.update

    def slow(self: DqnUpdate, batch: Any) -> Any:
        clock["updates"] += 1
        clock["now"] += 10e-3 if clock["updates"] <= WARM_STEPS + 2 * TRIED_STEPS else 1e-3
        return learn(self, batch)

    monkeypatch.setattr(DqnUpdate, "update", slow)
    monkeypatch.setattr(placement.time, "perf_counter", lambda: clock["now"])
    assert update_seconds(settings(), CPU, NoProcess()) == pytest.approx(1e-3)
    monkeypatch.setattr(placement, "BUDGET_SECONDS", 0.0)
    clock["updates"] = 0
    assert update_seconds(settings(), CPU, NoProcess()) == pytest.approx(10e-3) and clock["updates"] == 2


def test_a_learner_trains_where_it_was_placed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, 1.0, 1e-6)
    life = bench.life()
    life.last_update = 2
    given = LearnerSettings(1, "toy", ALGORITHM, msgspec.structs.replace(CONFIG, device="auto"), SPEC, 1)
    learner = Learner(given, bench.run_dir, life)
    assert learner.device == CPU
    learner.run()
    assert learner.update.counters["updates"] == 2
