"""The common part of the updates from rollouts: PPO, PQN and REPPO on rollouts that the actors' own chunker cut."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic.rollouts import Rollout, shuffled, take
from learner.algorithms.base import join
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.pqn.config import PqnConfig
from learner.algorithms.reppo.config import ReppoConfig
from learner.config import LearnerConfig
from learner.feed.batches import to_chunks
from learner.networks.stacks import stack_rows
from learner.parallel.base import ALONE
from learner.updates.base import Chunks
from tests.learner.acting import Acting
from tests.learner.examples import CPU, LEARNER, algorithm_of, image, make_update, vector
from tests.learner.parallel.learning_together import fixed_noise
from tests.learner.rollouts import rolled
from transport.experience import Categorical, Column, Continuous, ExperienceSpec, observed

QUANTISED = observed("angle", (3,), "|u1", 0.02, -2.5)
FIELDS: dict[str, tuple[tuple[Column, ...], int]] = {
    "stacked vectors": ((vector(), QUANTISED), 3),
    "image": ((image(shape=(12, 12)),), 4),
    "image and vector": ((image(shape=(2, 13, 11)), vector()), 2),
}
KINDS: dict[str, type] = {"ppo": PpoConfig, "pqn": PqnConfig, "reppo": ReppoConfig}
REALS = Continuous((-1.0,), (1.0,))
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not depend on how a rollout is divided."""
    monkeypatch.setattr(torch, "randn_like", fixed_noise)


def made(kind: str, fields: str = "stacked vectors", learner: LearnerConfig = LEARNER, **options: Any) -> Any:
    torch.manual_seed(1)
    columns, stack = FIELDS[fields]
    real = {"network": "nature" if "image" in fields else "mlp", "temperature": 0.1} if kind == "reppo" else {}
    config = msgspec.convert({"hidden": 16, "gamma": 0.9} | real | options, KINDS[kind])
    env = ExperienceSpec(columns, REALS if real else Categorical(3), 8, stack)
    return make_update(join(env, algorithm_of(config).needs(env)), config, learner)


def prepared(update: Any, batch: Chunks) -> Any:
    """The items, and the rows that they refer to."""
    return update.prepare(batch, *([False] if isinstance(update.config, PpoConfig) else []))[:2]


@every_kind
@pytest.mark.parametrize("fields", FIELDS)
def test_items_are_what_was_acted_on_stack_for_stack(kind: str, fields: str) -> None:
    update = made(kind, fields)
    rollout, chunks, seen = rolled(update)
    items, rows = prepared(update, rollout)
    stacked, step, item = stack_rows(rows, items.observation_index), defaultdict[int, int](int), 0
    for chunk in chunks:
        for row in range(update.spec.history, update.spec.history + chunk.length):
            if chunk.columns["valid"][row]:
                for name, values in stacked.items():
                    assert np.array_equal(values[item].numpy(), seen[step[chunk.stream]][name][chunk.stream])
                action = chunk.columns["action"][row]
                assert items.action[item].numpy() == pytest.approx(np.tanh(action) if kind == "reppo" else action)
                step[chunk.stream] += 1
                item += 1
    assert item == len(items.action) == 3 * 37, "each step is an item once"


def test_rewards_are_clipped_before_they_are_scaled() -> None:
    update = made("pqn", clip_rewards=True, reward_scale=0.5)
    batch, _, _ = rolled(update)
    rollout, here = Rollout(batch, update.spec, update.config), slice(update.spec.history, -1)
    reward = batch.reward[:, here][rollout.item]
    assert float(reward.abs().max()) > 1 and torch.equal(rollout.reward[rollout.item], 0.5 * reward.clamp(-1, 1))


@every_kind
def test_a_large_rollout_is_valued_in_portions(kind: str) -> None:
    update = made(kind, "image")
    rollout, _, _ = rolled(update)
    prepared(update, rollout)  # a first scale
    whole, _ = prepared(update, rollout)
    update.portion = 7
    sizes: list[int] = []
    update.policy.body.inputs.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0]["image"])))
    parts, _ = prepared(update, rollout)
    assert max(sizes) == 7 and len(sizes) > 10
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)


@every_kind
def test_accumulated_steps_equal_those_of_whole_minibatches_also_where_these_do_not_divide(kind: str) -> None:
    found, rtol = [], 1e-4 if kind == "ppo" else 1e-3
    for parts in (1, 4):
        config = LearnerConfig(accumulation=parts, adam_epsilon=1e-3)  # not near 0, where Adam enlarges rounding
        update = made(kind, "image and vector", config, minibatches=3, n_epochs=2)
        rollout, _, _ = rolled(update)
        torch.manual_seed(4)
        found.append((update.update(rollout).metrics, [parameter.detach() for parameter in update.policy.parameters()]))
    (metrics, whole), (parted_metrics, parted) = found
    for one, other in zip(whole, parted, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol / 100)
    for name in metrics:
        torch.testing.assert_close(metrics[name], parted_metrics[name], rtol=rtol, atol=rtol / 10)


@every_kind
def test_statistics_move_when_a_rollout_is_finished_and_by_each_item_once(kind: str) -> None:
    update = made(kind, n_epochs=2)
    rollout, chunks, _ = rolled(update)
    normaliser = update.policy.body.inputs.normaliser
    assert normaliser is not None and float(normaliser.count) == 0
    update.update(rollout)
    rows = np.concatenate([c.columns["vector"][2 : 2 + c.length][c.columns["valid"][2 : 2 + c.length] != 0] for c in chunks])
    assert float(normaliser.count) == len(rows) == 3 * 37
    np.testing.assert_allclose(normaliser.mean[:4], rows.mean(0), rtol=1e-4)
    np.testing.assert_allclose(normaliser.variance[:4], rows.var(0), rtol=1e-4)


def test_a_pass_is_all_items_once_in_parts_of_nearly_one_size_in_another_order_each_time() -> None:
    items = {"number": torch.arange(111.0), "row": torch.arange(222).reshape(111, 2)}
    torch.manual_seed(0)
    passes = []
    for _ in range(2):
        parts = [take(items, which) for which in next(shuffled(111, [1], 4, ALONE, CPU))]
        assert [len(part["number"]) for part in parts] == [28, 28, 28, 27]
        assert all(torch.equal(part["row"][:, 0], 2 * part["number"].long()) for part in parts)
        passes.append(torch.cat([part["number"] for part in parts]))
        assert torch.equal(passes[-1].sort().values, items["number"])
    assert not torch.equal(*passes)
    assert [len(which) for which in next(shuffled(3, [1], 4, ALONE, CPU))] == [1, 1, 1]


@pytest.mark.parametrize("items", [4_096, 4_095, 4_070, 4_000, 300, 130])
def test_where_shapes_cost_minibatches_have_one_size(items: int) -> None:
    found = next(shuffled(items, [1], 4, ALONE, CPU, few_shapes=True))
    sizes = {len(which) for which in found}
    assert len(found) == 4 and len(sizes) == 1 and sizes.pop() * 4 > items * (1 - 1 / 16) - 4
    assert len(torch.cat(found).unique()) == sum(map(len, found))


def test_rollouts_of_nearly_the_same_size_have_minibatches_of_few_sizes() -> None:
    sizes = {len(next(shuffled(items, [1], 4, ALONE, CPU, few_shapes=True))[0]) for items in range(3_900, 4_097)}
    assert len(sizes) <= 5


@every_kind
def test_a_run_that_stops_ends_the_passes_and_takes_in_no_statistics(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    update = made(kind)
    monkeypatch.setattr(update.runtime, "interrupted", lambda: True)
    update.update(rolled(update)[0])
    assert update.runtime._process.metrics.value("updates") == 1 and float(update.policy.body.inputs.normaliser.count) == 0


def test_passes_end_once_the_policy_has_moved_too_far() -> None:
    update = made("ppo", target_kl=1e-9, n_epochs=9, minibatches=1)
    update.update(rolled(update)[0])
    assert update.runtime._process.metrics.value("updates") == 2, "the first step finds the policy where it was"


def corridor(update: Any, policy: Acting, streams: int, steps: int) -> tuple[Chunks, float]:
    """Five cells; right of the last pays 1 and ends the episode, all else pays nothing. One-hot observations."""
    rows, real = steps + 1, isinstance(update.spec.action, Continuous)
    place, age, paid = np.zeros(streams, int), np.zeros(streams, np.int32), 0.0
    arrays: dict[str, np.ndarray] = {
        "observation/cell": np.zeros((streams, rows, 5), np.float32),
        "action": np.zeros((streams, rows, 1), np.float32) if real else np.zeros((streams, rows), np.int32),
        "valid": np.ones((streams, rows), np.uint8),
        "length": np.full(streams, steps),
        "probability": np.ones(streams),
        **{name: np.zeros((streams, rows), np.float32) for name in ("reward", LOG_PROB)},
        **{name: np.zeros((streams, rows), np.uint8) for name in ("terminated", "truncated")},
        **{name: np.zeros((streams, rows), np.int32) for name in ("episode_step", "policy_version")},
    }
    for t in range(rows):
        seen = np.eye(5, dtype=np.float32)[place]
        acted = policy.act({"cell": seen[:, None]}, "explore")
        place = np.maximum(place + np.where(acted.action[:, 0] > 0 if real else acted.action == 1, 1, -1), 0)
        out = place == 5
        written = {"observation/cell": seen, "action": acted.action, "episode_step": age, "reward": out, "terminated": out}
        for name, values in (written | acted.columns).items():
            arrays[name][:, t] = values
        place[out], age = 0, np.where(out, 0, age + 1).astype(np.int32)
        paid += float(out.sum())
    return to_chunks(arrays, update.spec, CPU), paid / (streams * rows)


@pytest.mark.parametrize(
    "config",
    [
        PpoConfig(hidden=32, layers=1, n_epochs=4, gamma=0.9),
        PpoConfig(hidden=32, layers=2, n_epochs=4, gamma=0.9),
        PqnConfig(hidden=32, gamma=0.9, minibatches=4, epsilon_base=0.3),
        pytest.param(ReppoConfig(hidden=32, gamma=0.9, n_epochs=4), marks=pytest.mark.slow),
    ],
    ids=["ppo, one layer", "ppo", "pqn", "reppo"],
)
def test_it_learns_to_walk_to_a_reward_that_comes_late(config: Any) -> None:
    torch.manual_seed(0)
    env = ExperienceSpec((vector("cell", 5),), REALS if isinstance(config, ReppoConfig) else Categorical(2), 8)
    spec = join(env, algorithm_of(config).needs(env))
    update = make_update(spec, config, LearnerConfig(learning_rate=3e-3, max_grad_norm=0.5))
    policy, rates = Acting(spec, config, update.policy), []
    policy.assign(0, 16)
    for _ in range(20):
        rollout, rate = corridor(update, policy, 16, 32)
        rates.append(rate)
        update.update(rollout)
    assert rates[0] < 0.08 and np.mean(rates[-5:]) > (0.17 if isinstance(config, PpoConfig) else 0.15), (
        "the best there is pays each fifth step"
    )
