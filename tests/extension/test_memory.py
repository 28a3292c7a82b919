"""A recurrent algorithm of someone else's package: what the learner unrolls is what the actor computed; it learns to remember."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.agent import Agent
from actors.chunker import Chunker
from headrace import load as headrace_load
from learner.algorithms.base import ActionBatch, Mode, find_algorithm, join, make_algorithm, read_algorithm
from learner.config import LearnerConfig
from learner.feed.batches import to_chunks
from learner.inference.module import Module, infer_by
from learner.inference.program import Program
from learner.updates.base import Chunks
from learner.updates.runtime import LearnerRuntime
from replay.table.layout import PRIORITY
from tests.extension.stranger.recall import Recall
from tests.extension.test_environments import headrace
from tests.learner.examples import CPU, vector
from tests.learner.rollouts import observe, to_arrays
from transport.experience import Categorical, Chunk, Columns, ExperienceSpec, read_spec

R2D2 = "stranger.recurrent:R2d2"
ENV = "stranger.recall:Recall"
STREAMS, STEPS = 3, 60
Values = list[np.ndarray]


def made(stack: int = 1, **options: Any) -> tuple[Any, ExperienceSpec, Any]:
    """The algorithm, a run's spec, and what learns."""
    torch.manual_seed(0)
    algorithm = make_algorithm(read_algorithm({"name": R2D2, "hidden": 8, "memory_width": 6, "n_step": 2, **options}))
    env = ExperienceSpec((vector(size=3),), Categorical(2), 8, stack)
    spec = join(env, algorithm.needs(env))
    return algorithm, spec, algorithm.update(spec, LearnerRuntime(LearnerConfig(batch_size=64, learning_rate=3e-3), CPU))


class Telling:
    """Acts as the policy does; each row keeps all Q-values, which leave with the chunk."""

    def __init__(self, policy: Any, inference: Any) -> None:
        self.policy, self.inference, self.state = policy, inference, policy.state
        self.told: Values = []

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        chosen: ActionBatch = self.policy.act(observation, state, mode)
        return chosen._replace(columns=chosen.columns | {"q/all": self.inference(observation, state)[0]})

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        self.policy.assign(seed, offset, count, total)

    def annotate(self, columns: Columns) -> Columns:
        self.told.extend(columns["q/all"])
        annotated: Columns = self.policy.annotate(columns)
        return annotated


def acted(spec: ExperienceSpec, acting: Any, truncated: float) -> tuple[list[Chunk], list[Chunk]]:
    """Chunks as actors make them, and those that leave at the end. `truncated`: the share of episodes that end so."""
    acting.assign(5, 0, STREAMS, STREAMS)
    random = np.random.default_rng(4)
    agent, chunker = Agent(spec, acting, STREAMS), Chunker(spec, STREAMS, 1e9, annotate=acting.annotate)
    chunks: list[Chunk] = []
    observation = observe(spec, STREAMS, random)
    agent.reset(observation)
    for _ in range(STEPS):
        action, columns = agent.act("explore")
        ended = random.random(STREAMS) < 0.2
        terminated = ended & (random.random(STREAMS) >= truncated)
        last, following = observe(spec, STREAMS, random), observe(spec, STREAMS, random)
        reward = random.standard_normal(STREAMS).astype(np.float32)
        chunks += chunker.step(observation, action, reward, terminated, ended & ~terminated, last, 1, columns)
        observation = {name: np.where(ended[:, None], following[name], last[name]) for name in last}
        agent.push(observation, ended)
    return chunks, list(chunker.drain(observation, 1))


def lived(algorithm: Any, spec: ExperienceSpec, policy: Any) -> tuple[Chunks, Values]:
    """Chunks, and the Q-values by which each of their rows was acted, [rows, n]."""
    inference = infer_by(policy)
    acting = Telling(algorithm.acting(spec, inference), inference)
    chunks = [chunk for some in acted(spec, acting, truncated=0.5) for chunk in some]
    assert len(chunks) == len(acting.told) > 2 * STREAMS
    resting = to_arrays(spec, chunks, harsh=False)
    return to_chunks({name: resting[name] for name in resting if name != PRIORITY}, spec, CPU), acting.told


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("burn_in", [0, 5])
@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_what_the_update_unrolls_is_what_the_actor_computed(memory: str, burn_in: int, stack: int) -> None:
    algorithm, spec, update = made(stack, memory=memory, burn_in=burn_in)
    batch, told = lived(algorithm, spec, update.policy)
    with torch.no_grad():
        found = update.values(update.policy, batch)  # [L + n, B, actions]
    compared = ended = 0
    for b, q in enumerate(told):
        for row in range(spec.history, len(q)):
            if batch.valid[b, row]:
                np.testing.assert_allclose(found[row - spec.history, b], q[row], rtol=1e-4, atol=1e-5)
                compared += 1
                ended += int(batch.episode_step[b, row] == 0)
    assert compared >= STREAMS * STEPS and ended > 10
    assert batch.extras["memory/h"].shape == (len(told), 6) and batch.extras["memory/h"].any()


def test_actors_need_no_torch_for_it_and_the_module_does_as_well() -> None:
    _, spec, update = made(memory="lstm")
    inference, module = infer_by(update.policy), Module(update.policy)
    assert isinstance(inference, Program)
    state = {name: np.zeros((4, *shape), np.float32) for name, shape in inference.state.items()}
    random, theirs = np.random.default_rng(0), state
    for _ in range(10):
        seen = {"vector": random.standard_normal((4, 1, 3)).astype(np.float32)}
        (q, state), (also, theirs) = inference(seen, state), module(seen, theirs)
        np.testing.assert_allclose(q, also, rtol=1e-4, atol=1e-5)
        for name, values in state.items():
            np.testing.assert_allclose(values, theirs[name], rtol=1e-4, atol=1e-5)


def test_the_burn_in_teaches_nothing_and_micro_batches_change_nothing() -> None:
    algorithm, spec, update = made(memory="gru", burn_in=4)
    batch, _ = lived(algorithm, spec, update.policy)
    rows = {name: rows.clone().requires_grad_() for name, rows in batch.observation.items()}
    update.values(update.policy, batch._replace(observation=rows)).square().sum().backward()
    gradient = rows["vector"].grad
    assert gradient is not None and not gradient[:, : spec.history].any() and gradient[:, spec.history :].any()

    outcomes = []
    for parts in (1, 4):
        torch.manual_seed(0)
        runtime = LearnerRuntime(LearnerConfig(batch_size=64, learning_rate=3e-3, accumulation=parts), CPU)
        again = algorithm.update(spec, runtime)
        outcomes.append((again.update(batch), [parameter.detach() for parameter in again.policy.parameters()]))
    (one, weights), (several, others) = outcomes
    assert one.priorities is not None and several.priorities is not None and one.priorities.shape == (len(batch.length),)
    torch.testing.assert_close(one.priorities, several.priorities)
    torch.testing.assert_close(one.metrics["loss"], several.metrics["loss"])
    torch.testing.assert_close(weights, others, rtol=1e-3, atol=1e-4)


def test_a_new_sequences_priority_is_that_of_an_update_by_the_same_weights() -> None:
    """Where its items do not bootstrap from an episode's last observation, which the actor never values."""
    algorithm, spec, update = made(memory="lstm", burn_in=3, double=False)
    chunks, _ = acted(spec, algorithm.acting(spec, infer_by(update.policy)), truncated=0.0)
    sent = np.array([chunk.columns[PRIORITY] for chunk in chunks])
    outcome = update.update(to_chunks(to_arrays(spec, chunks, harsh=False), spec, CPU))
    assert (sent > 0).all()
    np.testing.assert_allclose(sent, outcome.priorities, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.flow
@pytest.mark.timeout(400)
def test_it_learns_to_remember_through_up_and_is_evaluated(tmp_path: Path) -> None:
    """The cue is gone when the action counts: without memory one of three is right."""
    options = """
    --algorithm.hidden 32 --algorithm.memory-width 32 --algorithm.n-step 2 --algorithm.gamma 0.9
    --algorithm.target-update-interval 50 --replay.capacity 20_000 --replay.min-size 1_000
    --replay.samples-per-insert-low 15 --replay.samples-per-insert-high 20 --learner.updates-per-epoch 5
    --learner.publish-epochs 1 --actors 1 --actors.chunk-seconds 1 --deploy.record-seconds 1 --device cpu --run mine
    """.split()
    headrace(tmp_path, "up", "--env", ENV, "--algo", R2D2, *options, "--total-steps", "18_000", seconds=380)
    run = tmp_path / "runs" / "mine"
    spec = read_spec((run / "spec.json").read_bytes())
    assert (spec.unit, spec.burn_in, spec.chunk_length) == ("sequences", 4, 16)
    assert [(column.name, column.once) for column in spec.extras] == [
        ("memory/h", True),
        ("memory/c", True),
        (PRIORITY, True),
    ]
    records = [json.loads(line) for line in (run / "metrics" / "replay.jsonl").read_text().splitlines()]
    assert 14 < records[-1]["samples_per_insert"] < 21 and not records[-1].get("rejected")
    lines = headrace(tmp_path, "eval", "mine", "--episodes", "200", "--json").splitlines()
    figures = json.loads(next(line for line in lines if line.startswith("{")))
    assert figures["success_rate"] > 0.9, figures
    policy, env, right = headrace_load(run), Recall(), 0.0
    for seed in range(60):
        seen, _ = env.reset(seed=seed)
        policy.reset()
        ended = False
        while not ended:
            seen, reward, ended, _, _ = env.step(policy.predict(seen))
            right += reward
    assert right > 54, "a loaded policy remembers within an episode, and forgets at a reset"
    done = json.loads((run / "status.json").read_text())["steps"]
    resumed = headrace(tmp_path, "up", *options, "--total-steps", str(done + 1_000))
    assert "resuming run mine" in resumed and "items and all priorities are restored" in resumed


def test_it_is_found_without_torch_and_says_what_it_wants() -> None:
    found = find_algorithm(R2D2)
    env = ExperienceSpec((vector(size=3),), Categorical(2), 8)
    assert found(found.Config(burn_in=7)).needs(env).burn_in == 7  # type: ignore[call-arg]


@pytest.mark.flow
def test_a_batch_that_holds_no_sequence_is_refused_before_the_launch(tmp_path: Path, said: Callable[..., str]) -> None:
    refused = said("up", "--env", ENV, "--algo", R2D2, "--learner.batch-size", "15", status=2)
    assert "--learner.batch-size 15 holds no sequence: each has 16 steps (--env.chunk-length)" in refused
    assert "Traceback" not in refused and not (tmp_path / "runs").exists()
