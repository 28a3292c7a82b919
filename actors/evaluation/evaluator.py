"""`python -m actors.evaluation.evaluator RUN_DIR`: measures the newest weights while the run goes on, and keeps the best.

It has environments and seeds of its own and acts greedily. It is in nobody's way: it has a low priority, and sleeps so that
its share of one core stays below `evaluator.core_share`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from actors.actor import UNTRAINED_VERSION, ActorSettings
from actors.config import EvaluatorConfig
from actors.envs.errors import EnvError
from actors.envs.vector import Episode
from actors.evaluation.evaluate import SEED_OFFSET, environments, play, summarise
from actors.settings import read_evaluator, read_settings
from learner.algorithms.base import make_algorithm
from learner.inference.open import open_inference, run_description
from learner.weights import checkpoint
from learner.weights.checkpoint import CheckpointError
from learner.weights.follow import WeightFollower
from transport.experience import SpecError
from transport.lifetime import Lifetime, say
from transport.metrics import Record
from transport.names import UnknownName
from transport.run_dir import RunDir

NAME = "evaluator"
ENVIRONMENTS = 4
OWN_SEEDS = SEED_OFFSET + 1_000  # not those of `headrace eval`, which is to judge `best` on starts it was not chosen by
NICENESS = 5  # enough to give way; with much more it could not even stop in time on a busy machine
WORD_SECONDS = 60.0  # between two words about a long round
NAP_SECONDS = 0.1  # the longest sleep between two looks at the flag to stop


class Throttle:
    """Keeps this process's processor time below a share of the wall clock, counted from `begin` on: rest is not saved up."""

    def __init__(
        self, share: float, used: Callable[[], float] = time.process_time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`share` of one core. `used` and `clock` give seconds; tests bring their own."""
        self._share, self._used, self._clock = share, used, clock
        self.begin()

    def begin(self) -> None:
        """Counts from here."""
        self._used_before, self._began = self._used(), self._clock()

    def owed_seconds(self) -> float:
        """How long to sleep before going on."""
        used, passed = self._used() - self._used_before, self._clock() - self._began
        return max(used / self._share - passed, 0.0)


class Best:
    """The best round so far: success rate first, then return. The file says how good it is, so that a restart knows."""

    def __init__(self, path: Path, about: dict[str, str]) -> None:
        """Reads what is there, if it was made for the same `spec_digest`. `about` goes into every file written."""
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

    def consider(self, version: int, weights: Mapping[str, np.ndarray], figures: dict[str, Any]) -> bool:
        """Writes the weights if they did better than all before. Raises as checkpoint.write(); the file before is then kept."""
        success = figures["success_rate"]
        found = (0.0 if success is None else float(success), float(figures["return_mean"]))
        if found <= self._figures:
            return False
        told = {"success_rate": found[0], "return_mean": found[1], "episodes": figures["episodes"], "policy_version": version}
        checkpoint.write_listed(self._path, weights, self._about | {name: str(value) for name, value in told.items()})
        self.version, self._figures = version, found
        return True


class Evaluator:
    """Plays a round with the newest weights, held still meanwhile; then the next. `run` until the lifetime ends."""

    def __init__(self, settings: ActorSettings, config: EvaluatorConfig, run_dir: RunDir, life: Lifetime) -> None:
        """Makes the environments. Raises EnvError."""
        self._settings, self._config, self._run_dir, self._life = settings, config, run_dir, life
        self._env = environments(settings, min(ENVIRONMENTS, config.episodes), config.max_episode_steps, OWN_SEEDS)
        algorithm = make_algorithm(settings.algorithm)
        description = run_description(run_dir, algorithm, settings.spec)
        self._inference = open_inference(algorithm, settings.spec, description, threads=1)
        self._policy = algorithm.acting(settings.spec, self._inference)
        self._throttle = Throttle(config.core_share)
        about = {"spec_digest": settings.spec.digest, "env": settings.env.id, "algorithm": settings.algorithm.name}
        self._best = Best(run_dir.best, about)

    def run(self) -> None:
        """Set up, then one loop."""
        life = self._life
        addresses = [self._run_dir.wait_for_endpoint(role, self._beat_while_waiting) for role in ("weights", "payload")]
        if None in addresses:
            return
        announce, payload = (str(address) for address in addresses)
        follower = WeightFollower(announce, payload, self._inference, life.keys)
        life.ready()
        judged = UNTRAINED_VERSION  # chance acts in its place, so there is nothing to judge
        while not life.stopping:
            follower.poll()
            if follower.version <= UNTRAINED_VERSION or follower.version == judged or follower.lag:
                life.pause(NAP_SECONDS)
                continue
            judged = follower.version
            played = self._play(judged)
            if played is not None:
                self._report(judged, summarise(played))
        follower.close()
        self._env.close()

    def _beat_while_waiting(self) -> bool:
        self._life.beat()
        return self._life.stopping

    def _play(self, version: int) -> list[Episode] | None:
        """One round, or None when the process is to stop."""
        life, metrics = self._life, self._life.metrics
        played: list[Episode] = []
        self._throttle.begin()
        begun = next_word = time.monotonic()
        for counted in play(self._env, self._settings.spec, self._policy, self._config.episodes):
            played += counted
            metrics.count("steps", self._env.count)
            with metrics.phase("rest"):
                while not life.stopping and (owed := self._throttle.owed_seconds()):
                    life.pause(min(owed, NAP_SECONDS))
            life.beat()
            if life.stopping:
                return None
            if time.monotonic() >= next_word + WORD_SECONDS:  # long episodes, or ones that never end
                next_word = time.monotonic()
                say(f"v{version} · {len(played)} of {self._config.episodes} episodes after {next_word - begun:,.0f} s")
        return played

    def _report(self, version: int, figures: dict[str, Any]) -> None:
        metrics = self._life.metrics
        try:
            self._best.consider(version, self._inference.weights, figures)
        except (OSError, CheckpointError) as error:
            say(
                f"could not write {self._run_dir.best.name} ({getattr(error, 'strerror', None) or error}); the one before is kept"
            )
        metrics.count("rounds")
        metrics.gauge("policy_version", version)
        metrics.gauge("best_version", self._best.version)
        for name in ("episodes", "success_rate", "return_mean", "return_std", "length_mean", "score_mean"):
            if figures[name] is not None:
                metrics.gauge(name, figures[name])
        say(describe(version, figures, self._best.version))


def describe(version: int, figures: dict[str, Any], best: int) -> str:
    """The line of a round."""
    success = "" if figures["success_rate"] is None else f" · success {figures['success_rate']:.0%}"
    return f"v{version} · {figures['episodes']} episodes{success} · return {figures['return_mean']:,.1f} · best v{best}"


def step_back() -> None:
    """Lowers this process's priority, as far as the system knows such a thing."""
    with contextlib.suppress(OSError):
        if hasattr(os, "nice"):
            os.nice(NICENESS)
        # Where Linux shares processors between sessions first, a priority within the session means nothing. The supervisor gives
        # each process a session of its own; in a terminal's, everything else in there would be slowed as well.
        if hasattr(os, "getsid") and os.getsid(0) == os.getpid():
            Path("/proc/self/autogroup").write_text(str(NICENESS))


def silent(record: Record) -> str:
    """Between rounds there is nothing to say."""
    return ""


def main() -> int:
    """Set up, then one loop."""
    run_dir = RunDir(Path(sys.argv[1]))
    step_back()
    try:
        settings = read_settings(run_dir)
        config = read_evaluator(run_dir)
        life = Lifetime(NAME, run_dir, silent)
        Evaluator(settings, config, run_dir, life).run()
    except (SpecError, EnvError, CheckpointError, UnknownName) as error:
        say(f"{NAME}: {error}")
        return 2
    life.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
