"""R24, S18: numbers that are none, or that outweigh all others, stop at the first gate, wherever they come from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import msgspec
import numpy as np
import pytest
import tomli_w
import torch

from actors.config import EnvConfig
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from benchmarks.common.settings import write_settings
from deploy.cli import main as cli
from deploy.config.files import write_config
from deploy.config.run import RunConfig
from learner import __main__ as command
from learner.algorithms.base import ActionBatch
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.config import LearnerConfig, LearnerSettings
from learner.feed.base import DeviceBatch
from learner.feed.batches import to_chunks
from learner.loop import Learner
from learner.parallel.base import STORE_VARIABLE
from learner.saving.rollback import Diverged
from learner.updates.base import Chunks, Outcome, Transitions
from learner.weights.checkpoint import Checkpoints, read
from replay.config import ReplayConfig
from replay.log.provenance import actors
from replay.table.layout import PRIORITY
from tests.chaos import breaking_learner
from tests.chaos.rows import Row
from tests.harness.link import Link
from tests.harness.waiting import ROOT, wait_until
from tests.learner.rollouts import play, to_arrays
from tests.learner.test_loop import CONFIG, SPEC, Bench, write_run
from tests.replay.examples import every_item, make_spec, stream_chunks
from tests.transport.columns import scalars
from transport.experience import Categorical, Chunk, Columns, ExperienceSpec, observed, write_spec
from transport.lifetime import HOPELESS_STATUS
from transport.names import Named

pytestmark = pytest.mark.chaos
FREE = ReplayConfig(min_size=1, capacity=100_000, samples_per_insert_low=0, samples_per_insert_high=1e9)
BAD = (np.nan, np.inf, -np.inf)
SENDING = make_spec(length=8, stack=2, n_step=2, extras=scalars(PRIORITY))


class Faulty(gymnasium.Env):
    """One step in a hundred gives something that is no number, now as observation, now as reward."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.injected = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        seen, reward = np.full(3, 0.5, np.float32), 1.0
        if self.np_random.random() < 0.01:
            self.injected += 1
            bad = BAD[self.injected % 3]
            if self.injected % 2:
                seen[1] = bad
            else:
                reward = bad
        return seen, reward, self.steps % 50 == 0, False, {}


@pytest.mark.row("R24", "a simulator gives NaN and infinity, 1% of its steps", "0 reach a batch; counted at the first gate")
def test_what_a_simulator_breaks_never_leaves_its_actor(row: Row) -> None:
    envs: list[Faulty] = []

    def make(config: EnvConfig, **how: object) -> Faulty:
        envs.append(Faulty())
        return envs[-1]

    config = EnvConfig(id="faulty")
    spec = experience_spec(Faulty(), config, "none")
    env = VectorEnv(config, spec, 4, range(4), make=make)  # type: ignore[arg-type]
    env.reset()
    steps = row.times(2_000, 50_000)
    for _ in range(steps):
        step = env.step(np.zeros(4, np.int64))
        ended = step.terminated | step.truncated
        rows = [*step.observation.values(), *(value[ended] for value in step.final_observation.values()), step.reward]
        assert all(np.isfinite(value).all() for value in rows)
    injected = sum(one.injected for one in envs)
    row.measured(steps=4 * steps, injected=injected, cut=env.broken, reached=0)
    assert injected == env.broken > 0


def spoil(chunk: Chunk, name: str, bad: float) -> Chunk:
    """The chunk with one number of a column replaced, in a row that holds an action."""
    columns = {column: rows.copy() for column, rows in chunk.columns.items()}
    rows = np.flatnonzero(columns["valid"])
    columns[name][rows[len(rows) // 2]] = bad
    return Chunk(chunk.stream, chunk.length, columns)


@pytest.mark.row("R24", "an actor sends NaN and infinity, 1% of its chunks; a learner as priorities", "0 reach a batch; counted")
def test_what_an_actor_sends_that_is_no_number_reaches_no_batch(row: Row, tmp_path: Path) -> None:
    chunks = stream_chunks(SENDING, {9: "terminated", 20: "truncated"}, 400)
    sent, injected, unknown, drawn, not_finite, priorities = row.times(400, 10_000), 0, 0, 0, 0, 0
    generator = np.random.default_rng(0)
    with Link(tmp_path, SENDING, FREE) as link:
        server, sampler = link.serve(), link.sampler(batch_size=32)
        writers = [link.writer(f"actor-{index}") for index in range(10)]  # each with fewer bad chunks than put it in quarantine
        for number in range(sent):
            writer = writers[number % 10]
            chunk, bad = chunks[number % (len(chunks) - 1)], BAD[number % 3]
            if generator.random() < 0.01 or number in (50, 60, 70):
                if number % 4 == 0:
                    chunk, unknown = spoil(chunk, PRIORITY, bad), unknown + 1  # counts as unknown: the chunk is good
                else:
                    chunk, injected = spoil(chunk, "position" if number % 2 else "reward", bad), injected + 1
            link.until(lambda writer=writer: writer.has_credit, *writers)  # type: ignore[misc]
            writer.insert(chunk)
            batch = sampler.next(0)
            if batch is not None:
                drawn += len(batch.arrays["key"])
                reach = np.arange(SENDING.n_step) < batch.arrays["steps"][:, None]
                finite = [np.isfinite(batch.arrays[name]).all() for name in ("observation/position", "probability")]
                not_finite += not (all(finite) and np.isfinite(batch.arrays["reward"][reach]).all())
                told = np.ones(32, np.float32)
                told[0] = bad
                priorities += 1
                sampler.answer(batch, told)
        link.until(lambda: not any(writer.outstanding for writer in writers), *writers)
        value = link.metrics.value
        link.until(lambda: value("unfit_priorities") >= priorities - 1)
        server.ring.check_invariants()
        whole = every_item(server.ring)
        row.measured(
            chunks=sent, injected=injected, rejected=int(value("rejected")), unfit_priorities=int(value("unfit_priorities"))
        )
        row.measured(drawn=drawn, batches_with_a_bad_number=not_finite, initial_priorities_unknown=unknown)
        assert value("rejected") == injected > 0 and unknown and drawn and not not_finite
        assert np.isfinite(whole["observation/position"]).all()
        assert np.isfinite(server.ring.state().selector.values).all()


AFTER = 10  # updates skipped in a row


def learner(bench: Bench, updates: int, bad: Callable[[int], bool]) -> Learner:
    """One whose gradient is no number at the updates (counted from 1) that are `bad`."""
    life = bench.life()
    life.last_update = updates
    config = msgspec.structs.replace(CONFIG, rollback_after=AFTER)
    made = Learner(LearnerSettings(1, "toy", {"name": "dqn", "hidden": 8, "n_step": 2}, config), SPEC, bench.run_dir, life)
    optimiser = made.runtime.first
    step, done = optimiser._step, 0

    def stepping() -> torch.Tensor:
        nonlocal done
        done += 1
        if bad(done):
            gradient = optimiser.parameters[0].grad
            assert gradient is not None
            gradient.view(-1)[0] = BAD[done % 3]
        return step()

    optimiser._step = stepping  # type: ignore[method-assign]
    return made


def finite(bench: Bench) -> bool:
    found = Checkpoints(bench.run_dir.checkpoints, 3).newest(pytest.fail)
    return found is not None and all(np.isfinite(value).all() for value in found[1].values() if value.dtype.kind == "f")


@pytest.mark.row("R24", "gradients are no numbers, now and then", "step skipped and counted, weights finite, no rollback")
def test_single_bad_gradients_are_skipped_and_counted(row: Row, bench: Bench) -> None:
    updates = row.times(0, 2_000, 5_000)
    made = learner(bench, updates, lambda update: update % 20 == 7)
    made.run()
    value = made.metrics.value
    skipped = int(made.metrics.value("skipped_updates"))
    row.measured(updates=updates, injected=updates // 20, skipped=skipped, rollbacks=int(value("rollbacks")))
    assert skipped == updates // 20 and not value("rollbacks") and finite(bench)


@pytest.mark.row("R24", "gradients are no numbers for long", "after N skipped in a row back to the newest sound checkpoint")
def test_after_so_many_bad_gradients_the_learner_goes_back_and_on(
    row: Row, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    made = learner(bench, 80, lambda update: 31 <= update <= 31 + AFTER)
    made.run()
    out = capsys.readouterr().out
    backs = [line for line in out.splitlines() if "goes back to" in line]
    versions = int(read(bench.run_dir.latest)[1]["policy_version"])
    row.measured(rollbacks=len(backs), said=backs[0] if backs else "nothing", version=versions, epoch=made.epoch)
    assert len(backs) == 1 == made.metrics.value("rollbacks")
    assert "goes back to epoch-0000000015.safetensors" in backs[0], "the newest that was written before the trouble"
    assert made.epoch == 40 and versions == 40, "both grow on"
    assert made.update.counters["updates"] < 80 and finite(bench)


@pytest.mark.row("R24", "gradients are no numbers any more", "after three times back it ends with a line that names the cause")
def test_trouble_without_end_ends_the_learner(
    row: Row, bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = learner(bench, 10_000, lambda update: update > 30)
    with pytest.raises(Diverged) as ended:
        made.run()
    backs = [line for line in capsys.readouterr().out.splitlines() if "goes back to" in line]
    row.measured(str(ended.value), rollbacks=len(backs))
    assert [line.split("goes back to ")[1].split(".")[0] for line in backs] == [f"epoch-{n:010d}" for n in (15, 12, 9)]
    assert "learner.learning_rate" in str(ended.value) and "\n" not in str(ended.value) and finite(bench)

    class Ended:
        def __init__(self, *arguments: object) -> None:
            raise ended.value

    monkeypatch.setattr(command, "Learner", Ended)
    settings = LearnerSettings(1, "toy", {"name": "dqn"}, LearnerConfig(device="cpu"))
    assert command._learn(settings, SPEC, bench.run_dir, bench.life(), 0, 1) == HOPELESS_STATUS, "no use in starting it again"


@pytest.mark.row(
    "R24", "gradients are no numbers for long, in PPO", "after N skipped in a row back to the newest sound checkpoint"
)
def test_ppo_goes_back_like_the_others(row: Row, bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    row.times(0, 1)
    spec = ExperienceSpec((observed("position", (3,), "<f4"),), Categorical(3), 8, 1, 1, extras=scalars(LOG_PROB))
    config = msgspec.structs.replace(CONFIG, rollback_after=AFTER, checkpoint_epochs=1)
    life, algorithm = bench.life(), Named("ppo", PpoConfig(hidden=8, n_epochs=3, minibatches=2))
    life.last_update = 1_000
    made = Learner(LearnerSettings(1, "toy", algorithm.flat(), config), spec, bench.run_dir, life)
    update: Any = made.update

    def act(stacked: Columns) -> ActionBatch:
        return ActionBatch(np.zeros(2, np.int64), {LOG_PROB: np.full(2, -1.1, np.float32)}, {})

    rollout = to_chunks(to_arrays(spec, play(spec, act, 2, 20, 1)[0]), spec, torch.device("cpu"))
    prepare = update.prepare

    def breaking(batch: Chunks, corrected: bool) -> tuple[Any, ...]:
        items, *others = prepare(batch, corrected)
        factor = np.nan if made.epoch in (2, 3) else 1.0
        return items._replace(advantage=items.advantage * factor), *others

    update.prepare = breaking
    feed: Any = Mock(updates_per_epoch=1, episodes=0, steps=(0,))  # the same rollouts for ever
    feed.next.return_value = DeviceBatch(rollout, 0.0, 0)
    for _ in range(6):  # epochs of six updates each; from the third on for two epochs without a step
        made.train_epoch(feed)
    backs = [line for line in capsys.readouterr().out.splitlines() if "goes back to" in line]
    row.measured(backs[0] if backs else "nothing", rollbacks=len(backs))
    assert len(backs) == 1 and "12 updates in a row" in backs[0] and "epoch-0000000002.safetensors" in backs[0]
    assert [path.stem[-1] for path in Checkpoints(bench.run_dir.checkpoints, 3).paths()] == ["6", "5", "2", "1"]
    assert finite(bench)
    made.publication.close()


@pytest.mark.row("R24", "gradients of one of two learner processes are no numbers", "both go back, to the same, and on")
def test_all_processes_of_a_learner_go_back_together(row: Row, bench: Bench, tmp_path: Path) -> None:
    row.times(0, 1)
    write_run(bench.run_dir, SPEC)
    document = tomllib.loads(bench.run_dir.config.read_text())
    document["learner"] |= {"rollback_after": AFTER, "processes": 2}
    bench.run_dir.config.write_text(tomli_w.dumps(document))
    write_settings(bench.run_dir, document)
    command = [sys.executable, "-m", breaking_learner.__name__, str(bench.run_dir.path), "31", str(30 + AFTER)]
    shared = os.environ | {
        STORE_VARIABLE: str(tmp_path / "store"),
        "WORLD_SIZE": "2",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    log = (tmp_path / "log").open("wb")
    ranks = [subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stdout=log, stderr=log) for rank in range(2)]

    def read_log() -> str:
        return (tmp_path / "log").read_text()

    def learned() -> bool:
        assert all(rank.poll() is None for rank in ranks), read_log()
        return any(int(path.stem[6:]) > 40 for path in bench.run_dir.checkpoints.glob("epoch-*"))

    try:
        wait_until(learned, 120, "both go on")
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        wait_until(lambda: all(rank.poll() is not None for rank in ranks), what="both end")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        log.close()
    backs = [line for line in read_log().splitlines() if "goes back to" in line]
    row.measured(backs[0] if backs else read_log()[-500:], rollbacks=len(backs), statuses=[rank.returncode for rank in ranks])
    assert len(backs) == 1 and "epoch-0000000015" in backs[0] and [rank.returncode for rank in ranks] == [0, 0]
    assert finite(bench)


@pytest.mark.row("R24", "the weights themselves are no numbers", "not published, not saved; back to the newest sound checkpoint")
def test_weights_that_are_no_numbers_are_neither_published_nor_saved(
    row: Row, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    made = learner(bench, 60, lambda update: False)
    update, broken = made.update.update, list[bool]()

    def breaking(batch: Transitions) -> Outcome:
        outcome = update(batch)
        if made.metrics.value("updates") == 31 and not broken:
            broken.append(True)
            next(made.update.modules["policy"].parameters()).data.view(-1)[0] = float("nan")
        return outcome

    made.update.update = breaking  # type: ignore[method-assign]
    made.run()
    out = capsys.readouterr().out
    value = made.metrics.value
    row.measured(rollbacks=int(value("rollbacks")), refused=int(made.metrics.value("refused_weights")))
    assert value("rollbacks") >= 1 and "not published" in out and finite(bench)
    weights, about = read(bench.run_dir.latest)
    assert int(about["epoch"]) == made.epoch and all(np.isfinite(weight).all() for weight in weights.values())


@pytest.mark.row(
    "S18", "an actor with a valid key sends rewards out of range", "rejected and counted; purge removes all of its items"
)
def test_rewards_out_of_range_are_rejected_and_an_actor_can_be_purged(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = stream_chunks(SENDING, {9: "terminated"}, 200)
    wild, run = (1e9 * 1.01, -3e38, 1e30), tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "spec.json").write_bytes(write_spec(SENDING))
    (run / "config.toml").write_bytes(write_config(RunConfig()))
    with Link(tmp_path, SENDING, FREE) as link:
        server = link.serve(folder=run / "replay")
        good, poisoner = link.writer("actor-0"), link.writer("actor-1")
        for number, chunk in enumerate(chunks[:-1]):
            link.until(lambda: good.has_credit and poisoner.has_credit, good, poisoner)
            good.insert(chunk)
            poisoner.insert(spoil(chunk, "reward", wild[number % 3]) if number % 2 else chunk)
        link.until(lambda: not good.outstanding and not poisoner.outstanding, good, poisoner)
        rejected, most = int(link.metrics.value("rejected")), float(np.abs(every_item(server.ring)["reward"]).max())
        sent = len(chunks) // 2
        keys = every_item(server.ring)["key"]
        server.close()
        link.server = None
    stored = actors(run / "replay", SENDING)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()

    def origin(key: int) -> dict[str, Any]:
        assert cli.main(["trace", "mine", str(key), "--json"]) == 0
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    whose = {key: origin(key)["actor"] for key in keys[::16].tolist()}
    assert cli.main(["purge", "mine", "actor-9"]) == 2 and "did you mean" in capsys.readouterr().err
    assert cli.main(["purge", "mine", "actor-1"]) == 0
    with Link(tmp_path, SENDING, FREE) as link:
        server = link.serve(folder=run / "replay")
        server.ring.check_invariants()
        left = set(every_item(server.ring)["key"].tolist())
    row.measured(sent_out_of_range=sent, rejected=rejected, greatest_reward_stored=most, purged=stored["actor-1"], left=len(left))
    assert rejected == sent and most < 1e9
    assert actors(run / "replay", SENDING) == {"actor-0": stored["actor-0"]}
    assert set(whose.values()) == {"actor-0", "actor-1"}
    assert all((key in left) == (actor == "actor-0") for key, actor in whose.items())
