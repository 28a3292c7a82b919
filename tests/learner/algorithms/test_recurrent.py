"""What PPO with a memory and R2D2 have in common: numpy acts for them, and a stopped learner goes on as one that was not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.base import Mode
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.r2d2.config import R2d2Config
from learner.inference.module import Module, infer_by
from learner.inference.program import Program
from tests.learner.algorithms.sequences import MASK, spec_of
from tests.learner.examples import algorithm_of, vector
from transport.experience import ACTION_MASK, Categorical, Columns

CONFIGS: dict[str, Any] = {
    "ppo, lstm": PpoConfig(hidden=8, memory="lstm", memory_width=6, n_epochs=2, minibatches=2),
    "ppo, gru": PpoConfig(hidden=8, memory="gru", memory_width=6),
    "r2d2, lstm": R2d2Config(hidden=8, memory_width=6, target_update_interval=3),
    "r2d2, gru": R2d2Config(hidden=8, memory="gru", memory_width=6, dueling=False),
}
MODES: tuple[Mode, ...] = ("explore", "stochastic", "greedy", "random")


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_numpy_acts_as_the_module_does(config: Any) -> None:
    torch.manual_seed(0)
    policy = algorithm_of(config).policy(spec_of(config))
    inference, module = infer_by(policy), Module(policy)  # type: ignore[arg-type]
    assert isinstance(inference, Program)
    random, state = np.random.default_rng(0), {name: np.zeros((4, 6), np.float32) for name in inference.state}
    theirs = state
    for _ in range(20):
        seen = {"vector": 3 * random.standard_normal((4, 1, 3)).astype(np.float32)}
        before = {name: values.copy() for name, values in state.items()}
        (output, after), (expected, theirs) = inference(seen, state), module(seen, theirs)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
        for name, values in after.items():
            np.testing.assert_allclose(values, theirs[name], rtol=1e-4, atol=1e-5)
            assert np.array_equal(state[name], before[name]), "the state before is kept: it is recorded"
        state = after


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_no_mode_of_acting_chooses_a_forbidden_action(config: Any, mode: Mode) -> None:
    torch.manual_seed(0)
    spec = spec_of(config, vector(size=3), MASK, action=Categorical(3, masked=True))
    algorithm = algorithm_of(config)
    acting = algorithm.acting(spec, infer_by(algorithm.policy(spec)))
    acting.assign(1, 0, 200, 200)
    random, state = np.random.default_rng(0), {name: np.zeros((200, 6), np.float32) for name in acting.state}
    for _ in range(5):
        mask = (random.random((200, 1, 3)) < 0.5).astype(np.uint8)
        seen: Columns = {"vector": random.standard_normal((200, 1, 3)).astype(np.float32), ACTION_MASK: mask}
        chosen = acting.act(seen, state, mode)
        state = chosen.state
        allowed = (mask[:, 0] != 0) | ~mask[:, 0].any(1, keepdims=True)
        assert allowed[np.arange(200), chosen.action].all()
