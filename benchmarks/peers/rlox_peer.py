"""rlox's PPO (environments, buffers and advantages in Rust, networks in torch), as a contestant of `headrace suite`.

Settings: `n_timesteps`, and those of rlox's PPOConfig.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from rlox.algorithms.ppo import PPO
from rlox.callbacks import Callback
from rlox.config import PPOConfig

from actors.evaluation.pipe import Act
from benchmarks.peers.contestant import Arrays, Contestant, Request, Saver, Wrong, environment, known, numpy_mlp, run

DEFAULTS = {field.name: field.default for field in dataclasses.fields(PPOConfig)} | {"n_timesteps": 100_000}


class Saving(Callback):  # type: ignore[misc]
    """Called after each rollout."""

    def __init__(self, saver: Saver, rollout: int) -> None:
        self.saver, self.steps, self._rollout = saver, 0, rollout

    def on_step(self, **given: Any) -> bool:
        self.steps += self._rollout
        return self.saver.turn(self.steps, lambda: arrays(given["algo"]))


def arrays(ppo: Any) -> Arrays:
    found = {name: value.numpy().copy() for name, value in ppo.policy.actor.state_dict().items()}
    if ppo.vec_normalize is None or not ppo.config.normalize_obs:
        return found
    return found | {name: np.asarray(value) for name, value in ppo.vec_normalize.get_obs_rms().items()}


def made(request: Request) -> dict[str, Any]:
    """The settings. Raises Wrong, and whatever an environment raises."""
    env_id, options = environment(request)
    if options:
        raise Wrong("rlox takes no options of environments")
    gymnasium.make(env_id).close()
    return known(request, DEFAULTS)


def train(request: Request) -> tuple[int, dict[str, Any]]:
    torch.set_num_threads(request["threads"])
    torch.manual_seed(request["seed"])
    settings = made(request)
    saving = Saving(Saver(request), settings["n_envs"] * settings["n_steps"])
    chosen = {key: value for key, value in settings.items() if key not in ("n_timesteps", "env", "env_kwargs")}
    ppo = PPO(environment(request)[0], seed=request["seed"], callbacks=[saving], **chosen)
    saving.saver.save(0, arrays(ppo))
    ppo.train(int(settings["n_timesteps"]))
    saving.saver.save(saving.steps, arrays(ppo))
    return saving.steps, settings


def load(request: Request) -> Callable[[str], Act]:
    space = gymnasium.make(environment(request)[0]).action_space

    def read(path: str) -> Act:
        with np.load(path, allow_pickle=False) as file:
            outputs = numpy_mlp([(file[f"{number}.weight"].T, file[f"{number}.bias"]) for number in (0, 2, 4)], np.tanh)
            mean, variance = (file[name] if name in file.files else None for name in ("mean", "var"))

        def act(observation: np.ndarray) -> np.ndarray:
            seen = observation if mean is None else np.clip((observation - mean) / np.sqrt(variance + 1e-8), -10, 10)
            out = outputs(seen)
            return np.clip(out, space.low, space.high) if isinstance(space, gymnasium.spaces.Box) else out.argmax(1)

        return act

    return read


if __name__ == "__main__":
    run(Contestant(made, train, load, ("rlox", "gymnasium", "torch", "numpy")), *sys.argv[1:])
