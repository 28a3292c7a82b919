"""One training after another for `headrace bench robot`: of Headrace or of a peer, their saved policies, how good those are."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tomli_w

from actors.config import EvaluatorConfig
from actors.envs.vector import VectorEnv
from actors.evaluation.evaluate import SEED_OFFSET
from benchmarks.common.processes import records
from benchmarks.common.settings import spec_of
from benchmarks.peers import saved_mlp
from benchmarks.peers.run import Peer
from deploy.children import child_environment, python_command
from deploy.config.files import Tree
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from learner.algorithms.base import make_algorithm
from learner.inference.open import open_inference
from learner.networks.describe import describe
from learner.weights.checkpoint import read
from transport.experience import bounded
from transport.run_dir import RunDir

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 60.0  # that a training has to end when it is asked to
ARMS, EPISODES = 40, 200  # of an evaluation
Act = Callable[[np.ndarray], np.ndarray]  # observations [K, features] -> actions [K, A]


class Kept(NamedTuple):
    """A policy on disk: when, in seconds from the start of its process; after how many environment steps learned from."""

    seconds: float
    steps: int
    act: Act


class Training(Protocol):
    """A training that goes on."""

    begun: float  # time.time()

    def files(self) -> list[Path]:
        """Its saved policies, oldest first."""

    def success(self) -> float:
        """Of its last episodes, which explore."""

    def ended(self) -> bool:
        """Whether it has ended by itself."""

    def end(self) -> None:
        """Asks it to, and waits."""

    def load(self, path: Path) -> tuple[int, Act]:
        """One of its files: after how many environment steps learned from, and how it acts."""


class HeadraceTraining:
    """`headrace up` in a folder of its own."""

    def __init__(self, folder: Path, settings: Tree, seconds: float) -> None:
        """Starts it, for `seconds` at most."""
        self.folder = folder
        (folder / "settings.toml").write_text(tomli_w.dumps(settings))
        self.run = RunDir(folder / "runs" / "bench")
        self._log = folder / "log"
        rest = ("--run", "bench", "--config", "settings.toml", "--stop-after", str(seconds))
        self.begun = time.time()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                python_command("deploy.cli.main", "up", *rest), stdout=log, stderr=log, cwd=folder, env=child_environment()
            )

    def files(self) -> list[Path]:
        return sorted(self.run.checkpoints.glob("epoch-*.safetensors"))

    def success(self) -> float:
        actors = [path.stem for path in self.run.metrics("actor-0").parent.glob("actor-*.jsonl")]
        newest = [found[-1] for name in actors if (found := records(self.run, name))]
        rates = [record["success_rate"] for record in newest if "success_rate" in record]
        return float(np.mean(rates)) if rates else 0.0

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float) -> None:
        """Until it has ended by itself, `seconds` at most."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end(self) -> None:
        """Raises SystemExit where it has failed."""
        if not self.ended():
            self._process.terminate()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # what it has started ends without it
            self._process.wait()
        if self._process.returncode:
            raise SystemExit(f"headrace up ended with {self._process.returncode}: {self._log.read_text()[-2000:]}")

    def load(self, path: Path) -> tuple[int, Act]:
        weights, metadata = read(path)
        steps = int(json.loads(metadata["progress"])["steps"])
        policy = {name.removeprefix("policy/"): value for name, value in weights.items() if name.startswith("policy/")}
        config = load_run_config(self.run, trusted=True)
        spec = spec_of(config)
        algorithm = make_algorithm(config.algorithm)
        inference = open_inference(algorithm, spec, describe(algorithm.policy(spec)))
        inference.load(policy)
        acting = algorithm.acting(spec, inference)

        def act(observation: np.ndarray) -> np.ndarray:
            return np.asarray(bounded(spec, acting.act({"observation": observation[:, None]}, {}, "greedy").action))

        return steps, act


class PeerTraining:
    """The peer's script."""

    def __init__(self, folder: Path, peer: Peer, settings: Tree, seconds: float) -> None:
        """Starts it, for `seconds` at most."""
        self._folder, self._peer, self._errors = folder, peer, folder / "errors"
        self.begun = time.time()
        self._process = peer.begin(settings | {"folder": str(folder), "limit_seconds": seconds}, self._errors)

    def files(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.npz"))

    def success(self) -> float:
        files = self.files()
        return saved_mlp.load(files[-1]).success if files else 0.0

    def ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """Raises PeerFailed."""
        if not self.ended():
            self._process.terminate()
        self._peer.finish(self._process, self._errors, PATIENCE_SECONDS)

    def load(self, path: Path) -> tuple[int, Act]:
        saved = saved_mlp.load(path)
        return saved.steps, saved.act


def train(training: Training, enough: Callable[[Training], bool]) -> list[Kept]:
    """Waits until there is enough or the training ends, and ends it; its saved policies, oldest first."""
    try:
        while not training.ended() and not enough(training):
            time.sleep(POLL_SECONDS)
        # Now: a training that ends writes once more, or again.
        written = [(path, path.stat().st_mtime - training.begun) for path in training.files()]
    finally:
        training.end()
    return [Kept(seconds, *training.load(path)) for path, seconds in written]


class Judge:
    """The same reserved episodes for every policy, in this process."""

    def __init__(self, config: RunConfig, episodes: int = EPISODES, arms: int = ARMS) -> None:
        self._seeds = [SEED_OFFSET + k for k in range(arms)]
        self._env = VectorEnv(config.env, spec_of(config), arms, self._seeds, EvaluatorConfig())
        self._share = -(-episodes // arms)

    def success_rate(self, act: Act, least: float) -> float:
        """Over all episodes; over those played so far, once so many have failed that `least` is out of reach."""
        self._env.reseed(self._seeds)
        seen = self._env.reset()
        left = np.full(self._env.count, self._share)
        total = int(left.sum())
        played = reached = 0
        while left.any() and played - reached <= (1 - least) * total:
            step = self._env.step(act(seen["observation"]))
            for episode in step.episodes:
                if left[episode.env]:
                    left[episode.env] -= 1
                    played, reached = played + 1, reached + bool(episode.success)
            seen = step.observation
        return reached / played


def first_time(kept: Sequence[Kept], success_rate: Callable[[Act], float], least: float) -> Kept | None:
    """The first policy that reaches `least` and is followed by another that does; None if there is none. Looks no further."""
    before: Kept | None = None
    for one in kept:
        reached = success_rate(one.act) >= least
        if reached and before is not None:
            return before
        before = one if reached else None
    return None


def rate(kept: Sequence[Kept], warm_up_seconds: float) -> float:
    """Environment steps learned from per second of the wall clock, between the first policy saved after the warm-up, which begins
    with the first of all, and the last. Raises ValueError where there are not two."""
    counted = [one for one in kept if one.seconds >= kept[0].seconds + warm_up_seconds]
    if len(counted) < 2:
        raise ValueError(f"{len(counted)} policies were saved after the warm-up, and it takes two: give --seconds more")
    return (counted[-1].steps - counted[0].steps) / (counted[-1].seconds - counted[0].seconds)


def settings_of(config: RunConfig) -> dict[str, Any]:
    """What a peer needs to do the same: the network, and how it learns."""
    algorithm, learner = config.algorithm.options, config.learner
    names = ["gamma", "gae_lambda", "clip_range", "n_epochs", "ent_coef", "vf_coef", "normalize_advantage"]
    names += ["hidden", "layers", "log_std_init"]
    found = {name: getattr(algorithm, name) for name in names}
    found |= {name: getattr(learner, name) for name in ("learning_rate", "adam_epsilon", "max_grad_norm")}
    return found | {"tolerance": config.env.options.tolerance, "minibatch": learner.batch_size // algorithm.minibatches}  # type: ignore[union-attr]
