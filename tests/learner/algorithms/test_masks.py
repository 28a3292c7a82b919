"""Masked actions: a forbidden one is never chosen, and no target or log-probability counts one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic.masks import FORBIDDEN, allowed_actions, draw_allowed, mask_array, masked
from learner.algorithms.base import Mode, explain, join
from learner.algorithms.dqn.acting import BEST_VALUE, TAKEN_VALUE
from learner.algorithms.dqn.algorithm import Dqn
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.algorithm import Ppo
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.ppo.networks import log_prob_entropy
from learner.algorithms.pqn.algorithm import Pqn
from learner.algorithms.pqn.config import PqnConfig
from learner.config import LearnerConfig
from learner.feed.batches import to_chunks
from learner.inference.module import infer_by
from learner.networks.base import PolicyModule
from learner.updates.base import Transitions
from tests.learner.examples import CPU, make_batch, make_update, vector
from tests.learner.rollouts import play, to_arrays
from transport.experience import ACTION_MASK, Categorical, Columns, ExperienceSpec, observed

N = 5
MODES: tuple[Mode, ...] = ("explore", "stochastic", "greedy", "random")
SPEC = ExperienceSpec((vector(), observed(ACTION_MASK, (N,), "|u1")), Categorical(N, masked=True), 16, stack=2)


class Drawn:
    """Masks of which one is all 0."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(3)
        self.mask = (random.random((count, SPEC.stack, N)) < 0.4).astype(np.uint8)
        self.mask[0] = 0
        self.observation: Columns = {
            "vector": random.standard_normal((count, SPEC.stack, 4)).astype(np.float32),
            ACTION_MASK: self.mask,
        }
        newest = self.mask[:, -1].astype(bool)
        self.allowed = np.where(newest.any(1, keepdims=True), newest, True)


def test_the_newest_rows_mask_counts_and_one_of_zeros_allows_everything() -> None:
    drawn = Drawn(200)
    found = allowed_actions(SPEC, drawn.observation)
    assert found is not None and (found == drawn.allowed).all() and found[0].all()
    assert allowed_actions(ExperienceSpec((vector(),), Categorical(N), 16), drawn.observation) is None
    values = np.random.default_rng(0).standard_normal((200, N)).astype(np.float32)
    in_torch = masked(SPEC, torch.from_numpy(values), {ACTION_MASK: torch.from_numpy(drawn.mask)}).numpy()
    assert ((in_torch == FORBIDDEN) == ~drawn.allowed).all() and (in_torch[drawn.allowed] == values[drawn.allowed]).all()


def test_what_is_drawn_is_uniform_among_the_allowed() -> None:
    allowed = np.repeat(np.array([[False, True, False, True, True]]), 30_000, 0)
    shares = np.bincount(draw_allowed(np.random.default_rng(0), allowed), minlength=N) / 30_000
    assert shares == pytest.approx([0, 1 / 3, 0, 1 / 3, 1 / 3], abs=0.02)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_argmax_is_allowed_whatever_the_values_are(value: float) -> None:
    allowed = Drawn(50).allowed
    best = mask_array(np.full((50, N), value, np.float32), allowed).argmax(1)
    assert allowed[np.arange(50), best].all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of values that overflow
@pytest.mark.parametrize("scale", [1.0, 1e38])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "algorithm", [Dqn(DqnConfig(hidden=8)), Ppo(PpoConfig(hidden=8)), Pqn(PqnConfig(hidden=8))], ids=["dqn", "ppo", "pqn"]
)
def test_no_mode_of_acting_chooses_a_forbidden_action(algorithm: Any, mode: Mode, scale: float) -> None:
    torch.manual_seed(0)
    policy = algorithm.policy(SPEC)
    with torch.no_grad():
        for parameter in policy.head.parameters():  # a large one makes values that are not finite
            parameter.copy_(torch.randn_like(parameter) * scale)
    acting = algorithm.acting(SPEC, infer_by(policy))
    acting.assign(1, 0, 400, 400)
    drawn, row = Drawn(400), np.arange(400)
    chosen = [acting.act(drawn.observation, {}, mode) for _ in range(20)]
    for batch in chosen:
        assert drawn.allowed[row, batch.action].all()
    if mode != "greedy" and scale == 1.0:
        taken = np.stack([np.eye(N, dtype=bool)[batch.action] for batch in chosen]).any(0)
        several = drawn.allowed.sum(1) > 1
        assert (taken.sum(1) > 1)[several].any(), "chance is left"


@pytest.mark.parametrize(
    "algorithm", [Dqn(DqnConfig(hidden=8)), Pqn(PqnConfig(hidden=8)), Ppo(PpoConfig(hidden=8))], ids=["dqn", "pqn", "ppo"]
)
def test_what_is_explained_is_what_is_acted_on_and_nothing_of_forbidden_actions(algorithm: Any) -> None:
    torch.manual_seed(0)
    spec, drawn = join(SPEC, algorithm.needs(SPEC)), Drawn(60)
    policy = algorithm.acting(spec, infer_by(algorithm.policy(spec), "float32"))
    policy.assign(1, 0, 60, 60)
    found = explain(policy, drawn.observation, {})
    assert found is not None and (np.isfinite(found.figures) == drawn.allowed).all()
    assert (np.nanargmax(found.figures, 1) == policy.act(drawn.observation, {}, "greedy").action).all()
    if found.bounds is not None:
        np.testing.assert_allclose(np.nansum(found.figures, 1), 1.0, rtol=1e-5)
        chosen = policy.act(drawn.observation, {}, "stochastic")
        shares = found.figures[np.arange(60), chosen.action]
        np.testing.assert_allclose(np.log(shares), chosen.columns[LOG_PROB], rtol=1e-4, atol=1e-5)


def test_acting_keeps_the_values_of_allowed_actions() -> None:
    policy = Dqn(DqnConfig(hidden=8)).policy(SPEC)
    drawn = Drawn(60)
    with torch.no_grad():
        q = policy({name: torch.from_numpy(rows) for name, rows in drawn.observation.items()}).numpy()
    best = np.where(drawn.allowed, q, -np.inf).max(1)
    columns = Dqn(DqnConfig(hidden=8)).acting(SPEC, infer_by(policy)).act(drawn.observation, {}, "greedy").columns
    np.testing.assert_allclose(columns[BEST_VALUE], best, rtol=1e-4)
    np.testing.assert_allclose(columns[TAKEN_VALUE], best, rtol=1e-4)


@pytest.mark.parametrize("double", [True, False])
def test_dqns_target_is_the_best_allowed_action(double: bool) -> None:
    torch.manual_seed(0)
    config = DqnConfig(hidden=8, network="mlp", double=double, gamma=0.9, n_step=1)
    update = make_update(SPEC, config, LearnerConfig(batch_size=64))
    with torch.no_grad():
        for parameter in update.target.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    batch: Transitions = make_batch(SPEC, 64)
    batch.observation[ACTION_MASK] = (torch.rand(64, SPEC.stack + 1, N) < 0.4).to(torch.uint8)
    step = update.transition(batch)
    mask = step.next_observation[ACTION_MASK][:, -1].bool()
    mask |= ~mask.any(1, keepdim=True)
    with torch.no_grad():
        valuing = update.target(step.next_observation)
        selecting = update.policy(step.next_observation) if double else valuing
        best = torch.where(mask, selecting, -torch.inf).argmax(1)
        target = step.return_ + step.discount * valuing.gather(1, best[:, None]).squeeze(1)
        td = (target - update.policy(step.observation).gather(1, step.action[:, None]).squeeze(1)).abs()
    assert (best != selecting.argmax(1)).any(), "the mask makes a difference"
    torch.testing.assert_close(update.update(batch).priorities, td, rtol=1e-4, atol=1e-5)


def test_ppo_learns_from_the_probabilities_by_which_it_acted() -> None:
    torch.manual_seed(0)
    algorithm = Ppo(PpoConfig(hidden=8, n_epochs=2))
    spec = join(SPEC, algorithm.needs(SPEC))
    update = make_update(spec, algorithm.config, LearnerConfig(batch_size=64))
    policy: PolicyModule = update.policy
    with torch.no_grad():
        policy.head[0].weight.mul_(200)  # type: ignore[index]
    acting = algorithm.acting(spec, infer_by(policy))
    acting.assign(1, 0, 4, 4)

    def act(stacked: Columns) -> Any:
        stacked[ACTION_MASK][...] = stacked[ACTION_MASK] % 3 > 0  # as drawn, nearly everything would be allowed
        return acting.act(stacked, {}, "explore")

    chunks, _ = play(spec, act, streams=4, steps=64, seed=2)
    for chunk in chunks:
        chunk.columns[ACTION_MASK][...] = chunk.columns[ACTION_MASK] % 3 > 0
        assert np.isfinite(chunk.columns[LOG_PROB]).all()
    rollout = to_chunks(to_arrays(spec, chunks), spec, CPU)
    _, _, figures, _ = update.prepare(rollout, False)
    assert float(figures["ratio_first"]) < 1e-4
    metrics = update.update(rollout).metrics
    assert all(bool(value.isfinite()) for value in metrics.values())
    assert all(bool(parameter.isfinite().all()) for parameter in policy.parameters())


def test_a_forbidden_action_has_no_probability_no_entropy_and_no_gradient() -> None:
    logits = torch.randn(3, N, requires_grad=True)
    mask = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.uint8)
    answer = masked(SPEC, logits, {ACTION_MASK: mask[:, None]})
    log_prob, entropy = log_prob_entropy(answer, torch.tensor([2, 3, 4]))
    (log_prob.sum() + entropy.sum()).backward()
    allowed = torch.where(mask.bool().any(1, keepdim=True), mask.bool(), True)
    expected = torch.where(allowed, logits.detach(), -torch.inf).softmax(1)
    torch.testing.assert_close(log_prob.exp(), expected[torch.arange(3), torch.tensor([2, 3, 4])])
    torch.testing.assert_close(entropy, torch.special.entr(expected).sum(1))
    assert logits.grad is not None and not logits.grad[~allowed].any() and logits.grad.isfinite().all()
