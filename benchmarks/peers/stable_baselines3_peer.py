"""Stable-Baselines3, run by a Python that has it, as a contestant of `headrace suite`; and SBX, its algorithms in JAX.

Settings are those of rl-zoo's files, by their names: `algorithm`, `n_timesteps`, `n_envs`, `normalize`, `noise_type`,
`noise_std`, `policy`, and all that the algorithm's class takes, such as `learning_rate = "lin_0.001"` (falls to 0 over
n_timesteps). Besides: `env` and `env_kwargs`, the registered id where it is another than Headrace's, and `vec_env = "subproc"`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from actors.evaluation.pipe import Act
from benchmarks.peers.contestant import Arrays, Contestant, Request, Saver, Wrong, environment, run

OWN = {"algorithm", "n_timesteps", "n_envs", "normalize", "noise_type", "noise_std", "env", "env_kwargs", "vec_env"}
SET_HERE = {"env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model", "action_noise"}
SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf")
NOISES = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}
VEC_ENVS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}


class Snapshots(BaseCallback):
    """Has the policy saved when it is due, and ends training when it is time."""

    def __init__(self, request: Request, arrays: Callable[[Any], Arrays]) -> None:
        super().__init__()
        self._saver, self._arrays = Saver(request), arrays

    def _on_training_start(self) -> None:
        self.write()

    def _on_step(self) -> bool:
        return self._saver.turn(int(self.num_timesteps), lambda: self._arrays(self.model))

    def write(self) -> None:
        """The policy as it is now."""
        self._saver.save(int(self.model.num_timesteps), self._arrays(self.model))


class Library:
    """Stable-Baselines3, and what SBX has otherwise."""

    module: Any = stable_baselines3
    activations: Any = torch.nn
    algorithms = ("a2c", "ddpg", "dqn", "ppo", "sac", "td3")
    packages: tuple[str, ...] = ("stable_baselines3", "torch", "numpy", "gymnasium")

    def weights(self, model: Any) -> Arrays:
        """The policy's, by name."""
        return {name: value.detach().cpu().numpy() for name, value in model.policy.state_dict().items()}

    def restore(self, model: Any, weights: Arrays) -> None:
        model.policy.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})

    def arrays(self, model: BaseAlgorithm) -> Arrays:
        """The policy's weights, and the mean and variance of its observations where these are normalised."""
        found = {f"policy/{name}": array for name, array in self.weights(model).items()}
        env = model.get_env()
        if isinstance(env, VecNormalize):
            found |= {"mean": np.asarray(env.obs_rms.mean), "var": np.asarray(env.obs_rms.var)}  # type: ignore[union-attr]
        return found

    def settings_of(self, request: Request) -> tuple[type[BaseAlgorithm], dict[str, Any]]:
        """The algorithm's class and what is passed to it. Raises Wrong."""
        settings = request["settings"]
        name = settings.get("algorithm")
        if name not in self.algorithms:
            raise Wrong(f"algorithm must be one of {', '.join(self.algorithms)}, not {name!r}")
        kind: type[BaseAlgorithm] = getattr(self.module, name.upper())
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
            chosen["policy_kwargs"] = self.policy_kwargs(chosen["policy_kwargs"])
        return kind, {"policy": "MlpPolicy"} | chosen

    def policy_kwargs(self, given: dict[str, Any]) -> dict[str, Any]:
        """`activation_fn` by its name in torch.nn, or for SBX in flax.linen. Raises Wrong."""
        if "activation_fn" not in given:
            return given
        found = getattr(self.activations, str(given["activation_fn"]), None)
        if found is None:
            raise Wrong(f"policy_kwargs.activation_fn: {self.activations.__name__} has no {given['activation_fn']!r}")
        return given | {"activation_fn": found}

    def build(self, request: Request, training: bool = True) -> BaseAlgorithm:
        """The model with its environments. Raises Wrong, and what the library raises."""
        torch.set_num_threads(request["threads"])
        settings = request["settings"]
        kind, chosen = self.settings_of(request)
        env = make(request, int(settings.get("n_envs", 1)) if training else 1, training)
        if settings.get("noise_type"):
            mean = np.zeros(env.action_space.shape or ())
            chosen["action_noise"] = NOISES[settings["noise_type"]](mean, mean + float(settings["noise_std"]))
        if not training and "buffer_size" in inspect.signature(kind.__init__).parameters:
            chosen["buffer_size"] = 1  # acting needs none
        return kind(env=env, seed=request["seed"], device="cpu", **chosen)

    def train(self, request: Request) -> tuple[int, dict[str, Any]]:
        """Trains to the end. Returns the steps, and the settings with the library's defaults for those that are not given."""
        model, snapshots = self.build(request), Snapshots(request, self.arrays)
        model.learn(int(request["settings"]["n_timesteps"]), callback=snapshots)
        snapshots.write()
        env = model.get_env()
        if env is not None:
            env.close()
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(type(model).__init__).parameters.items()
            if name not in SET_HERE and isinstance(parameter.default, int | float | str | bool)
        }
        return int(model.num_timesteps), defaults | request["settings"]

    def load(self, request: Request) -> Callable[[str], Act]:
        """Reads policies from the files that training has written."""
        model = self.build(request, training=False)
        env = model.get_env()

        def load(path: str) -> Act:
            with np.load(path, allow_pickle=False) as file:
                self.restore(model, {name.removeprefix("policy/"): file[name] for name in file.files if "/" in name})
                if isinstance(env, VecNormalize):
                    env.obs_rms.mean, env.obs_rms.var = file["mean"], file["var"]  # type: ignore[union-attr]

            def act(observation: np.ndarray) -> np.ndarray:
                seen = env.normalize_obs(observation) if isinstance(env, VecNormalize) else observation
                return np.asarray(model.predict(seen, deterministic=True)[0])  # type: ignore[arg-type]

            return act

        return load

    def check(self, request: Request) -> None:
        """Raises Wrong, and whatever an environment raises."""
        self.settings_of(request)
        env_id, options = environment(request)
        gymnasium.make(env_id, **options).close()

    def contestant(self) -> Contestant:
        return Contestant(self.check, self.train, self.load, self.packages)


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


def make(request: Request, count: int, training: bool) -> VecEnv:
    """The environments, as rl-zoo makes them: each in a Monitor, normalised if the settings say so."""
    settings = request["settings"]
    env_id, options = environment(request)
    form = VEC_ENVS[settings.get("vec_env", "dummy") if training else "dummy"]
    env = make_vec_env(env_id, count, seed=request["seed"], env_kwargs=options, vec_env_cls=form)  # type: ignore[arg-type]
    if settings.get("normalize"):
        return VecNormalize(env, gamma=settings.get("gamma", 0.99))
    return env


if __name__ == "__main__":
    run(Library().contestant(), *sys.argv[1:])
