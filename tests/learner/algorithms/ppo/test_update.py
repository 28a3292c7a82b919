"""PPO on rollouts that the actors' own chunker cut, against loops over them in plain Python."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic.rollouts import Rollout, shuffled, take
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.ppo.networks import log_prob_entropy, policy_and_value
from learner.algorithms.ppo.update import Items
from learner.config import LearnerConfig
from learner.feed.batches import to_chunks
from learner.networks.stacks import stack_rows
from learner.parallel.base import ALONE
from learner.updates.base import Chunks
from learner.updates.trees import part
from tests.learner.acting import Acting
from tests.learner.examples import CPU, LEARNER, image, make_update, vector
from tests.learner.rollouts import observe, rolled
from tests.transport.columns import scalars
from transport.experience import Categorical, Chunk, Column, Continuous, ExperienceSpec, MultiCategorical, observed

THREE = Categorical(3)
REALS = Continuous((-1.0, 0.0), (1.0, 3.0))
QUANTISED = observed("angle", (3,), "|u1", 0.02, -2.5)
GOAL = (vector("observation", 5), vector("achieved_goal", 3), vector("desired_goal", 3))


def make(*fields: Column, action: Categorical | MultiCategorical | Continuous = THREE, stack: int = 1) -> ExperienceSpec:
    return ExperienceSpec(fields, action, 8, stack, 1, extras=scalars(LOG_PROB))


SPECS = {
    "categorical": make(vector()),
    "goal": make(*GOAL, action=REALS),
    "stacked vectors": make(vector(), QUANTISED, action=REALS, stack=3),
    "image": make(image(shape=(12, 12)), stack=4),
    "image and vector": make(image(shape=(2, 13, 11)), vector(), action=REALS, stack=2),
    "large image": make(image(), stack=4),
}


def made(spec: ExperienceSpec, seed: int = 1, learner: LearnerConfig = LEARNER, **options: Any) -> Any:
    """Away from its initial weights, and its statistics from none."""
    torch.manual_seed(seed)
    algorithm = make_update(spec, msgspec.convert({"hidden": 16, "gamma": 0.9, "gae_lambda": 0.8} | options, PpoConfig), learner)
    with torch.no_grad():
        for parameter in algorithm.policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    rows = {name: torch.from_numpy(column) for name, column in observe(spec, 50, np.random.default_rng(5)).items()}
    algorithm.policy.body.inputs.observe(rows, torch.ones(50, dtype=torch.bool))
    return algorithm


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_ratio_is_one_of_what_fresh_weights_chose(spec: ExperienceSpec) -> None:
    algorithm = made(spec)
    rollout, _, _ = rolled(algorithm, steps=12 if "large" in str(spec) else 37)
    items, rows, metrics, _ = algorithm.prepare(rollout, False)
    measured = algorithm.loss(items, rows, torch.zeros(())).metrics
    with torch.no_grad():
        answer = algorithm.policy(stack_rows(rows, items.observation_index))
    ratio = (log_prob_entropy(answer, items.action)[0].detach() - items.log_prob).exp()
    assert float((ratio - 1).abs().max()) < 1e-5 and float(metrics["ratio_first"]) < 1e-5
    assert float(measured["kl"]) == pytest.approx(0, abs=1e-6) and float(measured["clip_fraction"]) == 0
    other = made(spec, seed=2)
    assert float(other.prepare(rollout, False)[2]["ratio_first"]) > 1e-3


def value_of(algorithm: Any, chunk: Chunk, row: int) -> float:
    """Of the observation of a row, stacked by looking back until the episode begins."""
    columns, stack = chunk.columns, algorithm.spec.stack
    places = [row]
    while len(places) < stack:
        places.insert(0, places[0] - 1 if columns["episode_step"][places[0]] > 0 else places[0])
    stacked = {field.name: torch.from_numpy(columns[field.name][places][None]) for field in algorithm.spec.fields}
    with torch.no_grad():
        return float(policy_and_value(algorithm.policy, algorithm.value, stacked)[1])


def expected_advantages(algorithm: Any, chunk: Chunk) -> list[tuple[float, float]]:
    """(value, advantage) of a chunk's items: TD errors of a step and those after it, until its episode or the chunk ends."""
    columns, history, config = chunk.columns, algorithm.spec.history, algorithm.config
    rows = range(history, history + chunk.length)
    found = []
    for first in rows:
        if not columns["valid"][first]:
            continue
        advantage, weight = 0.0, 1.0
        for row in range(first, rows.stop):
            reward = config.reward_scale * float(columns["reward"][row])
            after = 0.0 if columns["terminated"][row] else config.gamma * value_of(algorithm, chunk, row + 1)
            advantage += weight * (reward + after - value_of(algorithm, chunk, row))
            weight *= config.gamma * config.gae_lambda
            if columns["terminated"][row] or columns["truncated"][row] or not columns["valid"][row + 1]:
                break
        found.append((value_of(algorithm, chunk, first), advantage))
    return found


@pytest.mark.parametrize("name", ["goal", "stacked vectors", "image"])
@pytest.mark.parametrize("corrected", [False, True])
def test_values_and_advantages_equal_a_loop_over_the_chunks(name: str, corrected: bool) -> None:
    algorithm = made(SPECS[name], reward_scale=2.0)
    rollout, chunks, _ = rolled(algorithm)
    kinds = {(bool(c.columns["terminated"].any()), bool(c.columns["truncated"].any())) for c in chunks}
    assert {length for chunk in chunks if (length := chunk.length) < 8} and len(kinds) > 1, "the rollout has no such case"
    items, _, metrics, _ = algorithm.prepare(rollout, corrected)  # its own steps: V-trace has nothing to correct
    expected = np.array([pair for chunk in chunks for pair in expected_advantages(algorithm, chunk)])
    np.testing.assert_allclose(items.value, expected[:, 0], atol=1e-5)
    np.testing.assert_allclose(items.advantage, expected[:, 1], atol=2e-5)
    np.testing.assert_allclose(items.return_, expected.sum(1), atol=2e-5)
    assert float(metrics["explained_variance"]) == pytest.approx(1 - expected[:, 1].var() / expected.sum(1).var(), abs=1e-3)


def test_a_truncated_step_is_the_last_of_its_sum_whatever_the_next_row_is() -> None:
    algorithm, short = made(SPECS["goal"]), made(SPECS["goal"], gae_lambda=0.0)
    rollout, _, _ = rolled(algorithm)
    rollout = rollout._replace(truncated=torch.ones_like(rollout.truncated))
    torch.testing.assert_close(algorithm.prepare(rollout, False)[0].advantage, short.prepare(rollout, False)[0].advantage)


@pytest.mark.parametrize("name", ["goal", pytest.param("image", marks=pytest.mark.slow)])
def test_normalised_rewards_of_any_size_teach_the_same(name: str) -> None:
    """Values grow with the rewards; a change of the scale changes none."""
    values = []
    for size in (1.0, 1e-4, 1e5):
        algorithm = made(SPECS[name], learner=LearnerConfig(learning_rate=3e-3), normalize_reward=True, n_epochs=4)
        rollout, _, _ = rolled(algorithm)
        small = rollout._replace(reward=size * (rollout.reward + 2))
        for _ in range(8):
            torch.manual_seed(3)
            algorithm.update(small)
        items, _, _, _ = algorithm.prepare(small, False)
        before = items.value.clone()
        algorithm.scaling.observe(torch.tensor(1e3 * size**2), torch.tensor(size**2))
        torch.testing.assert_close(algorithm.prepare(small, False)[0].value, before, rtol=1e-4, atol=1e-5 * size)
        values.append(before.mean() / size)
    assert float(values[0]) > 1, "it has learned nothing"
    torch.testing.assert_close(values[1], values[0], rtol=0.1, atol=0.1)
    torch.testing.assert_close(values[2], values[0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize(("adaptive_kl", "magnitude"), [(0.0, 1.0), (0.02, 10.0)])
def test_scaled_values_are_small_where_the_learning_rate_is_fixed(adaptive_kl: float, magnitude: float) -> None:
    """Gradients of policy and value function are clipped together."""
    algorithm = made(SPECS["categorical"], normalize_reward=True, adaptive_kl=adaptive_kl)
    square = algorithm.reward_square(Rollout(rolled(algorithm)[0], algorithm.spec, algorithm.config))
    algorithm.scaling.begin(square)
    assert float(algorithm.scaling.scale) == pytest.approx(float(square) ** 0.5 / magnitude)


def test_with_normalised_rewards_the_loss_is_that_of_scaled_values() -> None:
    algorithm = made(SPECS["goal"], normalize_reward=True, clip_range_vf=0.05, ent_coef=0.0)
    rollout, _, _ = rolled(algorithm)
    algorithm.update(rollout)
    items, rows, _, _ = algorithm.prepare(rollout, False)
    scale = float(algorithm.scaling.scale)
    torch.testing.assert_close(items.advantage * scale, items.return_ - items.value)
    assert float(algorithm.reward_square(Rollout(rollout, algorithm.spec, algorithm.config))) == pytest.approx(
        float(rollout.reward[:, :-1][rollout.valid[:, :-1] & (torch.arange(8) < rollout.length[:, None])].square().mean()),
        rel=1e-4,
    )
    items = items._replace(value=items.value + 0.1 * scale)
    value = policy_and_value(algorithm.policy, algorithm.value, stack_rows(rows, items.observation_index))[1].detach()
    clipped = items.value + (value - items.value).clamp(-0.05 * scale, 0.05 * scale)
    expected = torch.maximum((value - items.return_) ** 2, (clipped - items.return_) ** 2).mean() / scale**2
    assert float(algorithm.loss(items, rows, torch.zeros(())).metrics["value_loss"]) == pytest.approx(float(expected), rel=1e-4)


def test_with_correction_ratios_are_to_the_policy_of_now_and_stale_steps_count_less() -> None:
    spec = SPECS["categorical"]
    actor, algorithm = made(spec, seed=1), made(spec, seed=2)
    rollout, _, _ = rolled(actor)
    plain, _, _, _ = algorithm.prepare(rollout, False)
    items, rows, _, _ = algorithm.prepare(rollout, True)
    now = log_prob_entropy(algorithm.policy(stack_rows(rows, items.observation_index)), items.action)[0].detach()
    torch.testing.assert_close(items.log_prob, now)
    assert not torch.allclose(plain.log_prob, now)
    rho = (now - plain.log_prob).exp().clamp(max=1.0)
    assert float(rho.min()) < 0.99
    item = rollout.valid[:, :-1] & (torch.arange(spec.chunk_length) < rollout.length[:, None])
    last = rollout.terminated[:, :-1][item]
    assert last.any()
    # Of an episode's last step only its own ratio matters.
    torch.testing.assert_close(items.advantage[last], (rho * plain.advantage)[last])


def test_advantages_are_normalised_over_a_minibatch_and_not_over_its_parts() -> None:
    algorithm = made(SPECS["categorical"], minibatches=2)
    items, _, _, _ = algorithm.prepare(rolled(algorithm)[0], False)
    for which in next(shuffled(len(items.action), [1], 2, ALONE, CPU)):
        some = algorithm.normalised(take(items, which))
        assert float(some.advantage.mean()) == pytest.approx(0, abs=1e-5)
        assert float(some.advantage.std(correction=0)) == pytest.approx(1, abs=1e-4)
        assert abs(float(part(some, 0, 10).advantage.mean())) > 1e-4
    assert algorithm.normalised(part(items, 0, 1)).advantage.tolist() == [0.0]
    as_it_is = made(SPECS["categorical"], normalize_advantage=False)
    assert torch.equal(as_it_is.normalised(items).advantage, items.advantage)


def naive_loss(algorithm: Any, items: Items, rows: dict[str, torch.Tensor]) -> dict[str, float]:
    """From what the network says, one item after the other."""
    config = algorithm.config
    with torch.no_grad():
        said = policy_and_value(algorithm.policy, algorithm.value, stack_rows(rows, items.observation_index))
        answers, values = (output.double().numpy() for output in said)
    sums: dict[str, float] = defaultdict(float)
    for i in range(len(items.action)):
        if isinstance(algorithm.spec.action, Categorical):
            p = np.exp(answers[i]) / np.exp(answers[i]).sum()
            log_prob, entropy = math.log(p[int(items.action[i])]), -sum(x * math.log(x) for x in p)
        else:
            log_prob = entropy = 0.0
            for u, mean, log_std in zip(items.action[i].tolist(), *np.split(answers[i], 2), strict=True):
                deviation = math.exp(log_std)
                log_prob += -((u - mean) ** 2) / (2 * deviation**2) - math.log(deviation * math.sqrt(2 * math.pi))
                log_prob -= math.log(1 - math.tanh(u) ** 2)
                entropy += 0.5 * math.log(2 * math.pi * math.e * deviation**2)
        r, a = math.exp(log_prob - float(items.log_prob[i])), float(items.advantage[i])
        v, old, goal = values[i], float(items.value[i]), float(items.return_[i])
        sums["policy_loss"] -= min(r * a, min(max(r, 1 - config.clip_range), 1 + config.clip_range) * a)
        error = (v - goal) ** 2
        if config.clip_range_vf:
            error = max(error, (old + min(max(v - old, -config.clip_range_vf), config.clip_range_vf) - goal) ** 2)
        sums["value_loss"] += error
        sums["entropy"] += entropy
        sums["kl"] += r - 1 - math.log(r)
        sums["clip_fraction"] += abs(r - 1) > config.clip_range
    means = {name: total / len(items.action) for name, total in sums.items()}
    bonus = config.ent_coef * means["entropy"]
    return means | {"loss": means["policy_loss"] + config.vf_coef * means["value_loss"] - bonus}


@pytest.mark.parametrize("clip_range_vf", [0.0, 0.3])
@pytest.mark.parametrize("name", ["categorical", "goal"])
def test_the_loss_equals_a_loop_over_the_items(name: str, clip_range_vf: float) -> None:
    algorithm = made(SPECS[name], clip_range=0.1, clip_range_vf=clip_range_vf, ent_coef=0.02, vf_coef=0.7)
    items, rows, _, _ = algorithm.prepare(rolled(algorithm)[0], False)
    moved = made(SPECS[name], seed=2, **{key: getattr(algorithm.config, key) for key in algorithm.config.__struct_fields__})
    loss, metrics, priority = moved.loss(items, rows, torch.tensor(moved.schedules.ent_coef()))
    expected = naive_loss(moved, items, rows)
    assert 0 < expected["clip_fraction"] < 1
    assert {key: float(value) for key, value in metrics.items()} == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert float(loss.detach()) == pytest.approx(expected["loss"], rel=1e-4, abs=1e-5) and loss.requires_grad
    assert priority is None
    assert not any(value.requires_grad for value in metrics.values())


def test_the_noise_stays_within_its_bounds_and_returns_from_them() -> None:
    """Advantages that prefer actions near the mean reduce the noise, those that prefer others increase it."""
    learner = LearnerConfig(learning_rate=0.03)
    algorithm = made(SPECS["goal"], learner=learner, log_std_init=-0.8, log_std_min=-1.0, clip_range=5.0)
    (noise,) = algorithm.policy.head[1:]
    prepare = algorithm.prepare

    def preferring(sign: float) -> None:
        def prepared(rollout: Chunks, corrected: bool) -> Any:
            items, *others = prepare(rollout, corrected)
            with torch.no_grad():
                mean = algorithm.policy(stack_rows(others[0], items.observation_index)).chunk(2, 1)[0]
            return items._replace(advantage=sign * (items.action - mean).square().sum(1)), *others

        algorithm.prepare = prepared
        algorithm.update(rolled(algorithm)[0])

    for _ in range(4):
        preferring(-1.0)
    assert noise.log_std.tolist() == [-1.0, -1.0], "it falls to the bound"
    preferring(1.0)
    assert float(noise.log_std.detach().min()) > -0.95, "it rises again at once"
    with torch.no_grad():
        noise.log_std.fill_(3.0)  # as from a file of weights
    preferring(-1.0)
    assert float(noise.log_std.detach().max()) < 2.0, "it falls from above, too"


def test_a_ratio_beyond_the_clip_range_moves_nothing_in_the_direction_it_went() -> None:
    algorithm = made(SPECS["categorical"], vf_coef=0.0)
    items, rows, _, _ = algorithm.prepare(rolled(algorithm)[0], False)
    for difference, advantage, moves in ((1.0, 1.0, False), (-1.0, -1.0, False), (1.0, -1.0, True), (0.0, 1.0, True)):
        shifted = items._replace(log_prob=items.log_prob - difference, advantage=torch.full_like(items.advantage, advantage))
        loss = algorithm.loss(shifted, rows, torch.zeros(())).value
        gradient = torch.autograd.grad(loss, [next(algorithm.policy.parameters())])[0]
        assert bool(gradient.abs().max() > 1e-4) == moves


def test_it_stops_once_the_policy_has_moved_too_far_if_it_is_to() -> None:
    assert [made(SPECS["goal"], target_kl=0.02).schedules.is_enough(kl) for kl in (0.0, 0.02, 0.021)] == [False, False, True]
    assert not made(SPECS["goal"]).schedules.is_enough(100.0)


def test_the_learning_rate_follows_how_far_rollouts_move_the_policy_and_survives_a_resume() -> None:
    algorithm = made(SPECS["goal"], adaptive_kl=0.01)
    algorithm.schedules.adapt(0.015)
    assert algorithm.schedules.learning_rate_share() == 1.0  # near enough
    algorithm.schedules.adapt(0.03)
    assert algorithm.schedules.learning_rate_share() < 1.0
    other = made(SPECS["goal"], adaptive_kl=0.01)
    other.counters.update(algorithm.counters)
    assert other.schedules.learning_rate_share() == algorithm.schedules.learning_rate_share()
    for _ in range(100):
        other.schedules.adapt(0.0)
    assert 1.0 < other.schedules.learning_rate_share() < 100.0


def test_schedules_go_by_the_steps_learned_from_and_survive_a_resume() -> None:
    options: dict[str, Any] = {"anneal_steps": 1_000, "learning_rate_end": 0.1, "ent_coef": 0.04, "ent_coef_end": 0.5}
    algorithm = made(SPECS["goal"], **options)
    shares = []
    for steps in (0, 500, 1_000, 5_000):
        algorithm.counters.update(steps=steps, rate=1.0)
        shares.append((algorithm.schedules.learning_rate_share(), algorithm.schedules.ent_coef()))
    assert np.array(shares) == pytest.approx(np.array([(1, 0.04), (0.55, 0.03), (0.1, 0.02), (0.1, 0.02)]))
    other = made(SPECS["goal"], **options)
    other.counters.update(algorithm.counters)
    assert (other.counters["steps"], other.schedules.learning_rate_share()) == (5_000, shares[-1][0])
    assert made(SPECS["goal"], ent_coef=0.1).schedules.ent_coef() == 0.1


def test_the_learning_rate_follows_its_share() -> None:
    moved = []
    for share in (1.0, 0.25, 0.0):
        algorithm = made(SPECS["categorical"], learner=LearnerConfig(learning_rate=1e-3, adam_epsilon=1e-8))
        items, rows, _, _ = algorithm.prepare(rolled(algorithm)[0], False)
        before = next(algorithm.policy.parameters()).detach().clone()
        algorithm.optimiser.scale_learning_rate(share)
        algorithm.optimiser.step(algorithm.loss, items, rows, torch.zeros(()))
        moved.append(float((next(algorithm.policy.parameters()).detach() - before).abs().max()))
    assert moved == pytest.approx([1e-3, 2.5e-4, 0.0], rel=1e-2)


def bandit(algorithm: Any, policy: Acting, random: np.random.Generator, payout: object) -> tuple[Chunks, float]:
    """Chunks of one-step episodes, and the mean reward."""
    spec, rows = algorithm.spec, 9
    observation = observe(spec, 16 * rows, random)
    acted = policy.act({name: column[:, None] for name, column in observation.items()}, "explore")
    reward = payout(observation["vector"], acted.action).astype(np.float32)  # type: ignore[operator]
    arrays = {f"observation/{name}": column.reshape(16, rows, *column.shape[1:]) for name, column in observation.items()}
    columns = {"action": acted.action, "reward": reward, "terminated": np.ones(len(reward), np.uint8), **acted.columns}
    columns |= {"truncated": np.zeros(len(reward), np.uint8), "valid": np.ones(len(reward), np.uint8)}
    columns |= dict.fromkeys(("episode_step", "policy_version"), np.zeros(len(reward), np.int32))
    arrays |= {name: column.reshape(16, rows, *column.shape[1:]) for name, column in columns.items()}
    arrays["length"] = np.full(16, 8)
    arrays["probability"] = np.ones(16)
    return to_chunks(arrays, spec, CPU), float(reward.mean())


def right_sign(seen: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.where((seen[:, 0] > 1) == (action == 1), 1.0, 0.0)


def share_of_right_signs(seen: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Each choice for itself: 2 or 0, by the sign; the combinations are too many to try each."""
    return np.where(seen[:, :1] > 1, action == 2, action == 0).mean(1)  # type: ignore[no-any-return]


def near_the_input(seen: np.ndarray, action: np.ndarray) -> np.ndarray:
    return -np.square(np.tanh(action[:, 0]) - np.tanh(seen[:, 0] - 1))


@pytest.mark.parametrize(
    ("action", "payout", "first", "goal"),
    [
        (Categorical(2), right_sign, 0.6, 0.95),
        (MultiCategorical((3,) * 12), share_of_right_signs, 0.4, 0.9),
        (Continuous((-1.0,), (1.0,)), near_the_input, -0.4, -0.1),
    ],
)
def test_it_learns_which_action_pays_where(
    action: Categorical | MultiCategorical | Continuous, payout: object, first: float, goal: float
) -> None:
    torch.manual_seed(0)
    spec = make(vector(), action=action)
    algorithm = make_update(spec, PpoConfig(hidden=32, n_epochs=4), LearnerConfig(learning_rate=3e-3, max_grad_norm=0.5))
    policy, random, rewards = Acting(algorithm.spec, algorithm.config, algorithm.policy), np.random.default_rng(0), []
    policy.assign(0)
    for _ in range(20):
        rollout, reward = bandit(algorithm, policy, random, payout)
        rewards.append(reward)
        algorithm.update(rollout)
    assert rewards[0] < first and np.mean(rewards[-5:]) > goal
