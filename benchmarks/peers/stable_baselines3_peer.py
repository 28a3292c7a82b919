"""Stable-Baselines3, run by a Python that has it: as a contestant of `headrace suite` (deploy/studies/suite/peer.py starts it),
and its updates alone for `headrace bench learner` (`update`: train() on buffers that are filled with the recording).

Settings are those of rl-zoo's files, by their names: `algorithm`, `n_timesteps`, `n_envs`, `normalize`, `noise_type`,
`noise_std`, `policy`, and all that the algorithm's class takes, such as `learning_rate = "lin_0.001"` (falls to 0 over
n_timesteps). Besides: `env` and `env_kwargs`, the registered id where it is another than Headrace's, and `vec_env = "subproc"`.

While it trains, a callback keeps a copy of the policy's arrays every few seconds and writes it to a file: arrays alone, never a
pickle. It ends after n_timesteps, at the limit of the task, when it is asked to (SIGTERM), or when its parent has ended.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from actors.evaluation.lines import add_line
from actors.evaluation.pipe import Act, serve
from benchmarks.common.recording import VECTOR, load_frames, vectors
from benchmarks.peers.common import STACK, figure, print_answer

ALGORITHMS = ("a2c", "ddpg", "dqn", "ppo", "sac", "td3")
OWN = {"algorithm", "n_timesteps", "n_envs", "normalize", "noise_type", "noise_std", "env", "env_kwargs", "vec_env"}
SET_HERE = {"env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model", "action_noise"}
SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf")
NOISES = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}
VEC_ENVS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
SUFFIX = ".npz"
MEMORY = 10_000  # transitions of a replay buffer whose updates are timed
UPDATES = {
    "DQN": "CnnPolicy, or MlpPolicy of two layers; plain targets, uniform sampling, 1-step, no dueling, float32",
    "PPO": "CnnPolicy, or MlpPolicy; rollout, minibatch and epochs as the learner's; float32",
}
Request = dict[str, Any]


class Wrong(ValueError):
    """Settings that cannot be run: one line."""


class Snapshots(BaseCallback):
    """Writes the policy every few seconds, and ends training when it is time."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._folder, self._request = Path(request["folder"]), request
        self._due, self._number, self._parent = 0.0, 0, os.getppid()
        self._asked_to_end = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_end)

    @property
    def seconds(self) -> float:
        """Since the process was started."""
        return time.time() - float(self._request["began"])

    def _ask_to_end(self, *_signal: object) -> None:
        self._asked_to_end = True

    def _on_training_start(self) -> None:
        self.write()

    def _on_step(self) -> bool:
        if self.seconds >= self._due:
            self.write()
        limit = self._request["total_steps"]
        over = self.seconds >= self._request["seconds"] or (limit and self.num_timesteps >= limit)
        return not (over or self._asked_to_end or os.getppid() != self._parent)

    def write(self) -> None:
        """The policy as it is now."""
        self._number += 1
        file = f"policy-{self._number:05d}{SUFFIX}"
        data = io.BytesIO()
        np.savez(data, **arrays(self.model))  # type: ignore[arg-type]
        (self._folder / file).write_bytes(data.getvalue())
        line = {"file": file, "seconds": round(self.seconds, 3), "steps": int(self.model.num_timesteps)}
        add_line(self._folder / "snapshots.jsonl", line)
        self._due = self.seconds + self._request["snapshot_seconds"]


def arrays(model: BaseAlgorithm) -> dict[str, np.ndarray]:
    """The policy's weights, and the mean and variance of its observations where these are normalised."""
    found = {f"policy/{name}": value.detach().cpu().numpy() for name, value in model.policy.state_dict().items()}
    env = model.get_env()
    if isinstance(env, VecNormalize):
        found |= {"mean": np.asarray(env.obs_rms.mean), "var": np.asarray(env.obs_rms.var)}  # type: ignore[union-attr]
    return found


def settings_of(request: Request) -> tuple[type[BaseAlgorithm], dict[str, Any]]:
    """The algorithm's class and what is passed to it. Raises Wrong."""
    settings = request["settings"]
    name = settings.get("algorithm")
    if name not in ALGORITHMS:
        raise Wrong(f"algorithm must be one of {', '.join(ALGORITHMS)}, not {name!r}")
    kind: type[BaseAlgorithm] = getattr(stable_baselines3, name.upper())
    known = set(inspect.signature(kind.__init__).parameters) - SET_HERE - {"self"}
    for key in settings:
        if key not in known | OWN:
            raise Wrong(f"unknown setting {key}; {name} has {', '.join(sorted(known | OWN))}")
    for key, values in (("noise_type", NOISES), ("vec_env", VEC_ENVS)):
        if settings.get(key) is not None and settings[key] not in values:
            raise Wrong(f"{key} must be one of {', '.join(values)}, not {settings[key]!r}")
    steps = settings.get("n_timesteps")
    if not isinstance(steps, int | float) or steps < 1:
        raise Wrong(f"n_timesteps must be a number of steps, not {steps!r}")
    chosen = {key: value for key, value in settings.items() if key not in OWN}
    for key in SCHEDULES:
        if isinstance(chosen.get(key), str):
            chosen[key] = schedule(key, chosen[key])
    if "policy_kwargs" in chosen:
        chosen["policy_kwargs"] = policy_kwargs(chosen["policy_kwargs"])
    return kind, {"policy": "MlpPolicy"} | chosen


def schedule(key: str, text: str) -> Callable[[float], float]:
    """lin_X: from X down to 0, as the share of training that is left falls from 1 to 0. Raises Wrong."""
    kind, _, number = text.partition("_")
    try:
        initial = float(number)
    except ValueError:
        initial = -1.0
    if kind != "lin" or initial < 0:
        raise Wrong(f'{key} must be a number or a schedule such as "lin_0.001", not {text!r}')
    return lambda left: left * initial


def policy_kwargs(given: dict[str, Any]) -> dict[str, Any]:
    """`activation_fn` by its name in torch.nn. Raises Wrong."""
    if "activation_fn" not in given:
        return given
    found = getattr(torch.nn, str(given["activation_fn"]), None)
    if found is None:
        raise Wrong(f"policy_kwargs.activation_fn: torch.nn has no {given['activation_fn']!r}")
    return given | {"activation_fn": found}


def environment(request: Request) -> tuple[str, dict[str, Any]]:
    """A registered id and its keyword arguments. Raises Wrong."""
    settings, env = request["settings"], dict(request["env"])
    env_id = env.pop("id")
    if "env" in settings:
        return str(settings["env"]), dict(settings.get("env_kwargs", {}))
    if "wrappers" in env or "stack" in env or "quantise" in env:
        raise Wrong("env.wrappers, env.stack and env.quantise are Headrace's: give the peer its own `env`")
    return env_id, env | dict(settings.get("env_kwargs", {}))


def make(request: Request, count: int, training: bool) -> VecEnv:
    """The environments, as rl-zoo makes them: each in a Monitor, normalised if the settings say so."""
    settings = request["settings"]
    env_id, options = environment(request)
    form = VEC_ENVS[settings.get("vec_env", "dummy") if training else "dummy"]
    env = make_vec_env(env_id, count, seed=request["seed"], env_kwargs=options, vec_env_cls=form)  # type: ignore[arg-type]
    if settings.get("normalize"):
        return VecNormalize(env, gamma=settings.get("gamma", 0.99))
    return env


def build(request: Request, training: bool = True) -> BaseAlgorithm:
    """The model with its environments. Raises Wrong, and what Stable-Baselines3 raises."""
    torch.set_num_threads(request["threads"])
    settings = request["settings"]
    kind, chosen = settings_of(request)
    env = make(request, int(settings.get("n_envs", 1)) if training else 1, training)
    if settings.get("noise_type"):
        size = env.action_space.shape
        chosen["action_noise"] = NOISES[settings["noise_type"]](np.zeros(size), np.full(size, float(settings["noise_std"])))  # type: ignore[arg-type]
    if not training and "buffer_size" in inspect.signature(kind.__init__).parameters:
        chosen["buffer_size"] = 1  # acting needs none
    return kind(env=env, seed=request["seed"], device="cpu", **chosen)


def train(request: Request) -> None:
    """Trains to the end, and writes what deploy/studies/suite/peer.py reads."""
    model, snapshots = build(request), Snapshots(request)
    model.learn(int(request["settings"]["n_timesteps"]), callback=snapshots)
    snapshots.write()
    end = {"steps": int(model.num_timesteps), "configuration": configuration(request), "versions": versions()}
    (Path(request["folder"]) / "end.json").write_text(json.dumps(end))
    env = model.get_env()
    if env is not None:
        env.close()


def configuration(request: Request) -> dict[str, Any]:
    """The settings, with the defaults of Stable-Baselines3 for those that are not given."""
    kind, _ = settings_of(request)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
        if name not in SET_HERE and isinstance(parameter.default, int | float | str | bool)
    }
    return defaults | request["settings"] | {"threads": request["threads"], "env": request["env"], "seed": request["seed"]}


def loader(request: Request) -> Callable[[str], Act]:
    """Reads policies from the files that training has written."""
    model = build(request, training=False)
    env = model.get_env()

    def load(path: str) -> Act:
        with np.load(path, allow_pickle=False) as file:
            state = {name.removeprefix("policy/"): torch.from_numpy(file[name]) for name in file.files if "/" in name}
            model.policy.load_state_dict(state)
            if isinstance(env, VecNormalize):
                env.obs_rms.mean, env.obs_rms.var = file["mean"], file["var"]  # type: ignore[union-attr]

        def act(observation: np.ndarray) -> np.ndarray:
            seen = env.normalize_obs(observation) if isinstance(env, VecNormalize) else observation
            return np.asarray(model.predict(seen, deterministic=True)[0])  # type: ignore[arg-type]

        return act

    return load


class Still(gymnasium.Env[Any, Any]):
    """Says what is observed and done, and is never stepped."""

    def __init__(self, images: bool, actions: int) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (VECTOR,), np.float32)
        if images:
            self.observation_space = spaces.Box(0, 255, (STACK, 84, 84), np.uint8)
        self.action_space = spaces.Discrete(actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(self.observation_space.shape or (), self.observation_space.dtype), {}


def observations(images: bool, count: int) -> np.ndarray:
    """[count, 4, 84, 84] uint8, or [count, 22] float32, in the order of play."""
    recording = load_frames()
    rows = np.arange(count) % len(recording)
    return recording.observation[recording.stack(rows, STACK)] if images else vectors(recording).observation[rows]


def filled(wish: Request) -> tuple[Any, Callable[[], int]]:
    """A model with a full buffer, and the function that makes some updates and returns how many."""
    rollouts, images, random = wish["algorithm"] == "ppo", wish["images"], np.random.default_rng(0)
    rows = wish["batch"] * wish["minibatches"] if rollouts else MEMORY
    hidden = [wish["hidden"]] * (wish["layers"] if rollouts else 2)
    chosen: Request = {"batch_size": wish["batch"], "device": wish["device"]}
    if rollouts:
        chosen |= {"n_steps": rows, "n_epochs": wish["n_epochs"]}
        network: Request = {"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": torch.nn.Tanh}
    else:
        chosen |= {"learning_rate": 1e-4, "buffer_size": MEMORY}
        network = {"net_arch": hidden}
    kind = stable_baselines3.PPO if rollouts else stable_baselines3.DQN
    policy = ("CnnPolicy", None) if images else ("MlpPolicy", network)
    model: Any = kind(policy[0], Still(images, wish["actions"]), policy_kwargs=policy[1], **chosen)
    seen = observations(images, rows + 1)
    for row in range(rows):
        action, reward, new = random.integers(wish["actions"], size=(1, 1)), random.random(1), np.array([row % 500 == 0])
        if rollouts:
            log_prob = torch.full((1,), -float(np.log(wish["actions"])))
            model.rollout_buffer.add(seen[row][None], action, reward, new, torch.zeros(1, 1), log_prob)
        else:
            model.replay_buffer.add(seen[row][None], seen[row + 1][None], action[0], reward, new, [{}])
    if rollouts:
        model.rollout_buffer.compute_returns_and_advantage(torch.zeros(1, 1), np.zeros(1))
        return model, lambda: model.train() or wish["n_epochs"] * wish["minibatches"]
    return model, lambda: model.train(gradient_steps=10, batch_size=wish["batch"]) or 10


def update(wish: Request) -> None:
    """Prints the updates per second."""
    torch.set_num_threads(wish["threads"])
    model, some = filled(wish)
    model.set_logger(Logger(None, []))
    wait = torch.cuda.synchronize if str(model.device).startswith("cuda") else torch.cpu.synchronize
    some()
    wait()
    begun, done = time.monotonic(), 0
    while time.monotonic() < begun + wish["seconds"]:
        done += some()
        wait()
    found = [figure(wish["case"], "updates", "updates/s", done / (time.monotonic() - begun))]
    print_answer(f"{version('stable_baselines3')} (torch {torch.__version__})", UPDATES, 0, found)


def complaint(request: Request) -> str:
    """The mistake in a task's settings, in one line; empty if there is none."""
    try:
        settings_of(request)
        gymnasium.make(environment(request)[0], **environment(request)[1]).close()
    except Exception as error:  # an environment may raise anything
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def versions() -> dict[str, str]:
    packages = ("stable_baselines3", "torch", "numpy", "gymnasium")
    return {"python": sys.version.split()[0]} | {package: version(package) for package in packages}


def main(word: str, argument: str) -> None:
    """See deploy/studies/suite/peer.py; `update` is benchmarks/learner's."""
    if word == "update":
        update(json.loads(argument))
        return
    if word == "check":
        found = {name: text for name, request in json.loads(argument).items() if (text := complaint(request))}
        print(json.dumps({"complaints": found, "versions": versions()}))
        return
    request = json.loads(Path(argument).read_text())
    if word == "train":
        train(request)
        return
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    serve(loader(request), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
