"""What PPO with a memory and R2D2 have in common: numpy acts for them, and a stopped learner goes on as one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.base import Mode
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.r2d2.config import R2d2Config
from learner.config import LearnerConfig
from learner.inference.module import Module, infer_by
from learner.inference.program import Program
from learner.saving import resume
from learner.weights.checkpoint import Checkpoints
from tests.learner.algorithms.sequences import MASK, batch_of, collect, spec_of
from tests.learner.examples import algorithm_of, make_update, vector
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


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_learner_that_was_stopped_goes_on_bit_for_bit(config: Any, tmp_path: Path) -> None:
    spec, learner = spec_of(config), LearnerConfig(batch_size=64, learning_rate=1e-2)

    def begin() -> Any:
        return make_update(spec, config, learner)

    torch.manual_seed(3)
    straight = begin()
    batch = batch_of(spec, collect(straight)[0], harsh=False)
    straight.update(batch)
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.write(1, *resume.gather(straight, straight.optimiser.process, {}, {"epoch": "1"}))
    for _ in range(3):
        straight.update(batch)
    torch.manual_seed(99)
    resumed = begin()
    found = checkpoints.newest(pytest.fail)
    assert found is not None
    resume.restore(resumed, resumed.optimiser.process, found[1], found[2])
    for _ in range(3):
        resumed.update(batch)
    assert resumed.counters == straight.counters
    for name, module in straight.modules.items():
        theirs = resumed.modules[name].state_dict()
        assert all(torch.equal(value, theirs[key]) for key, value in module.state_dict().items())
