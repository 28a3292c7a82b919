"""Stable-Baselines3's PPO on our robot. Run by a Python that has it, PyBullet and msgspec.

Trains until it is asked to end (SIGTERM or Ctrl-C) or its time is over, and writes its policy every few rollouts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from benchmarks.peers.common import print_answer
from benchmarks.peers.saved_mlp import CLIP, EPSILON, Saved

ENV = "actors.envs.robot.registration:headrace/FanucReachFlat-v0"
EPISODES = 200  # that training's success rate is the mean of
CHECKED, CLOSE = 256, 1e-4  # actions compared, and how far apart they may be
SETTINGS = {"policy": "MlpPolicy, tanh, orthogonal, Gaussian cut to the bounds", "normaliser": "VecNormalize, norm_reward=False"}


class Writer(BaseCallback):
    """Writes the policy after every `every` rollouts that it has learned from; ends training when it is time."""

    def __init__(self, folder: Path, every: int, deadline: float) -> None:
        super().__init__()
        self._folder, self._every, self._deadline = folder, every, deadline
        self._rollouts, self._parent = -1, os.getppid()
        self._asked_to_end = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_end)

    def _ask_to_end(self, *_signal: object) -> None:
        self._asked_to_end = True

    def _on_rollout_start(self) -> None:
        """Before the first rollout, and after every update."""
        self._rollouts += 1
        if self._rollouts and self._rollouts % self._every == 0:
            saved(self.model).write(self._folder / f"step-{self.num_timesteps:010d}.npz")

    def _on_step(self) -> bool:
        return not (self._asked_to_end or time.monotonic() > self._deadline or os.getppid() != self._parent)


def saved(model: Any) -> Saved:
    """The policy as it is now."""
    normaliser, policy = model.get_env().obs_rms, model.policy
    linear = [*(layer for layer in policy.mlp_extractor.policy_net if isinstance(layer, torch.nn.Linear)), policy.action_net]
    layers = [(layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in linear]
    success = float(np.mean(model.ep_success_buffer)) if model.ep_success_buffer else 0.0
    mean, variance = normaliser.mean.astype(np.float32), normaliser.var.astype(np.float32)
    return Saved(mean, variance, layers, model.num_timesteps, success)


def check(model: Any) -> int:
    """Asserts that what is written acts as Stable-Baselines3 does; how many actions were compared."""
    written, random = saved(model), np.random.default_rng(0)
    seen = (written.mean + np.sqrt(written.variance) * random.normal(size=(CHECKED, len(written.mean)))).astype(np.float32)
    theirs, _ = model.predict(model.get_env().normalize_obs(seen), deterministic=True)
    assert np.abs(theirs - written.act(seen)).max() < CLOSE, "a written policy does not act as Stable-Baselines3's does"
    return CHECKED


def make(tolerance: float) -> gymnasium.Env:
    """One environment, flat form; the defaults of the others are what is asked for."""
    return gymnasium.make(ENV, tolerance=tolerance, disable_env_checker=True)


def build(wish: dict[str, Any]) -> Any:
    """The model with its environments."""
    torch.set_num_threads(wish["threads"])
    made = [partial(make, wish["tolerance"])] * wish["envs"]
    envs = SubprocVecEnv(made) if wish["form"] == "SubprocVecEnv" else DummyVecEnv(made)  # type: ignore[arg-type]
    hidden = [wish["hidden"]] * wish["layers"]
    return PPO(
        "MlpPolicy",
        VecNormalize(envs, norm_reward=False, clip_obs=CLIP, epsilon=EPSILON),
        learning_rate=wish["learning_rate"],
        n_steps=wish["n_steps"],
        batch_size=wish["minibatch"],
        n_epochs=wish["n_epochs"],
        gamma=wish["gamma"],
        gae_lambda=wish["gae_lambda"],
        clip_range=wish["clip_range"],
        normalize_advantage=wish["normalize_advantage"],
        ent_coef=wish["ent_coef"],
        vf_coef=wish["vf_coef"],
        max_grad_norm=wish["max_grad_norm"],
        target_kl=None,
        stats_window_size=EPISODES,
        policy_kwargs={
            "net_arch": {"pi": hidden, "vf": hidden},
            "activation_fn": torch.nn.Tanh,
            "log_std_init": wish["log_std_init"],
            "optimizer_kwargs": {"eps": wish["adam_epsilon"]},
        },
        seed=wish["seed"],
        device="cpu",
    )


def main() -> None:
    """Trains."""
    wish = json.loads(sys.argv[1])
    deadline = time.monotonic() + wish["limit_seconds"]
    model = build(wish)
    model.learn(sys.maxsize, callback=Writer(Path(wish["folder"]), wish["every"], deadline))
    checked = check(model)
    model.get_env().close()
    print_answer(f"{version('stable_baselines3')} (torch {torch.__version__})", SETTINGS, checked, [])


if __name__ == "__main__":
    main()
