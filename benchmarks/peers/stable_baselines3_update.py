"""Stable-Baselines3's update, DQN's and PPO's. Run by a Python that has it; needs no environment.

Its buffers are filled with the recording's frames, or with vectors, and it trains from them: `train()` is timed and nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from benchmarks.common.recording import VECTOR, load_frames, vectors
from benchmarks.peers.common import STACK, figure, print_answer

MEMORY = 10_000
SETTINGS = {
    "DQN": "CnnPolicy, or MlpPolicy of two layers; plain targets, uniform sampling, 1-step, no dueling, float32",
    "PPO": "CnnPolicy, or MlpPolicy; rollout, minibatch and passes as the learner's; float32",
}


class Still(gymnasium.Env[Any, Any]):
    """Says what is observed and done, and is never stepped."""

    def __init__(self, images: bool, actions: int) -> None:
        if images:
            self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (STACK, 84, 84), np.uint8)
        else:
            self.observation_space = spaces.Box(-np.inf, np.inf, (VECTOR,), np.float32)
        self.action_space = spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(self.observation_space.shape or (), self.observation_space.dtype), {}


def observations(images: bool, count: int) -> np.ndarray:
    """[count, 4, 84, 84] uint8, or [count, 22] float32, in the order of play."""
    recording = load_frames()
    rows = np.arange(count) % len(recording)
    if images:
        return recording.observation[recording.stack(rows, STACK)]
    return vectors(recording).observation[rows]


def make_dqn(wish: dict[str, Any], env: gymnasium.Env[Any, Any]) -> tuple[Any, Callable[[], int]]:
    """A model whose replay memory is full, and what does some updates and returns how many."""
    arch = {"policy_kwargs": {"net_arch": [wish["hidden"]] * 2}} if not wish["images"] else {}
    model = DQN(
        "CnnPolicy" if wish["images"] else "MlpPolicy", env, learning_rate=1e-4, buffer_size=MEMORY, batch_size=wish["batch"],
        train_freq=TrainFreq(1, TrainFrequencyUnit.STEP), device=wish["device"], **arch,  # type: ignore[arg-type]
    )  # fmt: skip
    seen, random = observations(wish["images"], MEMORY + 1), np.random.default_rng(0)
    for row in range(MEMORY):
        action = random.integers(wish["actions"], size=(1,))
        model.replay_buffer.add(  # type: ignore[union-attr]
            seen[row][None], seen[row + 1][None], action, np.array([random.random()]), np.array([row % 500 == 0]), [{}]
        )

    def train() -> int:
        model.train(gradient_steps=10, batch_size=wish["batch"])
        return 10

    return model, train


def make_ppo(wish: dict[str, Any], env: gymnasium.Env[Any, Any]) -> tuple[Any, Callable[[], int]]:
    """The same of a rollout."""
    steps = wish["batch"] * wish["minibatches"]
    hidden = [wish["hidden"]] * wish["layers"]
    arch = {} if wish["images"] else {"policy_kwargs": {"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": torch.nn.Tanh}}
    model = PPO(
        "CnnPolicy" if wish["images"] else "MlpPolicy", env, n_steps=steps, batch_size=wish["batch"], n_epochs=wish["n_epochs"],
        device=wish["device"], **arch,  # type: ignore[arg-type]
    )  # fmt: skip
    seen, random = observations(wish["images"], steps), np.random.default_rng(0)
    for row in range(steps):
        action = random.integers(wish["actions"], size=(1, 1))
        log_prob = torch.full((1,), -float(np.log(wish["actions"])))
        model.rollout_buffer.add(
            seen[row][None], action, random.random(1), np.array([row % 500 == 0]), torch.zeros(1, 1), log_prob
        )

    model.rollout_buffer.compute_returns_and_advantage(torch.zeros(1, 1), np.zeros(1))

    def train() -> int:
        model.train()
        return int(wish["n_epochs"] * wish["minibatches"])

    return model, train


def measure(wish: dict[str, Any]) -> float:
    """Updates per second."""
    torch.set_num_threads(wish["threads"])
    model, train = (make_dqn if wish["algorithm"] == "dqn" else make_ppo)(wish, Still(wish["images"], wish["actions"]))
    model.set_logger(Logger(None, []))
    wait = torch.cuda.synchronize if str(model.device).startswith("cuda") else torch.cpu.synchronize
    train()
    wait()
    begun, done = time.monotonic(), 0
    while time.monotonic() < begun + wish["seconds"]:
        done += train()
        wait()
    return done / (time.monotonic() - begun)


def main() -> None:
    """One figure."""
    wish = json.loads(sys.argv[1])
    found = [figure(wish["case"], "updates", "updates/s", measure(wish))]
    print_answer(f"{version('stable_baselines3')} (torch {torch.__version__})", SETTINGS, 0, found)


if __name__ == "__main__":
    main()
