"""R2D2 on chunks that the actors' own agent and chunker made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic.returns import importance_weights
from learner.algorithms.r2d2.acting import EPSILON, GREATEST_SHARE, rescale, restore
from learner.algorithms.r2d2.config import R2d2Config
from learner.algorithms.r2d2.update import Weighted
from learner.algorithms.r2d2.update import rescale as rescale_in_torch
from learner.algorithms.r2d2.update import restore as restore_in_torch
from learner.config import LearnerConfig
from learner.networks.parts import Dueling
from learner.updates.base import Chunks
from replay.table.layout import PRIORITY
from tests.learner.algorithms.sequences import MASK, batch_of, collect, spec_of
from tests.learner.examples import image, make_update, vector
from transport.experience import ACTION_MASK, Categorical, Continuous

KINDS: dict[str, dict[str, Any]] = {
    "vector": {},
    "masked": {"fields": (vector(size=3), MASK), "action": Categorical(3, masked=True)},
    "stacked": {"stack": 3},
    "image": {"fields": (image(shape=(12, 12)),), "stack": 2},
}
SMALL: dict[str, Any] = {"hidden": 8, "memory_width": 6, "n_step": 2, "gamma": 0.9, "burn_in": 5}


def made(kind: str = "vector", learner: LearnerConfig | None = None, **options: Any) -> Any:
    """Away from the initial weights, and the target network from the online one."""
    torch.manual_seed(1)
    config, details = R2d2Config(**{**SMALL, **options}), dict(KINDS[kind])
    spec = spec_of(config, *details.pop("fields", ()), **details)
    update = make_update(spec, config, learner or LearnerConfig(batch_size=64, learning_rate=3e-3))
    with torch.no_grad():
        for module in update.modules.values():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return update


def q_values(update: Any, module: Any, batch: Chunks) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = update.values(module, update.rows(batch), batch.extras)
    return found


@pytest.mark.parametrize("burn_in", [0, 5])
@pytest.mark.parametrize("memory", ["lstm", "gru"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_update_unrolls_is_what_the_actor_computed(kind: str, memory: str, burn_in: int) -> None:
    update = made(kind, memory=memory, burn_in=burn_in)
    chunks, outputs = collect(update)
    batch, history = batch_of(update.spec, chunks), update.spec.history
    found, compared, begun = q_values(update, update.policy, batch), 0, 0  # [L + n, B, actions]
    for b, chunk in enumerate(chunks):
        for row in range(history, history + chunk.length):
            if chunk.columns["valid"][row]:
                np.testing.assert_allclose(found[row - history, b], outputs[b][row], rtol=1e-3, atol=1e-4)
                compared, begun = compared + 1, begun + int(chunk.columns["episode_step"][row] == 0)
        for name in update.policy.body.state:
            assert np.array_equal(batch.extras[name][b], chunk.columns[name])
    assert compared == 180 and begun > 10 and batch.extras["memory/h"].any()


def naive_errors(update: Any, batch: Chunks, b: int) -> list[float]:
    """The TD errors of a chunk's items, one item after the other."""
    config, spec, columns = update.config, update.spec, batch
    online, target = (q_values(update, module, batch)[:, b].double().numpy() for module in (update.policy, update.target))
    found, history = [], spec.history
    for item in range(int(batch.length[b])):
        row, total, discount = history + item, 0.0, 1.0
        if not columns.valid[b, row]:
            continue
        for _ in range(config.n_step):
            total += discount * config.reward_scale * float(columns.reward[b, row])
            discount *= config.gamma
            ended, row = bool(columns.terminated[b, row]), row + 1
            if ended or not columns.valid[b, row]:
                break
        if not ended:
            selecting = (online if config.double else target)[row - history].copy()
            if ACTION_MASK in batch.observation and batch.observation[ACTION_MASK][b, row].any():
                selecting[~batch.observation[ACTION_MASK][b, row].bool().numpy()] = -np.inf
            bootstrap = target[row - history, selecting.argmax()]
            total += discount * float(restore(bootstrap) if config.value_rescaling else bootstrap)
        goal = float(rescale(np.array(total))) if config.value_rescaling else total
        found.append(goal - online[item, int(columns.action[b, history + item])])
    return found


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("vector", {}),
        ("vector", {"double": False, "reward_scale": 3.0, "dueling": False}),
        ("masked", {"value_rescaling": False, "n_step": 3}),
        ("stacked", {"memory": "gru", "burn_in": 0}),
    ],
)
def test_errors_loss_and_priorities_equal_a_loop_over_the_items(kind: str, options: dict[str, Any]) -> None:
    update = made(kind, **options)
    batch = batch_of(update.spec, collect(update)[0])
    errors = [np.array(naive_errors(update, batch, b)) for b in range(len(batch.length))]
    weight = torch.linspace(0.2, 1.0, len(errors))
    loss = update.loss(Weighted(batch, weight))
    huber = [np.where(np.abs(e) < 1, 0.5 * e**2, np.abs(e) - 0.5).mean() for e in errors]
    assert float(loss.value.detach()) == pytest.approx(float((weight.numpy() * huber).mean()), rel=1e-3)
    expected = [GREATEST_SHARE * np.abs(e).max() + (1 - GREATEST_SHARE) * np.abs(e).mean() for e in errors]
    np.testing.assert_allclose(loss.priority, expected, rtol=1e-3, atol=1e-4)
    assert GREATEST_SHARE == 0.9 and float(loss.metrics["ignored"]) == 0
    assert float(loss.metrics["td"]) == pytest.approx(np.mean([np.abs(e).mean() for e in errors]), rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"value_rescaling": False, "clip_rewards": True}, {"n_step": 4, "reward_scale": 5.0}])
def test_a_new_sequences_priority_is_that_of_an_update_by_the_same_weights(options: dict[str, Any]) -> None:
    """Where no item bootstraps from a truncated episode's last observation, which the actor never values."""
    update = made(double=False, **options)
    update.target.load_state_dict(update.policy.state_dict())
    chunks, _ = collect(update, streams=1, steps=90, truncates=0.0)
    whole = [chunk for chunk in chunks if chunk.length == update.spec.chunk_length and chunk.columns["valid"].all()]
    sent = np.array([chunk.columns[PRIORITY] for chunk in whole])
    assert len(whole) > 7 and (sent > 0).all()
    np.testing.assert_allclose(sent, update.update(batch_of(update.spec, whole)).priorities, rtol=1e-3, atol=1e-4)


def test_an_item_that_bootstraps_from_what_was_not_acted_on_has_no_part_in_the_priority() -> None:
    update = made(burn_in=0, n_step=1)
    chunks, _ = collect(update, streams=1, steps=2, ends=1.0, truncates=1.0)  # every step is truncated
    assert [float(chunk.columns[PRIORITY]) for chunk in chunks] == [-1.0] * len(chunks)


def test_the_burn_in_teaches_nothing() -> None:
    update = made("stacked")
    batch = batch_of(update.spec, collect(update)[0], harsh=False)
    seen = {name: rows.clone().requires_grad_() for name, rows in batch.observation.items()}
    again = batch._replace(observation=seen)
    update.values(update.policy, update.rows(again), again.extras)[0].square().sum().backward()  # of the first item alone
    gradient = seen["vector"].grad
    assert gradient is not None and gradient[:, update.spec.history].any()
    stack = update.spec.stack - 1
    assert not gradient[:, : update.spec.history - stack].any(), "only the first item's own frame stack reaches further back"
    changed = {name: rows + 1 for name, rows in batch.observation.items()}
    changed = {name: torch.cat([rows[:, :4], batch.observation[name][:, 4:]], 1) for name, rows in changed.items()}
    other = q_values(update, update.policy, batch._replace(observation=changed))
    assert not torch.allclose(other[0], q_values(update, update.policy, batch)[0], atol=1e-4), "yet it moves the state"


def test_micro_batches_change_nothing() -> None:
    outcomes = []
    for parts in (1, 4):
        update = made(learner=LearnerConfig(batch_size=64, learning_rate=3e-3, accumulation=parts))
        batch = batch_of(update.spec, collect(update)[0])
        batch = batch._replace(probability=torch.linspace(0.1, 1, len(batch.length)))
        outcomes.append((update.update(batch), [parameter.detach() for parameter in update.policy.parameters()]))
    (one, weights), (several, others) = outcomes
    assert one.priorities is not None and several.priorities is not None
    torch.testing.assert_close(one.priorities, several.priorities)
    assert {name: float(value) for name, value in one.metrics.items()} == pytest.approx(
        {name: float(value) for name, value in several.metrics.items()}, rel=1e-3
    )
    torch.testing.assert_close(weights, others, rtol=1e-3, atol=1e-4)


def test_sequences_are_weighed_and_the_target_network_follows() -> None:
    update = made(target_update_interval=2, importance_exponent=0.6)
    batch = batch_of(update.spec, collect(update)[0])
    batch = batch._replace(probability=torch.linspace(0.1, 1, len(batch.length)))
    weight = importance_weights(batch.probability, 0.6)
    expected = float(update.loss(Weighted(batch, weight / weight.max())).value.detach())
    before = [value.clone() for value in update.target.parameters()]
    assert float(update.update(batch).metrics["loss"]) == pytest.approx(expected, rel=1e-5)
    assert all(map(torch.equal, before, update.target.parameters()))
    update.update(batch)
    assert all(map(torch.equal, update.policy.parameters(), update.target.parameters())) and update.counters["updates"] == 2


def test_a_reward_that_is_not_finite_is_ignored_and_counted() -> None:
    update = made(n_step=1)
    batch = batch_of(update.spec, collect(update)[0], harsh=False)
    reward = batch.reward.clone()
    reward[0, update.spec.history + 2] = torch.inf
    assert batch.valid[0, update.spec.history + 2]
    loss = update.loss(Weighted(batch._replace(reward=reward), torch.ones(len(reward))))
    assert bool(loss.value.isfinite()) and bool(loss.priority.isfinite().all())
    assert 0 < float(loss.metrics["ignored"]) < 0.02


def test_values_are_rescaled_and_restored() -> None:
    values = np.concatenate([-np.logspace(4, -3, 50), [0.0], np.logspace(-3, 4, 50)])
    np.testing.assert_allclose(restore(rescale(values)), values, rtol=1e-9, atol=1e-12)
    assert rescale(np.array(3.0)) == pytest.approx(1 + 3 * EPSILON) and (np.diff(rescale(values)) > 0).all()
    found = rescale_in_torch(torch.from_numpy(values))
    np.testing.assert_allclose(found, rescale(values), rtol=1e-12)
    np.testing.assert_allclose(restore_in_torch(found), values, rtol=1e-9, atol=1e-12)
    single = torch.from_numpy(values).float()
    torch.testing.assert_close(restore_in_torch(rescale_in_torch(single)), single, rtol=1e-3, atol=1e-5)


def test_acting_chooses_allowed_actions_and_explores_by_the_ladder() -> None:
    update = made("masked", epsilon_base=1.0)
    chunks, _ = collect(update)
    for chunk in chunks:
        acted = chunk.columns["valid"] != 0
        allowed = chunk.columns[ACTION_MASK][acted]
        taken = allowed[np.arange(len(allowed)), chunk.columns["action"][acted]]
        assert (taken | ~allowed.any(1).astype(bool)).all()
    update = made(epsilon_base=0.0)
    chunks, outputs = collect(update)
    for chunk, answers in zip(chunks, outputs, strict=True):
        acted = chunk.columns["valid"] != 0
        acted[: update.spec.history] &= chunk.columns["policy_version"][: update.spec.history] == 1
        assert np.array_equal(answers[acted].argmax(1), chunk.columns["action"][acted])


def test_networks_are_dueling_or_plain_and_refuse_reals_in_one_line() -> None:
    assert isinstance(made().policy.head[1], Dueling) and len(made(dueling=False).policy.head) == 1
    config = R2d2Config(**SMALL)
    spec = spec_of(config, action=Continuous((-1.0,), (1.0,)))
    with pytest.raises(ValueError, match="r2d2 chooses one of n actions, but this environment's action is a vector of 1 reals"):
        make_update(spec, config)


def test_what_it_needs_of_experience() -> None:
    spec = spec_of(R2d2Config(memory_width=5, burn_in=7, n_step=3))
    assert (spec.unit, spec.burn_in, spec.n_step) == ("sequences", 7, 3)
    assert [(column.name, column.shape, column.once) for column in spec.extras] == [
        ("memory/h", (5,), True),
        ("memory/c", (5,), True),
        (PRIORITY, (), True),
    ]
