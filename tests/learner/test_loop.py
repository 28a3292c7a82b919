"""The learner's loop against a real replay server."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import tomli_w
import torch

from benchmarks.common.settings import write_settings
from learner import __main__ as command
from learner import loop
from learner.algorithms.base import make_algorithm
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.computing import by_torch
from learner.config import LearnerConfig, LearnerSettings
from learner.devices.capabilities import Capabilities
from learner.feed.base import DeviceBatch, Feed
from learner.feed.open import open_feed
from learner.inference.module import Module
from learner.loop import Learner
from learner.parallel.base import ALONE, Group
from learner.throughput_line import describe
from learner.updates.base import Loss, Outcome, Transitions
from learner.weights import checkpoint
from learner.weights.checkpoint import CheckpointError, as_array
from learner.weights.follow import WeightFollower
from learner.weights.manifest import LOCK, MANIFEST
from replay.config import ReplayConfig, ReplayProcess
from replay.server.server import ReplayServer
from tests.harness.waiting import wait_until
from tests.replay.examples import make_spec, stream_chunks
from transport.experience import write_spec
from transport.lifetime import Lifetime, new_incarnation
from transport.messages.control import Answer, Order
from transport.metrics import Metrics
from transport.names import Named
from transport.run_dir import RunDir

SPEC = make_spec(length=8, stack=2, n_step=2)
CHUNKS = stream_chunks(SPEC, {9: "terminated", 20: "truncated"}, 60)
CONFIG = LearnerConfig(batch_size=8, updates_per_epoch=2, publish_epochs=1, checkpoint_epochs=3, device="cpu", engine="torch")
ALGORITHM = Named("dqn", DqnConfig(hidden=8, n_step=2))
FREE = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=0, samples_per_insert_high=1e9)


class Life(Lifetime):
    """A process that is asked to stop after a number of updates."""

    first_update = last_update = 0.0

    @property
    def stopping(self) -> bool:
        return super().stopping or self.metrics.value("updates") - self.first_update >= self.last_update


class Bench:
    """A run's folder, and a replay server that turns in a thread of its own. `engine`: the library that learns."""

    def __init__(self, path: Path, engine: Literal["numpy", "torch"] = "torch") -> None:
        self.engine = engine
        self.run_dir = RunDir(path / "mine")
        self.run_dir.create()
        self._lifetimes: list[Life] = []
        self._learners: list[Learner] = []
        address = self.run_dir.bind_address("replay")
        self.server = ReplayServer(SPEC, ReplayProcess(0, FREE), address, new_incarnation(), Metrics())
        for chunk in CHUNKS:
            self.server.ring.insert(chunk)
        self.run_dir.write_endpoint("replay", self.server.address)
        self.turns = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def _turn(self) -> None:
        while not self._over.is_set():
            self.server.turn(0.01)
            self.server.ring.insert(CHUNKS[0])  # the limiter counts what comes while a learner is there
            self.turns += 1

    @property
    def drawn(self) -> float:
        return self.server._metrics.value("sampled_items")

    def life(self, *_arguments: object, **_options: object) -> Life:
        self._lifetimes.append(Life("learner", self.run_dir, partial(describe, figures={})))
        return self._lifetimes[-1]

    def learner(self, updates: int, config: LearnerConfig = CONFIG) -> Learner:
        life = self.life()
        life.last_update = updates
        config = msgspec.structs.replace(config, engine=self.engine)
        learner = Learner(LearnerSettings(1, "toy", ALGORITHM.flat(), config), SPEC, self.run_dir, life)
        assert learner.runtime.library == self.engine
        life.first_update = life.metrics.value("updates")
        self._learners.append(learner)
        return learner

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for learner in self._learners:  # also those that a test has not run: their threads would print into other tests
            learner.publication.close()
        for life in self._lifetimes:
            life.close()
        self.server.close()
        self.run_dir.remove_sockets()


@pytest.fixture(params=["torch", "numpy"])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Any) -> Iterator[Bench]:
    # What a process sets for itself must not be set for the tests: threads, signal handlers, the allocator.
    monkeypatch.setattr("learner.devices.capabilities.set_up", lambda device, threads: None)
    monkeypatch.setattr("transport.system.keep_memory", lambda: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    made = Bench(tmp_path, engine)
    yield made
    made.close()
    for number, handler in before.items():
        signal.signal(number, handler)


def metadata(run_dir: RunDir) -> dict[str, str]:
    return checkpoint.read(run_dir.latest)[1]


def test_updates_make_epochs_epochs_make_versions_and_priorities_go_back(bench: Bench) -> None:
    learner = bench.learner(updates=14)
    before = [as_array(parameter).copy() for parameter in learner.runtime.first.parameters]
    assert learner.version == 0, "the untrained weights are the first to be published"
    learner.run()
    assert (learner.epoch, learner.version) == (7, 7)
    after = map(as_array, learner.runtime.first.parameters)
    assert any(not np.array_equal(old, new) for old, new in zip(before, after, strict=True))
    found = metadata(bench.run_dir)
    about = {"spec_digest": SPEC.digest, "spec": write_spec(SPEC).decode(), "env": "toy", "algorithm": "dqn"}
    assert found == {"policy_version": "7", "epoch": "7"} | about
    weights = checkpoint.read(bench.run_dir.latest)[0]
    for name, value in learner.update.modules["policy"].state_dict().items():
        assert np.array_equal(weights[name], as_array(value)), "the last weights are on disk"
    ring = bench.server.table.ring  # type: ignore[attr-defined]
    wait_until(lambda: bench.server._metrics.value("sampled_items") >= 14 * 8, what="the batches")
    priorities = ring._selector._tree.get(np.arange(ring.size))
    assert len(set(priorities.tolist())) > 2, "priorities have reached the table"


def test_the_learning_rate_follows_the_steps_that_replay_has_collected(bench: Bench) -> None:
    schedule = {"learning_rate_schedule": "linear", "schedule_steps": 1_000}
    bench.server._metrics.count("inserted_steps", 400)  # the table was filled without it
    learner = bench.learner(6, msgspec.structs.replace(CONFIG, **schedule))
    learner.run()
    assert learner.runtime.first.learning_rate == pytest.approx(0.6 * CONFIG.learning_rate)


class Counting:
    """A feed that says how many episodes have been collected when each batch arrives, and notes the updates of each epoch."""

    def __init__(self, feed: Feed, episodes: list[int]) -> None:
        self._feed, self._left, self.episodes, self._updates, self.epochs = feed, episodes, 0, 0, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def next(self, timeout_seconds: float) -> DeviceBatch | None:
        drawn = self._feed.next(timeout_seconds)
        if drawn is not None:
            self.episodes, self._updates = self._left.pop(0), self._updates + 1
        return drawn

    def end_epoch(self, version: int) -> None:
        self._feed.end_epoch(version)
        self.epochs.append(self._updates)
        self._updates = 0


@pytest.mark.parametrize(
    ("episodes", "epochs"),
    [
        ([5, 6, 8, 9, 10, 12], [3, 3]),
        ([5, 9, 9, 1, 3, 4], [2, 4]),  # replay restarted, which then counts anew
        ([5, 5, 5, 5, 5, 5, 5, 8], [6, 2]),  # episodes that do not end
    ],
)
def test_an_epoch_may_be_a_number_of_episodes(
    episodes: list[int], epochs: list[int], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds: list[Counting] = []

    def open_counting(*arguments: Any) -> Any:
        feeds.append(Counting(open_feed(*arguments), [*episodes, 0]))
        return feeds[0]

    monkeypatch.setattr(loop, "open_feed", open_counting)
    monkeypatch.setattr(loop, "MOST_UPDATES", 6)
    learner = bench.learner(len(episodes), msgspec.structs.replace(CONFIG, episodes_per_epoch=3))
    learner.run()
    assert feeds[0].epochs == epochs and learner.epoch == learner.version == 2


def test_while_a_batch_is_in_use_replay_fills_all_other_slots_and_leaves_this_one_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, done = bench.learner(updates=12), 0
    update = learner.update.update

    def updating(batch: Transitions) -> Outcome:
        nonlocal done
        before = {name: as_array(rows).copy() for name, rows in batch.observation.items()}
        given_back = done - done % 2  # of four slots two at a time
        filled, turns = CONFIG.batch_size * (given_back + 1 + CONFIG.prefetch), bench.turns
        wait_until(lambda: bench.drawn >= filled and bench.turns > turns + 3, what="the other slots")
        assert bench.drawn <= CONFIG.batch_size * (done + 1 + CONFIG.prefetch), "the slot in use stays reserved"
        assert all(np.array_equal(as_array(rows), before[name]) for name, rows in batch.observation.items())
        done += 1
        return update(batch)

    monkeypatch.setattr(learner.update, "update", updating)
    learner.run()
    assert done == 12


@pytest.mark.parametrize("engine", ["torch"])
def test_who_stacks_images_is_tried_at_the_start_with_the_batch_of_a_step_and_logged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[tuple[Any, ...]] = []

    def choose(modules: Any, *rest: Any) -> str:
        tried.append((list(modules), *rest))
        return "frame stacks: one line"

    monkeypatch.setattr("learner.networks.stacks.choose", choose)
    learner = bench.learner(updates=1)
    ((modules, spec, items, device, autocast),) = tried
    assert modules == list(learner.update.modules.values()) and (spec, items, device.type) == (SPEC, 8, "cpu")
    assert autocast == learner.runtime.first.autocast
    assert capsys.readouterr().out.count("frame stacks: one line\n") == 1
    monkeypatch.undo()


def test_version_0_can_be_fetched_before_there_is_any_experience(bench: Bench) -> None:
    learner = bench.learner(updates=0)
    network = q_network(SPEC, DqnConfig(hidden=8, n_step=2))  # as an actor has it
    announce, payload = (str(bench.run_dir.endpoint(role)) for role in ("weights", "payload"))
    follower = WeightFollower(announce, payload, Module(network))

    def arrived() -> bool:
        follower.poll()
        return follower.version == 0

    wait_until(arrived, what="version 0")
    for name, value in learner.update.modules["policy"].state_dict().items():
        assert np.array_equal(network.state_dict()[name].numpy(), as_array(value))
    follower.close()
    learner.run()  # ends at once, and in order
    assert not learner.publication._publisher._thread.is_alive()  # type: ignore[union-attr]


def test_a_resumed_learner_continues_above_every_version_that_was_announced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = bench.learner(updates=10)  # file at epoch 3 (version 3); then two more versions, and kill -9
    monkeypatch.setattr(first.checkpoints, "save", _until(first, 3))
    first.run()
    assert first.version == 5 and metadata(bench.run_dir)["policy_version"] == "3"
    second = bench.learner(updates=2)
    assert second.version == first.version + 1 and second.epoch == 3
    weights = checkpoint.read(bench.run_dir.checkpoints / "epoch-0000000003.safetensors")[0]
    assert second.update.modules.keys() == {"policy", "target"}
    for kind, network in second.update.modules.items():
        for name, value in network.state_dict().items():
            assert np.array_equal(weights[f"{kind}/{name}"], as_array(value)), "both networks take up what was learned"
    where = f"continues from epoch-0000000003.safetensors: epoch 3, 6 updates, policy v{second.version}"
    assert where in capsys.readouterr().out
    begun = second.version
    second.run()
    assert (second.epoch, second.version) == (4, begun + 1)


def test_a_learner_that_was_stopped_in_order_goes_on_with_the_next_version_and_counts_on(bench: Bench) -> None:
    first = bench.learner(updates=10)
    first.run()
    second = bench.learner(updates=4)
    assert (second.epoch, second.version, second.update.counters) == (5, first.version + 1, {"updates": 10})
    second.run()
    assert second.metrics.value("updates") == 14 and second.metrics.value("items") == 14 * 8


@pytest.mark.parametrize(("seconds", "written"), [(1e-9, [1, 2, 3, 4, 4]), (0.0, [4]), (60.0, [4])])
def test_long_epochs_do_not_put_a_checkpoint_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seconds: float, written: list[int]
) -> None:
    learner = bench.learner(updates=8, config=msgspec.structs.replace(CONFIG, checkpoint_epochs=1000, checkpoint_seconds=seconds))
    epochs, save = list[int](), learner.checkpoints.save

    def counted(epoch: int, version: int) -> bool:
        epochs.append(epoch)
        return save(epoch, version)

    monkeypatch.setattr(learner.checkpoints, "save", counted)
    learner.run()
    assert epochs == written, "the last one at the end"


class Steered(Life):
    """A process whose run is paused after `pause_at` updates, for some rests; an order comes in the second of them."""

    pause_at, rests, order_of_rest = 5.0, 0, Order("checkpoint", 7)
    longest = 4

    def beat(self, resting: bool = False) -> None:
        super().beat(resting)
        done = self.metrics.value("updates")
        self.paused = done >= self.pause_at and self.rests < self.longest

    def sleep(self, seconds: float, resting: bool = False) -> None:
        assert resting and self.metrics.value("updates") == self.pause_at, "no update in a pause"
        self.rests += 1
        self.order = self.order_of_rest if self.rests == 2 else None
        self.beat(resting)


@pytest.fixture
def steered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setitem(globals(), "Life", Steered)
    return bench


def test_a_paused_learner_rests_between_two_updates_reads_its_messages_and_goes_on_where_it_was(
    steered: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = steered.learner(updates=14, config=msgspec.structs.replace(CONFIG, keep_checkpoints=9))
    polled: list[int] = []

    def open_polled(*arguments: Any) -> Any:
        feed = open_feed(*arguments)
        poll = feed.poll
        monkeypatch.setattr(feed, "poll", lambda: polled.append(1) or poll())  # type: ignore[func-returns-value]
        return feed

    monkeypatch.setattr(loop, "open_feed", open_polled)
    learner.run()
    life = steered._lifetimes[-1]
    assert isinstance(life, Steered) and life.rests == 4 and len(polled) == 4
    assert (learner.epoch, learner.version) == (7, 7) and learner.metrics.value("updates") == 14
    name = "epoch-0000000002.safetensors"
    assert f"wrote {name}: epoch 2, policy v2, as ordered\n" in capsys.readouterr().out
    assert life._answer == Answer(7, True, f"wrote {name}: epoch 2, policy v2")
    saved = checkpoint.read(steered.run_dir.checkpoints / name)[1]
    assert '"updates": 5' in saved["counters"], "in the middle of an epoch"


def test_an_ordered_checkpoint_that_cannot_be_written_is_answered_with_the_reason(
    steered: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = steered.learner(updates=5)
    monkeypatch.setattr(learner.checkpoints._files, "write", no_space)
    life = steered._lifetimes[-1]
    life.last_update = 7
    learner.run()
    assert life._answer is not None and not life._answer.done and "No space left on device" in life._answer.text


def test_no_checkpoint_is_ordered_while_the_last_update_was_not_finite(steered: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = steered.learner(updates=5)
    monkeypatch.setattr(type(learner.rollback), "unsettled", True)
    life = steered._lifetimes[-1]
    life.last_update = 7
    learner.run()
    assert life._answer is not None and not life._answer.done and "not finite" in life._answer.text
    assert not (steered.run_dir.checkpoints / "epoch-0000000002.safetensors").exists()


def no_space(*given: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_run_that_starts_from_weights_plays_by_them_and_learns_from_them_from_the_start(bench: Bench, tmp_path: Path) -> None:
    bench.learner(updates=6).run()
    given = tmp_path / "given.safetensors"
    given.write_bytes(bench.run_dir.latest.read_bytes())
    for path in bench.run_dir.checkpoints.iterdir():
        path.unlink()
    learner = bench.learner(updates=2, config=msgspec.structs.replace(CONFIG, weights=str(given)))
    assert (learner.epoch, learner.version) == (0, 1), "by version 0 actors act at random"
    weights = checkpoint.read(given)[0]
    for network in learner.update.modules.values():  # values of a random target network would undo what was learned
        assert all(np.array_equal(weights[name], as_array(value)) for name, value in network.state_dict().items())
    learner.run()


@pytest.mark.parametrize(
    ("about", "begins"),
    [
        ({"spec": make_spec(length=16, stack=2, n_step=1)}, True),
        ({"spec": make_spec(length=16, stack=2, n_step=1), "algorithm": "pqn"}, False),
        ({"spec": make_spec(length=8, stack=3, n_step=2)}, False),
    ],
)
def test_a_run_may_start_from_weights_of_the_same_observations_and_actions_and_algorithm(
    bench: Bench, tmp_path: Path, about: dict[str, Any], begins: bool
) -> None:
    bench.learner(updates=2).run()
    weights, metadata = checkpoint.read(bench.run_dir.latest)
    changed = about | {"spec": write_spec(about["spec"]).decode(), "spec_digest": about["spec"].digest}
    checkpoint.write(tmp_path / "given", weights, metadata | changed)
    for path in bench.run_dir.checkpoints.iterdir():
        path.unlink()
    config = msgspec.structs.replace(CONFIG, weights=str(tmp_path / "given"))
    if begins:
        bench.learner(updates=2, config=config)
    else:
        with pytest.raises(CheckpointError, match="--learner.weights .*: made for toy, or with another algorithm"):
            bench.learner(updates=2, config=config)


def test_weights_without_a_full_checkpoint_are_no_reason_to_start_over(bench: Bench) -> None:
    bench.learner(updates=2).run()
    for path in bench.run_dir.checkpoints.glob("epoch-*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="--fresh"):
        bench.learner(updates=2)


def test_versions_go_on_rising_even_if_nothing_was_saved(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.learner(updates=6)
    monkeypatch.setattr(first.checkpoints, "save", lambda epoch, version: False)
    first.run()
    assert bench.learner(updates=2).version == first.version + 1


def _until(learner: Learner, last: int) -> Callable[[int, int], bool]:
    """A save that stops saving."""
    save = learner.checkpoints.save

    def saving(epoch: int, version: int) -> bool:
        return epoch <= last and save(epoch, version)

    return saving


def write_run(run_dir: RunDir, spec: Any) -> None:
    sections = {"algorithm": ALGORITHM.flat(), "learner": msgspec.to_builtins(CONFIG)}
    run_dir.config.write_text(tomli_w.dumps({"seed": 1, "env": {"id": "toy"}} | sections))
    run_dir.spec.write_bytes(write_spec(spec))
    write_settings(run_dir, {"seed": 1, "env": {"id": "toy"}} | sections)


@pytest.mark.parametrize("broken", ["other-spec", "truncated"])
def test_weights_that_do_not_fit_the_run_are_refused_in_one_line(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    bench.learner(updates=2).run()
    if broken == "truncated":
        (path,) = bench.run_dir.checkpoints.glob("epoch-*")
        path.write_bytes(path.read_bytes()[:-1])
    write_run(bench.run_dir, make_spec(length=16, stack=2, n_step=2) if broken == "other-spec" else SPEC)
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["learner", str(bench.run_dir.path)])
    monkeypatch.setattr(command, "Lifetime", bench.life)
    assert command.main() == 2
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("learner: ") and "--fresh" in said.splitlines()[-1]
    assert ("another experience spec" if broken == "other-spec" else "bytes where manifest.json says") in said
    assert said.count("\n") == (1 if broken == "other-spec" else 2), "each damaged file has its line"


def test_a_full_disk_is_said_aloud_and_training_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.learner(updates=2).run()
    before = bench.run_dir.latest.read_bytes()

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    learner = bench.learner(updates=14)
    first = learner.epoch
    assert not learner.run(), "the last checkpoint is missing"
    assert learner.epoch == first + 7
    said = [line for line in capsys.readouterr().out.splitlines() if "could not write" in line]
    assert said and "No space left on device" in said[0]
    assert bench.run_dir.latest.read_bytes() == before
    names = sorted(path.name for path in bench.run_dir.checkpoints.iterdir() if path.name not in (MANIFEST, LOCK))
    assert names == ["announced", "epoch-0000000001.safetensors", "latest.safetensors"], "nothing half-written is left"


def test_a_learner_is_started_again_on_a_full_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.learner(updates=2)
    first.announce()
    first.run()
    device = bench.run_dir.device.read_bytes()

    def full(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    again = bench.learner(updates=4)
    again.announce()
    again.run()
    assert again.epoch == first.epoch + 2 and bench.run_dir.device.read_bytes() == device


def test_a_learner_that_waits_for_experience_stops_when_asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = bench.learner(updates=1_000_000)
    monkeypatch.setattr(bench.server.table.ring, "can_sample", lambda: False)  # type: ignore[attr-defined]
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGTERM))
    timer.start()
    learner.run()
    timer.join()
    assert learner.epoch == 0


def test_a_learner_stops_with_another_process_of_its_group_and_saves(bench: Bench) -> None:
    learner = bench.learner(updates=1_000_000)

    class Others(Group):
        asked = 0

        def any(self, flag: bool) -> bool:
            self.asked += 1
            return flag or self.asked > 10  # once for replay's address, then for each batch, and twice for each epoch of two

    learner.group = learner.runtime.group = learner.rollback._group = Others()
    learner.run()
    assert learner.update.counters["updates"] == 5 and learner.group.asked == 11 and not learner._life.stopping
    assert metadata(bench.run_dir)["epoch"] == "2"


def test_the_throughput_line_before_and_after_the_first_update() -> None:
    assert describe({"policy_version": 0.0}, {}) == "waiting for experience · policy v0"
    figures = {"updates": 20.0, "epoch": 1.0, "updates_per_second": 10.04, "policy_version": 3.0, "data_wait_fraction": 0.5}
    line = describe(figures, {})
    assert line.startswith("epoch 1 · 10.0 updates/s") and "policy v3" in line and "data wait 50.0%" in line
    shown = describe(figures | {"td": 0.25, "low": 0.1}, {"td": "td {:.4g} to {low:.1f}", "kl": "kl {:.4f}"})
    assert "td 0.25 to 0.1" in shown and "kl" not in shown, "what the algorithm shows, where it is known"
    assert describe({"updates": 1.0, "compiling": 1.0}, {}) == "compiling the update · policy v0"
    assert "skipped" not in line and "skipped updates 2" in describe({"updates": 1.0, "skipped_updates": 2.0}, {})


def test_a_learner_says_how_much_it_will_save(bench: Bench) -> None:
    learner = bench.learner(updates=2)
    expected = learner.metrics.value("save_bytes")
    learner.run()
    saved = [checkpoint.read(file)[0] for file in bench.run_dir.checkpoints.glob("epoch-*.safetensors")]
    written = max(sum(value.nbytes for value in values.values() if value.dtype.kind == "f") for values in saved)
    assert written <= expected < 3 * written


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 1),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 1),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_no_memory_outside_an_update_is_one_line(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: RuntimeError, status: int | None
) -> None:
    def fails(*given: object) -> None:
        raise error

    monkeypatch.setattr(command, "Learner", fails)
    settings = LearnerSettings(1, "toy", ALGORITHM.flat(), CONFIG)
    if status is None:
        with pytest.raises(RuntimeError, match="mat1"):
            command._learn(settings, SPEC, bench.run_dir, bench.life(), 0, 1)
        return
    assert command._learn(settings, SPEC, bench.run_dir, bench.life(), 0, 1) == status
    told = capsys.readouterr().out
    assert told.count("\n") == 1 and "out of memory" in told and "--learner.batch-size" in told


@pytest.mark.parametrize("engine", ["torch"])
def test_the_last_checkpoint_is_written_although_the_last_updates_were_skipped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = bench.learner(updates=8)
    update: Any = learner.update
    sound, policy = update.loss, update.modules["policy"]
    weights: list[torch.Tensor] = []

    def loss(*arguments: Any) -> Loss:
        found: Loss = sound(*arguments)
        if learner.metrics.value("updates") < 6:
            return found
        weights[:] = weights or [parameter.detach().clone() for parameter in policy.parameters()]
        return found._replace(value=found.value * torch.tensor(float("nan")))

    monkeypatch.setattr(update, "loss", loss)
    learner.run()
    assert learner.metrics.value("skipped_updates") == 2 and weights
    found = bench.learner(updates=0)
    assert found.epoch == learner.epoch == 4
    restored = found.update.modules["policy"].parameters()
    assert all(torch.equal(before, after) for before, after in zip(weights, restored, strict=True))


def test_after_many_gradients_that_are_no_numbers_a_learner_goes_back_to_a_checkpoint_and_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = bench.learner(updates=40, config=msgspec.structs.replace(CONFIG, rollback_after=10))
    optimiser, done = learner.runtime.first, 0
    name = "_step" if bench.engine == "torch" else "step"
    step = getattr(optimiser, name)

    def stepping(*given: Any) -> Any:
        nonlocal done
        done += 1
        if 21 <= done <= 31:
            (optimiser.parameters[0].grad if bench.engine == "torch" else optimiser.gradient).reshape(-1)[0] = float("nan")
        return step(*given)

    monkeypatch.setattr(optimiser, name, stepping)
    learner.run()
    told = capsys.readouterr().out
    assert "10 updates in a row were not finite: goes back to epoch-0000000009.safetensors" in told
    assert learner.metrics.value("rollbacks") == 1 and (learner.epoch, learner.version) == (20, 20)
    assert learner.update.counters["updates"] < 40, "counters went back, too"
    weights = checkpoint.read(bench.run_dir.latest)[0]
    assert all(np.isfinite(value).all() for value in weights.values())


@pytest.mark.parametrize(
    ("options", "graphs", "size", "chosen"),
    [
        ({}, False, 8, "cpu"),
        ({}, True, 8, "xpu"),  # launched as one graph
        ({"graphs": "off"}, True, 8, "cpu"),
        ({}, False, 1_024, "xpu"),  # a large network
        ({"device": "xpu"}, False, 8, "xpu"),
        ({"compile": True}, False, 8, "xpu"),
    ],
)
def test_a_small_network_learns_on_the_cpu_where_an_accelerator_launches_kernels_one_by_one(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], graphs: bool, size: int, chosen: str
) -> None:
    monkeypatch.setattr(by_torch, "resolve_each", lambda name, processes: [torch.device("xpu")])
    monkeypatch.setattr(by_torch.devices, "capabilities", lambda device: Capabilities("a device", graphs=graphs))
    algorithm = make_algorithm(Named("dqn", DqnConfig(hidden=size, n_step=2)))
    config = msgspec.structs.replace(CONFIG, **{"device": "auto"} | options)
    assert by_torch.choose_device(config, algorithm, SPEC, ALONE).type == chosen
