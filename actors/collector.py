"""Steps environments under a policy and cuts the steps into chunks: an actor without its connections to other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from actors.agent import Agent, policy_seed
from actors.chunker import Chunker
from actors.config import ActorSettings
from actors.envs.foreign.actions import unbounded
from actors.envs.vector import Make, VectorEnv
from actors.episodes import Episode, info_means, successes
from actors.hindsight import GoalReward, Hindsight
from learner.algorithms.arithmetic.masks import allowed_actions
from learner.algorithms.base import Algorithm, Explanation
from learner.inference.base import Inference
from learner.weights.follow import WeightsInUse
from transport.experience import PERSON, Chunk, Columns, Continuous, bounded
from transport.messages.control import Assignment
from transport.metrics import INFO, Metrics
from transport.text import say

UNTRAINED_VERSION = 0
RECENT_EPISODES = 100  # whose mean is reported


class View(NamedTuple):
    """What a policy is about to act on: its stacked observations by name, and the episode's steps and sum of rewards so far."""

    observation: Columns
    step: int
    total_reward: float
    explanation: Explanation | None
    action_names: list[str]


class Collector:
    """Environments, the acting policy and the chunker. Call `reset` once, then `step`."""

    def __init__(
        self,
        settings: ActorSettings,
        algorithm: Algorithm,
        inference: Inference,
        place: Assignment,
        metrics: Metrics,
        clock: Callable[[], float],
        beat: Callable[[], None] = lambda: None,
        raised: Callable[[str], None] | None = None,
        environments: int = 0,
        make: Make | None = None,
        recent: deque[Episode] | None = None,
    ) -> None:
        """Makes the environments. `clock` says, in seconds, when chunks become late; `beat`, `raised` and `make` as VectorEnv has
        them; `environments`: their number, 0 for the usual one of an actor; `recent`: the episodes that others have ended, too.
        Raises EnvError."""
        self.spec, self._metrics, self._beat = settings.spec, metrics, beat
        spec, self._streams = settings.spec, environments or settings.process.actors.envs_per_actor
        seeds = range(place.first_seed, place.first_seed + self._streams)
        worker = settings.index + 1
        self.env = VectorEnv(settings.env, spec, self._streams, seeds, make=make, beat=beat, raised=raised, worker=worker)
        self.policy = algorithm.acting(spec, inference)
        self.agent = Agent(spec, self.policy, self._streams)
        self._random_until = UNTRAINED_VERSION if algorithm.begins_random else -1
        self.take_place(place)
        seed = policy_seed(settings.assignment.first_seed, stream=2)
        self._hindsight = Hindsight(spec, GoalReward(self.env.compute_reward), seed) if spec.goals else None
        # Rollouts are used once and as a whole, so their chunks should arrive together.
        staggered, seconds = spec.unit != "rollouts", settings.process.actors.chunk_seconds
        self.chunker = Chunker(spec, self._streams, seconds, clock, annotate=self._annotate, staggered=staggered)
        self._observation: Columns = {}  # to act on next
        self._recent: deque[Episode] = deque(maxlen=RECENT_EPISODES) if recent is None else recent
        self._unknown_info = set[str]()  # keys of info that were reported to be missing

    def take_place(self, place: Assignment) -> None:
        """Sets exploration by its place among all environments, with immediate effect, and the seeds of the next episodes."""
        self.env.reseed(range(place.first_seed, place.first_seed + self._streams))
        self.policy.assign(policy_seed(place.first_seed), place.offset, self._streams, place.environments)
        self.take_level(place)

    def take_level(self, place: Assignment) -> None:
        """Sets the level of the next episodes, if there is a curriculum."""
        self._place = place
        self._level_episodes = self._level_successes = 0
        if self.env.levels:
            self._level = min(place.level, self.env.levels - 1)
            self.env.set_level(self._level)

    def reset(self) -> None:
        """Starts an episode in all environments."""
        self._observation = self.env.reset()
        self.chunker.seeded(self.env.seeded)
        self.agent.reset(self._observation)

    def step(self, follower: WeightsInUse, person: np.ndarray | np.integer | None = None) -> list[Chunk]:
        """One step of every environment under the weights of `follower`, and the chunks that are complete with it. `person`: the
        action that a person has chosen for the first environment, within its bounds."""
        metrics, version, observation = self._metrics, follower.version, self._observation
        with metrics.phase("act"):
            if version <= self._random_until:
                action, columns = self.agent.act("random")
            else:
                action, columns = self.agent.act("explore")
                version = follower.version  # an inference process says with the outputs which version computed them
        versions: int | np.ndarray = version
        if person is not None:
            action, versions = self._steered(action, version, person)
        with metrics.phase("env_step"):
            step = self.env.step(bounded(self.spec, action))
        with metrics.phase("insert"):
            done, last = (step.reward, step.terminated, step.truncated), step.final_observation
            chunks = []
            for chunk in self.chunker.step(observation, action, *done, last, versions, columns):
                chunks.append(chunk)
                self._beat()  # to copy a thousand large ones takes seconds
            self.chunker.seeded(self.env.seeded)
            self.agent.push(step.observation, step.terminated | step.truncated)
        metrics.count("steps", len(action))
        metrics.count("episodes", len(step.episodes))
        self._recent.extend(step.episodes)
        if self.env.levels:
            at_level = [episode.success for episode in step.episodes if episode.level == self._level]
            self._level_episodes += len(at_level)
            self._level_successes += sum(map(bool, at_level))
        self._observation = step.observation
        return chunks

    def _steered(self, action: np.ndarray, version: int, person: np.ndarray | np.integer) -> tuple[np.ndarray, np.ndarray]:
        """Actions and versions [K] with the first action a person's. One that is forbidden now stays the policy's."""
        versions, allowed = np.full(len(action), version), allowed_actions(self.spec, self.agent.stacked)
        if allowed is not None and not allowed[0, person]:
            return action, versions
        action = action.copy()
        action[0] = unbounded(self.spec.action, np.asarray(person)) if isinstance(self.spec.action, Continuous) else person
        versions[0] = PERSON
        self._metrics.count("human_steps")
        return action, versions

    def steerable(self) -> Collector:
        """What a person can steer. Raises EnvError where there is nothing."""
        return self

    def flush(self) -> Iterable[Chunk]:
        """Cuts what is ready of every stream now."""
        return self.chunker.flush()

    def drain(self, version: int) -> Iterable[Chunk]:
        """Ends every stream: the remaining chunks. No step follows."""
        return self.chunker.drain(self._observation, version)

    def look(self) -> View:
        """What the policy is about to act on in the first environment. The policy's state stays as it is."""
        names: list[str] = []
        try:
            if (explanation := self.agent.explain()) is not None:
                names = self.env.action_names
        except Exception as error:  # in a user's code; a look must not end the actor
            say(f"cannot explain its actions: {type(error).__name__}: {error}")
            explanation = None
        seen = {field.name: self.agent.stacked[field.name][0] for field in self.spec.visible}
        return View(seen, *self.env.progress(0), explanation, names)

    def close(self) -> None:
        self.env.close()

    def measure(self) -> None:
        """Sets gauges before each metrics record."""
        metrics = self._metrics
        if self.env.levels:
            metrics.gauge("levels", self.env.levels)
            metrics.gauge("level", self._level)
            metrics.gauge("level_episodes", self._level_episodes)
            metrics.gauge("level_successes", self._level_successes)
        metrics.gauge("environment_offset", self._place.offset)
        metrics.gauge("environments", self._place.environments)
        if self.env.broken:
            if not metrics.value("broken_episodes"):
                why = "an observation or reward was not finite, or the environment failed"
                say(f"{why}: its episode was truncated before that step, and so will others be")
            metrics.count("broken_episodes", self.env.broken - metrics.value("broken_episodes"))
        for key in sorted(self.env.unknown_info - self._unknown_info):
            say(f"env.info_keywords: info has no number {key!r} at the end of an episode")
        self._unknown_info |= self.env.unknown_info
        if self._recent:
            metrics.gauge("episode_return", float(np.mean([episode.total_reward for episode in self._recent])))
            metrics.gauge("episode_length", float(np.mean([episode.length for episode in self._recent])))
            metrics.gauge("episode_score", float(np.mean([episode.score for episode in self._recent])))
            for name, mean in info_means(self._recent).items():
                metrics.gauge(f"{INFO}{name}", mean)
            succeeded = successes(self._recent, self.env.reports_success)
            if succeeded is not None:
                metrics.gauge("success_rate", float(np.mean(succeeded)))

    def _annotate(self, columns: Columns) -> Columns:
        return self.policy.annotate(columns if self._hindsight is None else self._hindsight(columns))
