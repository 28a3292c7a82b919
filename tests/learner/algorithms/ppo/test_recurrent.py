"""PPO with a memory on chunks that the actors' own agent and chunker made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic.rollouts import take
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.ppo.networks import log_prob_entropy, unrolled_policy_and_value
from learner.config import LearnerConfig
from learner.updates.base import Chunks
from learner.updates.trees import part
from tests.learner.algorithms.sequences import MASK, batch_of, collect, spec_of
from tests.learner.examples import image, make_update, vector
from transport.experience import Categorical, Chunk, Continuous, MultiCategorical

REALS = Continuous((-1.0, 0.0), (1.0, 3.0))
KINDS: dict[str, dict[str, Any]] = {
    "categorical": {},
    "continuous": {"action": REALS},
    "several": {"action": MultiCategorical((2, 3, 2))},
    "masked": {"fields": (vector(size=3), MASK), "action": Categorical(3, masked=True)},
    "stacked": {"stack": 3},
    "image": {"fields": (image(shape=(12, 12)),), "stack": 2},
}

SMALL: dict[str, Any] = {"hidden": 16, "memory": "lstm", "memory_width": 6, "gamma": 0.9, "gae_lambda": 0.8}


def made(kind: str = "categorical", learner: LearnerConfig | None = None, lag: int = 1, **options: Any) -> Any:
    """Away from its initial weights, and its statistics from none."""
    torch.manual_seed(1)
    config = PpoConfig(**SMALL | options)
    details = dict(KINDS[kind])
    spec = spec_of(config, *details.pop("fields", ()), **details)
    update = make_update(spec, config, learner or LearnerConfig(batch_size=64), max_policy_lag=lag)
    with torch.no_grad():
        for parameter in update.policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    rows = {field.name: torch.ones(50, *field.shape, dtype=torch.uint8) for field in spec.fields if field.dtype == "|u1"}
    rows |= {field.name: torch.randn(50, *field.shape) for field in spec.fields if field.dtype != "|u1"}
    update.policy.body.inputs.observe(rows, torch.ones(50, dtype=torch.bool))
    return update


def is_item(items: Any) -> torch.Tensor:
    """[N, L]"""
    return items.memory.weight != 0  # type: ignore[no-any-return]


def rolled(update: Any, **details: Any) -> tuple[Chunks, list[Chunk], list[np.ndarray]]:
    chunks, outputs = collect(update, **details)
    return batch_of(update.spec, chunks), chunks, outputs


@pytest.mark.parametrize("memory", ["lstm", "gru"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_ratios_are_one(kind: str, memory: str) -> None:
    update = made(kind, memory=memory)
    rollout, chunks, _ = rolled(update)
    assert {length for chunk in chunks if (length := chunk.length) < 8} and any(c.columns["truncated"].any() for c in chunks)
    items, rows, metrics, _ = update.prepare(rollout, False)
    assert float(metrics["ratio_first"]) < 1e-5
    for which in (torch.arange(len(chunks)), torch.tensor([4, 1])):
        measured = update.loss(update.normalised(take(items, which)), rows, torch.zeros(())).metrics
        assert float(measured["kl"]) == pytest.approx(0, abs=1e-6) and float(measured["clip_fraction"]) == 0
    nothing = {name: torch.zeros_like(rollout.extras[name]) for name in update.policy.body.state}
    forgotten = rollout._replace(extras=rollout.extras | nothing)
    assert float(update.prepare(forgotten, False)[2]["ratio_first"]) > 1e-4, "the recorded state matters"


@pytest.mark.parametrize("kind", ["categorical", "stacked"])
def test_what_the_update_unrolls_is_what_the_actor_computed(kind: str) -> None:
    update = made(kind)
    rollout, chunks, outputs = rolled(update)
    items, rows, _, _ = update.prepare(rollout, False)
    with torch.no_grad():
        index = items.observation_index
        output = update._unrolled(rows, index, items.memory.first, items.memory.state)[0].unflatten(0, index.shape[:2])
    history, compared, begun = update.spec.history, 0, 0
    for b, chunk in enumerate(chunks):
        for i in np.flatnonzero(chunk.columns["valid"][history : history + chunk.length]):
            np.testing.assert_allclose(output[b, i], outputs[b][history + i], rtol=1e-4, atol=1e-5)
            compared += 1
            begun += int(chunk.columns["episode_step"][history + i] == 0)
        for name in update.policy.body.state:
            assert np.array_equal(rollout.extras[name][b], chunk.columns[name])
    assert compared == 180 == int(is_item(items).sum()) and begun > 10
    measured = update.loss(update.normalised(items), rows, torch.zeros(())).metrics
    entropy = log_prob_entropy(output.flatten(0, 1), items.action.flatten(0, 1))[1][is_item(items).flatten()]
    assert float(measured["entropy"]) == pytest.approx(float(entropy.mean()), rel=1e-5), (
        "rows that are no items count for nothing"
    )


def one_by_one(update: Any, chunk: Chunk) -> list[tuple[float, float]]:
    """(value, advantage) of a chunk's items: the network stepped row by row, then sums of TD errors."""
    columns, config, values = chunk.columns, update.config, []
    state = {name: torch.from_numpy(columns[name][None]) for name in update.policy.body.state}
    with torch.no_grad():
        for row in range(chunk.length + 1):
            if columns["episode_step"][row] == 0:
                state = {name: torch.zeros_like(value) for name, value in state.items()}
            seen = {field.name: torch.from_numpy(columns[field.name][row][None, None]) for field in update.spec.fields}
            features, state = update.policy.body.step(seen, state)
            values.append(float(update.value({}, features)))
    found = []
    for first in range(chunk.length):
        advantage, weight = 0.0, 1.0
        for row in range(first, chunk.length):
            after = 0.0 if columns["terminated"][row] else config.gamma * values[row + 1]
            advantage += weight * (float(columns["reward"][row]) + after - values[row])
            weight *= config.gamma * config.gae_lambda
            if columns["terminated"][row] or columns["truncated"][row] or not columns["valid"][row + 1]:
                break
        if columns["valid"][first]:
            found.append((values[first], advantage))
    return found


@pytest.mark.parametrize("corrected", [False, True])
def test_values_and_advantages_equal_a_loop_that_steps_one_by_one(corrected: bool) -> None:
    update = made()
    rollout, chunks, _ = rolled(update)
    items, _, _, _ = update.prepare(rollout, corrected)
    expected = np.array([pair for chunk in chunks for pair in one_by_one(update, chunk)])
    np.testing.assert_allclose(items.value[is_item(items)], expected[:, 0], atol=1e-5)
    np.testing.assert_allclose(items.advantage[is_item(items)], expected[:, 1], atol=2e-5)
    update.portion = 20  # rows: two chunks at a time
    portions, _, _, _ = update.prepare(rollout, corrected)
    torch.testing.assert_close(portions.advantage, items.advantage)


def test_minibatches_are_eight_whole_chunks_or_more_and_each_is_in_one() -> None:
    update = made(minibatches=9, n_epochs=2)  # more than leave each of them eight chunks
    rollout, chunks, _ = rolled(update)
    drawn: list[Any] = []
    step = update.optimiser.step

    def recorded(loss: Any, items: Any, *shared: Any) -> Any:
        drawn.append(items)
        return step(loss, items, *shared)

    update.optimiser.step = recorded
    update.update(rollout)
    assert [len(items.memory.first) for items in drawn] == 2 * [9, 8, 8] and len(chunks) == 25
    starts = torch.cat([items.observation_index[:, 0, -1] for items in drawn])
    rows = rollout.valid.shape[1]
    expected = torch.arange(len(chunks)) * rows + update.spec.history
    assert torch.equal(starts[:25].sort().values, expected) and torch.equal(starts[25:].sort().values, expected)
    assert not torch.equal(starts[:25], starts[25:])
    for items in drawn:
        place = items.observation_index[:, :, -1] - items.observation_index[:, :1, -1]
        assert (place[is_item(items)] == torch.arange(8).expand(len(place), 8)[is_item(items)]).all(), "in the order of time"
    assert update.counters["steps"] == 180


def test_a_mean_is_over_the_items_and_not_over_what_fills_a_chunk() -> None:
    """A loop over the items of a minibatch, for the two that are easiest; the rest is plain PPO's."""
    update = made(vf_coef=0.7)
    rollout, _, _ = rolled(update)
    items, rows, _, _ = update.prepare(rollout, False)
    some = update.normalised(take(items, torch.tensor([0, 24, 7])))
    advantage = some.advantage[is_item(some)]
    assert not is_item(some).all()
    assert float(advantage.mean()) == pytest.approx(0, abs=1e-6)
    assert float(advantage.std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert float(some.memory.weight.mean()) == pytest.approx(1, abs=1e-6)
    shifted = some._replace(return_=some.return_ + is_item(some))
    loss = update.loss(shifted, rows, torch.zeros(()))
    expected = (shifted.return_ - shifted.value)[is_item(some)].square().mean()
    assert float(loss.metrics["value_loss"]) == pytest.approx(float(expected), rel=1e-4)
    as_it_is = made(normalize_advantage=False)
    assert torch.equal(as_it_is.normalised(some).advantage, some.advantage)


def test_micro_batches_change_nothing() -> None:
    found = []
    for parts in (1, 4):
        update = made(learner=LearnerConfig(batch_size=64, accumulation=parts, max_grad_norm=1e9), ent_coef=0.01)
        rollout, _, _ = rolled(update)
        items, rows, _, _ = update.prepare(rollout, False)
        outcome = update.optimiser.step(update.loss, update.normalised(items), rows, torch.tensor(0.01))
        found.append(({name: float(value) for name, value in outcome.metrics.items()}, list(update.policy.parameters())))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4, abs=1e-6)
    for one, several in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, several, rtol=1e-4, atol=1e-6)
    assert len(part(items, 0, 5).memory.state["memory/h"]) == 5


def test_with_correction_stale_steps_count_less() -> None:
    actor, update = made(), made(lag=3)
    with torch.no_grad():
        update.policy.head[0].weight.mul_(3)
    rollout, _, _ = rolled(actor)
    items, rows, metrics, _ = update.prepare(rollout, True)
    measured = update.loss(update.normalised(items), rows, torch.zeros(())).metrics
    assert float(metrics["ratio_first"]) > 1e-2 and float(measured["kl"]) == pytest.approx(0, abs=1e-6)
    assert not torch.allclose(items.log_prob[is_item(items)], rollout.extras[LOG_PROB][:, :-1][is_item(items)])


def test_mixed_precision_leaves_the_memory_in_float32() -> None:
    update = made("image")
    rollout, _, _ = rolled(update)
    items, rows, _, _ = update.prepare(rollout, False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = update.loss(update.normalised(items), rows, torch.zeros(()))
        assert loss.value.dtype == torch.float32 and bool(loss.value.isfinite())
        seen = {"image": torch.zeros(4, 2, 2, 12, 12, dtype=torch.uint8)}
        state = {name: torch.zeros(2, 6) for name in update.policy.body.state}
        output, value = unrolled_policy_and_value(update.policy, update.value, seen, torch.zeros(4, 2, dtype=torch.bool), state)
    assert output.dtype == value.dtype == torch.float32 and output.shape == (4, 2, 3) and value.shape == (4, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_changes_all_weights_and_keeps_them_finite(kind: str) -> None:
    update = made(kind, n_epochs=2, minibatches=2, learner=LearnerConfig(batch_size=64, learning_rate=1e-2))
    before = [parameter.detach().clone() for module in update.modules.values() for parameter in module.parameters()]
    metrics = update.update(rolled(update)[0]).metrics
    assert all(bool(value.isfinite()) for value in metrics.values())
    after = [parameter for module in update.modules.values() for parameter in module.parameters()]
    for old, new in zip(before, after, strict=True):
        assert bool(new.isfinite().all()) and not torch.equal(old, new)
    assert update.value.torso is None, "the value function reads the memory's features"
