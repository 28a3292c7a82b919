"""`python -m actors.evaluation.evaluator RUN_DIR`: the evaluator. It measures the newest weights while the run goes on, and keeps
the best.

It has its own environments and seeds, and acts greedily. To leave the processor to the other processes, it has a low priority,
and it sleeps to keep its share of one core below `evaluator.core_share`. Its first two seconds of CPU time are free, because a
person waits for the first figures. A long evaluation ends early, with fewer episodes.
When the run has reached `--total-steps` or `--stop-after`, its planned end, it also measures the last weights.
"""

from __future__ import annotations

import json
import sys
import time
from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from actors.collector import UNTRAINED_VERSION
from actors.config import ActorSettings, EvaluatorConfig
from actors.envs.make import leave
from actors.envs.vector import VectorEnv
from actors.episodes import Episode
from actors.errors import EnvError, in_one_line
from actors.evaluation.evaluate import SEED_OFFSET, PolicyPlayer, environments, open_policy, play
from actors.evaluation.memory_hint import MemoryHint
from actors.evaluation.summary import figures_of
from actors.figures import EVALUATION, evaluation_line
from actors.settings import read_settings
from learner.algorithms.base import ActingPolicy
from learner.weights import checkpoint
from learner.weights.checkpoint import CheckpointError
from learner.weights.follow import WeightFollower
from transport.experience import Columns, ExperienceSpec, SpecError
from transport.lifetime import Lifetime
from transport.metrics import INFO, Record
from transport.names import UnknownName
from transport.run_dir import RunDir
from transport.system import lower_priority
from transport.text import ProgressReport, say

NAME = "evaluator"
ENVIRONMENTS = 4
OWN_SEEDS = SEED_OFFSET + 1_000  # other seeds than `headrace eval`, which must not measure `best` on the starts that selected it
LONG_SECONDS = 40.0  # an evaluation ends after this time, with the episodes that are over: some six fit into five minutes
LONG_LAST_SECONDS = 10.0  # the same of the last policy, for which a person waits
EVALUATIONS = 3  # of weights before they are the best: the highest of a hundred evaluations is partly luck
PROGRESS_SECONDS = 60.0  # between two reports about a long evaluation
SLEEP_SECONDS = 0.1  # longest sleep between two checks of the stop flag
FREE_SECONDS = 2.0  # of CPU time in the life of this process, before it keeps its share


class Throttle:
    """Keeps this process's CPU time below a share of the wall time since `begin`, once its free time is used up. Idle time before
    `begin` does not count."""

    def __init__(
        self,
        share: float,
        free: float = 0.0,
        used: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share`: of one core. `free`: seconds of CPU time that do not count. `used` and `clock` give CPU and wall seconds."""
        self._share, self._used, self._clock = share, used, clock
        self._counts_from = used() + free
        self.begin()

    def begin(self) -> None:
        self._used_before, self._began = max(self._used(), self._counts_from), self._clock()

    def sleep_seconds(self) -> float:
        """Seconds to sleep before the next step."""
        used, passed = self._used() - self._used_before, self._clock() - self._began
        return max(used / self._share - passed, 0.0)


class WatchedPlayer(PolicyPlayer):
    """The hint is given each observation that is acted on."""

    def __init__(self, spec: ExperienceSpec, policy: ActingPolicy, count: int, hint: MemoryHint) -> None:
        super().__init__(spec, policy, count)
        self._hint = hint

    def push(self, observation: Columns, ended: np.ndarray) -> None:
        super().push(observation, ended)
        self._hint.step(self.stacked, ended)


def equally_often(played: Sequence[Episode], environments: int) -> list[Episode]:
    """The first q episodes of each environment; q is the number that every one has played. All episodes that have ended by some
    time would hold too many short ones."""
    of = [[episode for episode in played if episode.env == k] for k in range(environments)]
    return [episode for episodes in zip(*of, strict=False) for episode in episodes]


def compared(figures: dict[str, Any]) -> tuple[float, float]:
    """What evaluations are compared by: the success rate, 0 where there is none, and then the return."""
    return float(figures["success_rate"] or 0.0), float(figures["return_mean"])


class Best:
    """The best weights so far: by success rate, then by return, then the newest. Several may reach the highest score of an
    environment, and a few episodes do not show which of them is more reliable. Their file stores both figures, so that a restart
    can compare."""

    def __init__(self, path: Path, about: dict[str, str]) -> None:
        """Reads the figures in the file at `path`, if it has the same `spec_digest`. `about`: metadata of new files."""
        self._path, self._about = path, about
        self.version = -1
        self._figures = (-1.0, float("-inf"))
        if not path.exists():
            return
        try:
            metadata = checkpoint.read(path)[1]
            if metadata.get("spec_digest") == about["spec_digest"]:
                self._figures = (float(metadata["success_rate"]), float(metadata["return_mean"]))
                self.version = int(metadata["policy_version"])
        except (CheckpointError, KeyError, ValueError) as error:
            say(f"{path.name} is not used: {error}")

    def reached_by(self, figures: dict[str, Any]) -> bool:
        """True if these figures are at least as good."""
        return compared(figures) >= self._figures

    def consider(self, version: int, weights: Mapping[str, np.ndarray], figures: dict[str, Any]) -> bool:
        """Writes the weights if they are at least as good as the best.

        Raises as checkpoint.write(); the previous file is then kept.
        """
        if not self.reached_by(figures):
            return False
        found = compared(figures)
        result = {"success_rate": found[0], "return_mean": found[1], "episodes": figures["episodes"], "policy_version": version}
        metadata = {name: str(value) for name, value in result.items()} | {"evaluation": json.dumps(figures)}
        checkpoint.write_listed(self._path, weights, self._about | metadata)
        self.version, self._figures = version, found
        return True


class Evaluator:
    """Evaluates the newest weights, one version after the other, and the last ones where the run has reached its planned end.
    Call `run`, which returns when the process stops."""

    def __init__(
        self,
        settings: ActorSettings,
        config: EvaluatorConfig,
        run_dir: RunDir,
        lifetime: Lifetime,
        say: Callable[[str], None] = say,
        renew: bool = True,
    ) -> None:
        """Makes the environments. `renew`: one that raises is made anew; otherwise that raises. Raises EnvError."""
        self._settings, self._config, self._run_dir, self._lifetime = settings, config, run_dir, lifetime
        self._say, self._raised = say, say if renew else None
        self._env = self._environments(min(ENVIRONMENTS, config.episodes))
        self._inference, self._policy = open_policy(run_dir, settings)
        self._hint = MemoryHint(settings.spec, self._policy)
        self._throttle = Throttle(config.core_share, FREE_SECONDS)
        self._evaluated = UNTRAINED_VERSION  # actors do not use the untrained policy, so it is not evaluated
        about = {"spec_digest": settings.spec.digest, "env": settings.env.id, "algorithm": settings.algorithm.name}
        self._best = Best(run_dir.best, about)
        seed = settings.process.seed + OWN_SEEDS + ENVIRONMENTS  # after those of the evaluation
        self._videos = None
        if config.videos:
            from actors.evaluation.video.best import open_videos  # imports OpenCV

            self._videos = open_videos(settings, config, run_dir, seed, say)

    def evaluate(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Evaluates these weights, in a process that has them, and films the best where it is time for that."""
        self._inference.load(weights)
        self._measure(version, ordered=False)
        self._film()

    def close(self) -> None:
        self._env.close()
        if self._videos is not None:
            self._videos.close()

    def run(self) -> None:
        lifetime = self._lifetime
        addresses = [self._run_dir.wait_for_endpoint(role, self._beat_while_waiting) for role in ("weights", "payload")]
        if None in addresses:
            return
        announce, payload = (str(address) for address in addresses)
        follower = WeightFollower(announce, payload, self._inference, lifetime.keys)
        lifetime.ready()
        target = None  # the newest version when the last evaluation ended; a fast learner always has a newer one than has arrived
        while not lifetime.stopping:
            follower.poll()
            target = follower.newest if target is None else min(target, follower.newest)  # lower after the learner went back
            behind = follower.version < target
            if not lifetime.paused:
                self._film()
            untrained, ordered = follower.version <= UNTRAINED_VERSION, lifetime.order is not None
            if ordered and untrained and not behind:
                lifetime.answer(False, "there are no trained weights yet")
            wanted = ordered or (follower.version != self._evaluated and not lifetime.paused)
            if untrained or behind or not wanted:
                lifetime.sleep(SLEEP_SECONDS, resting=lifetime.paused and not ordered)
                continue
            version, target = follower.version, None
            self._measure(version, ordered)
        follower.close()
        if lifetime.finishing_seconds:
            self.evaluate_last(lifetime.finishing_seconds)
        self.close()

    def _environments(self, count: int) -> VectorEnv:
        return environments(self._settings, count, self._config, OWN_SEEDS, self._lifetime.beat, self._raised)

    def _beat_while_waiting(self) -> bool:
        self._lifetime.beat()
        return self._lifetime.stopping

    def _measure(self, version: int, ordered: bool) -> None:
        """Reports the evaluation of these weights, if one came to its end. Weights that are at least as good as the best are
        evaluated again, up to EVALUATIONS times in all, and all of their episodes count; not in a pause, and not the first
        weights of a run, because a person waits for that figure."""
        played: list[Episode] = []
        figures: dict[str, Any] = {}
        for _ in range(EVALUATIONS):
            if (more := self._play(version, ordered)) is None:
                if self._lifetime.stopping:
                    break
                continue  # _play has changed to a single environment
            played += more
            figures = figures_of(self._env, played)
            if self._best.version < 0 or self._lifetime.paused or not self._best.reached_by(figures):
                break
        if figures:
            self._report(version, figures)

    def _play(self, version: int, ordered: bool) -> list[Episode] | None:
        """The episodes of one evaluation; None if it is to be begun again or the process must stop. One that an operator has
        `ordered` goes on while the run is paused.

        After LONG_SECONDS it ends, with as many episodes of each environment. If not all have played one by then, a single
        environment is used from then on: several are stepped in turn, so that each takes longer. A single one plays on until its
        episode ends, and no longer keeps `core_share`.
        """
        lifetime, metrics = self._lifetime, self._lifetime.metrics
        played: list[Episode] = []
        lifetime.answer(True, f"the evaluation of policy v{version} has begun: {self._config.episodes} episodes")
        self._throttle.begin()
        began, progress = time.monotonic(), ProgressReport(self._config.episodes, PROGRESS_SECONDS)
        until = began + LONG_SECONDS
        player = WatchedPlayer(self._settings.spec, self._policy, self._env.count, self._hint)
        for counted in play(self._env, player, self._config.episodes):
            played += counted
            metrics.count("steps", self._env.count)
            long = time.monotonic() > until
            if long and (enough := equally_often(played, self._env.count)):
                played = enough
                break
            if long and self._env.count > 1:
                self._env.close()
                self._env = self._environments(1)
                return None
            if not self._keep_share(enforced=not long):
                return None
            under_way = f"an evaluation of policy v{version} is under way: {len(played)} of {self._config.episodes} episodes"
            ordered |= lifetime.answer(True, under_way)
            while lifetime.paused and not (ordered or lifetime.stopping):
                lifetime.sleep(SLEEP_SECONDS, resting=True)
                self._throttle.begin()  # after a pause it does not run faster
                until = time.monotonic() + LONG_SECONDS
                ordered |= lifetime.answer(True, under_way)
            if lifetime.stopping:
                return None
            if progress.due:  # episodes are long, or never end
                so_far = f"{len(played)} of {self._config.episodes} episodes after {time.monotonic() - began:,.0f} s"
                self._say(f"v{version} · {so_far}{progress.left(len(played))}")
        self._evaluated = version
        return played

    def evaluate_last(self, seconds: float) -> None:
        """Evaluates the weights that the learner saved when it stopped, at full speed, because the other processes have ended.

        Without it the best weights of a short run may be early ones. After LONG_LAST_SECONDS it ends with the episodes that are
        over, or with the first of each environment. One in which these take longer than `seconds` does not count.
        """
        try:
            weights, metadata = checkpoint.read(self._run_dir.latest)
            self._inference.load(checkpoint.policy_weights(weights))
        except (OSError, CheckpointError) as error:
            self._say(f"the last policy is not evaluated: {error}")
            return
        version, began = int(metadata["policy_version"]), time.monotonic()
        if version in (UNTRAINED_VERSION, self._evaluated):
            return
        self._say(f"evaluating the last policy, v{version}, for at most {seconds:g} s")
        played: list[Episode] = []
        player = PolicyPlayer(self._settings.spec, self._policy, self._env.count)
        for counted in play(self._env, player, self._config.episodes):
            played += counted
            self._lifetime.metrics.count("steps", self._env.count)
            self._lifetime.beat()
            passed = time.monotonic() - began
            if passed > min(LONG_LAST_SECONDS, seconds) and (enough := equally_often(played, self._env.count)):
                played = enough
                break
            if passed > seconds:
                self._say(f"the last policy was not evaluated: no episode was over, and evaluator.last_seconds is {seconds:g}")
                return
        self._report(version, figures_of(self._env, played))

    def _keep_share(self, enforced: bool = True) -> bool:
        """Sleeps as long as its share of a core demands, if that is `enforced`; False if the process must stop."""
        lifetime = self._lifetime
        with lifetime.metrics.phase("rest"):
            while enforced and not lifetime.stopping and (seconds := self._throttle.sleep_seconds()):
                lifetime.sleep(min(seconds, SLEEP_SECONDS))
        lifetime.beat()
        return not lifetime.stopping

    def _film(self) -> None:
        """Keeps a video of the best policy where it is time for one. After an error there are no more."""
        if self._videos is None or not self._videos.due(self._best.version):
            return
        self._throttle.begin()
        try:
            self._videos.film(self._keep_share)
        except BdbQuit:  # of the environment, in a process that is debugged
            raise
        except Exception as error:  # rendering may fail in any way, and evaluation must go on
            self._say(f"there will be no more videos: {in_one_line(error)}")
            videos, self._videos = self._videos, None
            with suppress(Exception):  # of the environment that may have raised just now
                videos.close()

    def _report(self, version: int, figures: dict[str, Any]) -> None:
        metrics = self._lifetime.metrics
        try:
            if self._best.consider(version, self._inference.weights, figures):
                self._lifetime.record_soon()
        except (OSError, CheckpointError) as error:
            reason = getattr(error, "strerror", None) or error
            self._say(f"could not write {self._run_dir.best.name} ({reason}); the previous file is kept")
        metrics.count("rounds")
        metrics.gauge("policy_version", version)
        metrics.gauge("best_version", self._best.version)
        for figure in EVALUATION:
            if (value := figures.get(figure.name)) is not None:
                metrics.gauge(figure.name, value)
        for key, mean in figures.get("info", {}).items():
            metrics.gauge(f"{INFO}{key}", mean)
        self._say(describe(version, figures, self._best.version))
        if hint := self._hint.evaluated(figures):
            self._say(hint)


def describe(version: int, figures: dict[str, Any], best: int) -> str:
    """The log line of an evaluation."""
    spoilt = "".join(f" · {figures[f'{name}_episodes']} {name}" for name in ("broken", "idle") if figures[f"{name}_episodes"])
    return f"v{version} · {figures['episodes']} episodes · {evaluation_line(figures)}{spoilt} · best v{best}"


def no_line(record: Record) -> str:
    """No throughput line: the evaluator reports each evaluation."""
    return ""


def main() -> int:
    run_dir = RunDir(Path(sys.argv[1]))
    lower_priority()
    try:
        settings = read_settings(run_dir)
        lifetime = Lifetime(NAME, run_dir, no_line)
        Evaluator(settings, settings.process.evaluator, run_dir, lifetime).run()
    except (SpecError, EnvError, CheckpointError, UnknownName) as error:
        say(f"{NAME}: {error}")
        return 2
    lifetime.close()
    return 0


if __name__ == "__main__":
    leave(main)
