"""`python -m actors.evaluation.snapshots REQUEST.json`: evaluates the policies that a training has saved, one after the other.
`headrace suite` starts it when a training is over.

Every policy plays the same episodes, greedily: the same environment, the same seeds, the same number, whichever library has
trained it. A policy of another library acts in a process that imports that library (pipe.py). Each evaluation appends a line to a
file when it is over. Evaluations that the file already has are not repeated.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.json import decode

from actors.agent import policy_seed
from actors.config import EnvConfig, EvaluatorConfig
from actors.envs.make import leave, make_env, read_env
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from actors.episodes import Episode
from actors.errors import EnvError
from actors.evaluation.evaluate import SEED_OFFSET, Player, PolicyPlayer, open_policy, own_stdout, play
from actors.evaluation.lines import add_line, mend, read_lines
from actors.evaluation.pipe import receive, send
from actors.settings import read_settings
from learner.weights.checkpoint import CheckpointError, unpack
from transport.experience import Columns, ExperienceSpec, SpecError
from transport.names import UnknownName
from transport.run_dir import RunDir
from transport.text import amount, plain

MOST_ENVIRONMENTS = 32
SEEDS = SEED_OFFSET + 2_000  # other seeds than those of training, of the evaluator and of `headrace eval`
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class SnapshotRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The policies and the environment of an evaluation.

    `folder` holds snapshots.jsonl: a line for each policy, with its `file`. evaluations.jsonl is written there: the same lines,
    each with its `episodes`. Either `run` is the folder of the Headrace run that trained the policies; or `act` is the command of
    the process that acts, and `env` the env section.
    """

    folder: str
    episodes: int
    run: str = ""
    env: dict[str, Any] = {}
    act: tuple[str, ...] = ()


class Policies:
    """The policies of one training. `config` and `spec` describe their environment. Inherit it."""

    config: EnvConfig
    spec: ExperienceSpec

    def load(self, path: Path, count: int) -> Player:
        """A policy from its file, for `count` environments. Raises CheckpointError, OSError."""
        raise NotImplementedError

    def close(self) -> None: ...


class RunPolicies(Policies):
    """Published weights of a Headrace run."""

    def __init__(self, run_dir: RunDir) -> None:
        """Raises SpecError, UnknownName, OSError."""
        settings = read_settings(run_dir)
        self.config, self.spec = settings.env, settings.spec
        self._inference, self._policy = open_policy(run_dir, settings)

    def load(self, path: Path, count: int) -> Player:
        self._inference.load(unpack(path.read_bytes()))
        self._policy.assign(policy_seed(SEEDS), 0, count, count)
        return PolicyPlayer(self.spec, self._policy, count)


class PeerPolicies(Policies):
    """Policies of another library, which act in a process of their own."""

    def __init__(self, env: dict[str, Any], command: tuple[str, ...]) -> None:
        """Raises EnvError."""
        self.config = read_env(env)
        example = make_env(self.config)
        try:
            self.spec = experience_spec(example, self.config, "none")
        finally:
            example.close()
        if len(self.spec.fields) != 1:
            raise EnvError(f"an observation of {self.config.id} has several arrays, and a policy of another library takes one")
        variables = os.environ | dict.fromkeys(ONE_THREAD, "1")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)

    def load(self, path: Path, count: int) -> Player:
        send(self._process.stdin, {"load": str(path)})  # type: ignore[arg-type]
        return PeerPlayer(self._process)

    def close(self) -> None:
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]
        self._process.wait()


class PeerPlayer:
    """A player that asks another process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._observation = np.empty(0)

    def reset(self, observation: Columns) -> None:
        (self._observation,) = observation.values()

    def push(self, observation: Columns, ended: np.ndarray) -> None:
        (self._observation,) = observation.values()

    def actions(self) -> np.ndarray:
        """Raises OSError if the process has ended."""
        send(self._process.stdin, {}, self._observation)  # type: ignore[arg-type]
        answer = receive(self._process.stdout)  # type: ignore[arg-type]
        if answer is None or answer[1] is None:
            raise OSError("the process that acts has ended")
        return answer[1]


def evaluate(policies: Policies, path: Path, episodes: int) -> list[Episode]:
    """The episodes of one policy, in the order of their environments. Environments are made for each evaluation, so that it does
    not depend on the one before it. Raises EnvError, CheckpointError, OSError."""
    count = min(episodes, MOST_ENVIRONMENTS)
    env = VectorEnv(policies.config, policies.spec, count, range(SEEDS, SEEDS + count), EvaluatorConfig())
    try:
        played = [episode for ended in play(env, policies.load(path, count), episodes) for episode in ended]
    finally:
        env.close()
    return sorted(played, key=lambda episode: episode.env)


def figures_of(played: list[Episode]) -> dict[str, list[Any]]:
    """The figures of single episodes: return, length; score and success where the environment has them."""
    found: dict[str, list[Any]] = {
        "return": [round(episode.total_reward, 6) for episode in played],
        "length": [episode.length for episode in played],
    }
    if any(episode.score != episode.total_reward for episode in played):
        found["score"] = [round(episode.score, 6) for episode in played]
    if any(episode.success is not None for episode in played):
        found["success"] = [bool(episode.success) and not episode.broken for episode in played]
    return found


def run(request: SnapshotRequest) -> None:
    """Evaluates the policies that evaluations.jsonl lacks, and prints a line after each.

    Raises EnvError, CheckpointError, SpecError, UnknownName, OSError.
    """
    folder = Path(request.folder)
    wanted, out = list(read_lines(folder / "snapshots.jsonl")), folder / "evaluations.jsonl"
    mend(out)
    done = sum(1 for _ in read_lines(out))
    if done == len(wanted):
        return
    policies = PeerPolicies(request.env, request.act) if request.act else RunPolicies(RunDir(Path(request.run)))
    try:
        for number, snapshot in enumerate(wanted[done:], done + 1):
            played = evaluate(policies, folder / snapshot["file"], request.episodes)
            add_line(out, snapshot | {"episodes": figures_of(played)})
            mean = np.mean([episode.total_reward for episode in played])
            print(f"{number} of {len(wanted)}: return {amount(float(mean))}", file=sys.stderr, flush=True)
    finally:
        policies.close()


def main() -> int:
    own_stdout().close()
    try:
        run(decode(Path(sys.argv[1]).read_bytes(), type=SnapshotRequest))
    except (EnvError, CheckpointError, SpecError, UnknownName, OSError) as error:
        print(f"headrace: {plain(str(error))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    leave(main)
