"""What actors run, against the network that it was made from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learner.algorithms.dqn.acting import BEST_VALUE, TAKEN_VALUE
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.algorithms.exploration import epsilon_ladder
from learner.networks.base import PolicyModule
from learner.weights.checkpoint import load_into
from tests.learner.acting import Acting
from tests.learner.examples import image, make_observation, make_spec, vector
from transport.experience import ExperienceSpec, observed

QUANTISED = observed("angle", (3,), "|u1", 0.02, -2.5)
SPECS = {
    "vector": make_spec(vector()),
    "stacked vectors": make_spec(vector(), QUANTISED, n=5, stack=3),
    "small image": make_spec(image(shape=(3, 13, 13))),
    "image and vector": make_spec(image(), vector(), stack=4),
}


def made(spec: ExperienceSpec, config: DqnConfig) -> PolicyModule:
    torch.manual_seed(1)
    network = q_network(spec, config)
    with torch.no_grad():
        for parameter in network.parameters():  # biases, too
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return network


def arrays(spec: ExperienceSpec, count: int) -> dict[str, np.ndarray]:
    return {name: rows.numpy() for name, rows in make_observation(spec.fields, (count, spec.stack)).items()}


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("network", ["auto", "mlp", "linear"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_it_values_actions_as_its_network_does(spec: ExperienceSpec, network: str, normalise: bool, dueling: bool) -> None:
    config = DqnConfig(hidden=16, network=network, dueling=dueling, normalize_observation=normalise, normalize_reward=normalise)
    torso = made(spec, config)
    if normalise:
        torso.head[-1].scale.fill_(3.0)  # type: ignore[index, operator, union-attr]
        rows = make_observation(spec.fields, (40,))
        torso.body.inputs.observe(rows, torch.arange(40))
    seen = arrays(spec, 7)
    before = {name: rows.copy() for name, rows in seen.items()}
    acted = Acting(spec, config, torso).act(seen, "greedy")
    with torch.no_grad():
        q = torso({name: torch.from_numpy(rows) for name, rows in seen.items()}).numpy()
    np.testing.assert_allclose(acted.columns[TAKEN_VALUE], q.max(1), rtol=1e-4, atol=1e-4)
    assert acted.action.tolist() == q.argmax(1).tolist()
    assert {column.dtype for column in acted.columns.values()} == {np.dtype(np.float32)} and acted.action.dtype == np.int64
    assert all(np.array_equal(rows, before[name]) for name, rows in seen.items()), "what was observed is not its to change"


def test_batch_normalisation_uses_running_statistics() -> None:
    spec = make_spec(image())
    config = DqnConfig(hidden=16, network="nature_batchnorm")
    policy = Acting(spec, config, made(spec, config))
    seen = arrays(spec, 6)
    alone = {name: rows[:1] for name, rows in seen.items()}
    among, by_itself = (policy.act(rows, "greedy").columns[TAKEN_VALUE] for rows in (seen, alone))
    np.testing.assert_allclose(among[:1], by_itself, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("network", ["nature", "nature_batchnorm"])
def test_in_bfloat16_it_values_actions_nearly_the_same_and_follows_weights_when_told(network: str) -> None:
    config = DqnConfig(hidden=64, network=network)
    spec = make_spec(image(), stack=4)
    followed, newer = made(spec, config), q_network(spec, config)
    seen = arrays(spec, 6)
    policy, exact = Acting(spec, config, followed, "bfloat16"), Acting(spec, config, newer)
    load_into(followed, {name: value.numpy() for name, value in newer.state_dict().items()})
    expected = exact.answers(seen)
    spread = np.abs(expected).max()
    assert not np.allclose(policy.answers(seen), expected, atol=0.02 * spread)
    policy.refresh()
    found = policy.answers(seen)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=0.02 * spread)
    assert not np.array_equal(found, expected), "it did not act in bfloat16"


def test_each_row_explores_with_its_own_epsilon_and_gets_the_value_of_what_it_does() -> None:
    spec, config = make_spec(vector(), n=4), DqnConfig(hidden=16, epsilon_base=0.5, epsilon_power=9.0)
    policy = Acting(spec, config, made(spec, config))
    seen = {"vector": np.ones((4_000, 1, 4), np.float32)}
    greedy = policy.act(seen, "explore")
    assert np.array_equal(greedy.action, policy.act(seen, "greedy").action), "it explored before it had a place"
    results = []
    for _ in range(2):
        policy.assign(7, count=4_000)
        results.append(policy.act(seen, "explore"))
    first, again = results
    assert np.array_equal(first.action, again.action)
    changed = first.action != greedy.action
    ladder = epsilon_ladder(0, 4_000, 4_000, 0.5, 9.0)
    for rows in (slice(0, 500), slice(500, 1_000), slice(3_000, 4_000)):
        assert changed[rows].mean() == pytest.approx(ladder[rows].mean() * 3 / 4, abs=0.05)
    stochastic = policy.act(seen, "stochastic").action != greedy.action
    assert stochastic.mean() == pytest.approx(0.05 * 3 / 4, abs=0.015)
    np.testing.assert_array_equal(first.columns[BEST_VALUE], greedy.columns[TAKEN_VALUE])
    assert (first.columns[TAKEN_VALUE][changed] < first.columns[BEST_VALUE][changed]).all()
    np.testing.assert_array_equal(first.columns[TAKEN_VALUE][~changed], first.columns[BEST_VALUE][~changed])
    assert {0, 1, 2, 3} == set(policy.act(seen, "random").action.tolist())
