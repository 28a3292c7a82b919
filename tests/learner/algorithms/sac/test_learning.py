"""Soft actor-critic with hindsight on a goal environment with sparse rewards: from a table, without processes."""

from __future__ import annotations

import numpy as np
import torch

from actors.agent import Stack
from actors.chunker import Chunker
from actors.config import EnvConfig
from actors.envs.make import make_env
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from actors.episodes import Episode
from actors.hindsight import GoalReward, Hindsight
from learner.algorithms.base import Mode, Needs
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.feed.batches import to_device
from replay.client.base import SampledBatch
from replay.config import ReplayConfig
from replay.table.layout import layout
from replay.table.ring import Ring
from tests.learner.acting import Acting
from tests.learner.examples import CPU, make_update
from transport.experience import ExperienceSpec

ENV = EnvConfig(id="tests.actors.toy_envs:Plane", chunk_length=16)
ALGORITHM = SacConfig(gamma=0.95, tau=0.02, hidden=32, temperature_rate=1e-3, clip_targets=True)
LEARNER = LearnerConfig(batch_size=128, learning_rate=2e-3, adam_epsilon=1e-8, max_grad_norm=1e3)


class World:
    """Four environments under one policy; what happens goes into a table."""

    def __init__(self, spec: ExperienceSpec, policy: Acting) -> None:
        self.spec, self.policy = spec, policy
        self.env, self.stack = VectorEnv(ENV, spec, 4, range(4)), Stack(spec, 4)
        annotate = Hindsight(spec, GoalReward(self.env.compute_reward), 0)
        self.chunker = Chunker(spec, 4, 1e9, annotate=annotate)
        self.table = Ring(spec, ReplayConfig(capacity=10_000, min_size=1, selector="uniform"), 0)
        arrangement = layout(spec, LEARNER.batch_size)
        self.slot = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
        self.observation = self.env.reset()
        self.stack.reset(self.observation)

    def step(self, mode: Mode) -> list[Episode]:
        action = self.policy.act(self.stack.stacked, mode).action
        step = self.env.step(self.spec.action.bounded(action))  # type: ignore[union-attr]
        done, last = (step.reward, step.terminated, step.truncated), step.final_observation
        for chunk in self.chunker.step(self.observation, action, *done, last, 0, {}):
            self.table.insert(chunk)
        self.stack.push(step.observation, step.terminated | step.truncated)
        self.observation = step.observation
        return step.episodes


def test_a_point_finds_its_goals_within_1200_steps() -> None:
    torch.manual_seed(0)
    spec = experience_spec(make_env(ENV), ENV, "none", Needs(goals=ALGORITHM.hindsight))
    algorithm = make_update(spec, ALGORITHM, LEARNER)
    world = World(spec, Acting(spec, ALGORITHM, algorithm.policy))
    world.policy.assign(0, 4)
    for _ in range(75):
        world.step("random")
    for _ in range(225):
        world.step("explore")
        for _ in range(2):
            world.table.sample(world.slot)
            algorithm.update(to_device(SampledBatch(1, 0, world.slot), spec, CPU))
    episodes: list[Episode] = []
    while len(episodes) < 104:  # the first four began by exploring
        episodes += world.step("greedy")
    assert np.mean([bool(episode.success) for episode in episodes[4:]]) >= 0.9
