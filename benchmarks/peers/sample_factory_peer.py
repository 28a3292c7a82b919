"""Sample Factory's asynchronous PPO, as a contestant of `headrace suite`.

Settings are Sample Factory's own options, such as `num_workers`. It trains in processes of its own and saves checkpoints, which
are read here as they come: a policy counts from the time of its file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sample_factory.algo.utils.action_distributions import argmax_actions
from sample_factory.algo.utils.rl_utils import prepare_and_normalize_obs
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.model_utils import get_rnn_size
from sample_factory.train import run_rl

from actors.evaluation.pipe import Act
from benchmarks.peers.contestant import Contestant, Request, Saver, Wrong, environment, run

HERE = {"env", "env_kwargs"}
FIXED = {"device": "cpu", "use_rnn": False, "with_wandb": False, "keep_checkpoints": 1_000, "experiment": "suite", "algo": "APPO"}


def words(request: Request) -> list[str]:
    """Its command line."""
    chosen = {key: value for key, value in request["settings"].items() if key not in HERE}
    chosen |= FIXED | {"seed": request["seed"], "train_dir": request.get("folder", ""), "env": environment(request)[0]}
    chosen |= {"save_every_sec": max(1, round(request["snapshot_seconds"]))}
    chosen |= {"train_for_seconds": round(request["seconds"]) + 1}  # it ends by itself, also where this process was killed
    return [f"--{key}={value}" for key, value in chosen.items()]


def make_env(env_id: str, *_arguments: object, **_options: object) -> Any:
    """Sent to other processes by name."""
    return gymnasium.make(env_id)


def options(given: list[str]) -> Any:
    """As Sample Factory reads them; the environment is registered."""
    parser, known = parse_sf_args(given)
    register_env(known.env, make_env)
    return parse_full_cfg(parser, given)


def check(request: Request) -> None:
    """Raises Wrong, and whatever an environment raises."""
    env_id, more = environment(request)
    if more:
        raise Wrong("options of environments are not passed on to Sample Factory")
    gymnasium.make(env_id).close()
    try:
        options(words(request | {"seed": 0}))
    except SystemExit:
        raise Wrong(f"Sample Factory does not take {request['settings']}") from None


def train(request: Request) -> tuple[int, dict[str, Any]]:
    saver, folder = Saver(request), Path(request["folder"]) / "suite" / "checkpoint_p0"
    command = [sys.executable, "-m", "benchmarks.peers.sample_factory_peer", "learn", *words(request)]
    process = subprocess.Popen(command, start_new_session=True)
    # The best return so far is a number of numpy, which torch does not read by itself.
    numbers = [np.core.multiarray.scalar, np.dtype, *(type(np.dtype(name)) for name in ("float32", "float64", "int64"))]
    torch.serialization.add_safe_globals(numbers)
    seen: set[Path] = set()
    steps = 0
    try:
        running = True
        while running and not saver.over(steps):
            time.sleep(0.05)
            running = process.poll() is None  # asked first: what it has saved at its end is read, too
            for path in sorted(set(folder.glob("checkpoint_0*.pth")) - seen):
                seen.add(path)
                steps = int(path.stem.rpartition("_")[2])
                model = torch.load(path, map_location="cpu", weights_only=True)["model"]
                saver.save(steps, {name: value.numpy() for name, value in model.items()}, path.stat().st_mtime)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not seen:
        raise Wrong(f"Sample Factory ended with {process.returncode} and saved nothing")
    return steps, request["settings"]


def load(request: Request) -> Callable[[str], Act]:
    config, env = options(words(request)), gymnasium.make(environment(request)[0])
    model = create_actor_critic(config, spaces.Dict({"obs": env.observation_space}), env.action_space)
    model.eval()

    def read(path: str) -> Act:
        with np.load(path, allow_pickle=False) as file:
            model.load_state_dict({name: torch.from_numpy(file[name]) for name in file.files})

        @torch.no_grad()
        def act(observation: np.ndarray) -> np.ndarray:
            seen = prepare_and_normalize_obs(model, {"obs": torch.from_numpy(observation.copy())})
            model(seen, torch.zeros(len(observation), get_rnn_size(config)))
            actions = argmax_actions(model.action_distribution()).numpy()
            return np.clip(actions, env.action_space.low, env.action_space.high) if actions.ndim > 1 else actions

        return act

    return read


if __name__ == "__main__":
    if sys.argv[1] == "learn":
        sys.exit(run_rl(options(sys.argv[2:])))
    run(Contestant(check, train, load, ("sample-factory", "gymnasium", "torch", "numpy")), *sys.argv[1:])
