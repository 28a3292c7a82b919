"""PPO wholly compiled by JAX, environments of gymnax and all, as a contestant of `headrace suite`.

A call of the compiled function makes `block` updates: rollouts of `n_envs` x `n_steps`, GAE, epochs of shuffled minibatches. So a
policy can be saved between two calls only. gymnax has CartPole-v1, Acrobot-v1, MountainCar-v0, MountainCarContinuous-v0,
Pendulum-v1. Settings are those of DEFAULTS.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnax
import jax
import numpy as np
import optax
from jax import numpy as jnp

from actors.evaluation.pipe import Act
from benchmarks.peers.contestant import Arrays, Contestant, Request, Saver, environment, known, numpy_mlp, run

DEFAULTS = {
    "n_timesteps": 500_000,
    "n_envs": 4,
    "n_steps": 128,
    "n_epochs": 4,
    "minibatches": 4,
    "learning_rate": 2.5e-4,  # falls to 0 over n_timesteps
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "hidden": 64,
    "normalize": False,  # observations, and rewards by the deviation of the return
    "block": 10,
}
Tree = Any


def layers(key: jax.Array, sizes: tuple[int, ...], last: float) -> Tree:
    """Pairs of weights and biases, orthogonal at first."""
    scales = [2**0.5] * (len(sizes) - 2) + [last]
    keys = jax.random.split(key, len(scales))
    shapes = zip(keys, scales, sizes[:-1], sizes[1:], strict=True)
    return [(jax.nn.initializers.orthogonal(scale)(one, (i, o)), jnp.zeros(o)) for one, scale, i, o in shapes]


def mlp(parameters: Tree, x: jax.Array) -> jax.Array:
    for weight, bias in parameters[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ parameters[-1][0] + parameters[-1][1]


def moments(old: Tree, values: jax.Array) -> Tree:
    """(count, mean, variance) with further values [N, …]."""
    count, mean, variance = old
    total, delta = count + len(values), values.mean(0) - mean
    spread = variance * count + values.var(0) * len(values) + delta**2 * count * len(values) / total
    return total, mean + delta * len(values) / total, spread / total


class Ppo:
    """`state` is all that an update changes: parameters, Adam, environments, statistics, the key."""

    def __init__(self, request: Request) -> None:
        self.settings = known(request, DEFAULTS)
        self.env, self.parameters = gymnax.make(environment(request)[0])
        space = self.env.action_space(self.parameters)
        self.discrete = hasattr(space, "n")
        self.actions = int(space.n) if self.discrete else int(np.prod(space.shape))
        self.low, self.high = (None, None) if self.discrete else (np.asarray(space.low), np.asarray(space.high))
        self.shape = self.env.observation_space(self.parameters).shape
        s = self.settings
        self.updates = max(1, int(s["n_timesteps"]) // (s["n_envs"] * s["n_steps"]))
        steps = self.updates * s["n_epochs"] * s["minibatches"]
        rate = optax.linear_schedule(s["learning_rate"], 0.0, steps)
        self.adam = optax.chain(optax.clip_by_global_norm(s["max_grad_norm"]), optax.adam(rate, eps=1e-5))

    def begin(self, seed: int) -> Tree:
        key, actor, critic, reset = jax.random.split(jax.random.key(seed), 4)
        sizes = (*self.shape, self.settings["hidden"], self.settings["hidden"])
        networks = {"actor": layers(actor, (*sizes, self.actions), 0.01), "critic": layers(critic, (*sizes, 1), 1.0)}
        networks |= {} if self.discrete else {"log_std": jnp.zeros(self.actions)}
        many = self.settings["n_envs"]
        seen, envs = jax.vmap(self.env.reset, (0, None))(jax.random.split(reset, many), self.parameters)
        statistics = ((1e-4, jnp.zeros(self.shape), jnp.ones(self.shape)), (1e-4, jnp.zeros(()), jnp.ones(())))
        return networks, self.adam.init(networks), envs, seen, statistics, jnp.zeros(many), key

    def normalised(self, statistics: Tree, observation: jax.Array) -> jax.Array:
        if not self.settings["normalize"]:
            return observation
        return jnp.clip((observation - statistics[0][1]) / jnp.sqrt(statistics[0][2] + 1e-8), -10, 10)

    def log_prob(self, networks: Tree, seen: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Of actions, and the entropy."""
        out = mlp(networks["actor"], seen)
        if self.discrete:
            log = jax.nn.log_softmax(out)
            return jnp.take_along_axis(log, action[..., None], -1)[..., 0], -(jnp.exp(log) * log).sum(-1)
        log_std = networks["log_std"]
        one = -0.5 * ((action - out) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        return one.sum(-1), (log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum() * jnp.ones(out.shape[:-1])

    def drawn(self, networks: Tree, seen: jax.Array, key: jax.Array) -> jax.Array:
        out = mlp(networks["actor"], seen)
        if self.discrete:
            return jax.random.categorical(key, out)
        return out + jnp.exp(networks["log_std"]) * jax.random.normal(key, out.shape)

    def step(self, carry: Tree, _: None) -> tuple[Tree, Tree]:
        """Of all environments."""
        networks, statistics, envs, raw, total, key = carry
        key, one, two = jax.random.split(key, 3)
        seen = self.normalised(statistics, raw)
        action = self.drawn(networks, seen, one)
        bounded = action if self.discrete else jnp.clip(action, self.low, self.high)
        if not self.discrete and self.env.action_space(self.parameters).shape == ():
            bounded = bounded[..., 0]
        keys = jax.random.split(two, self.settings["n_envs"])
        following, envs, reward, terminated, truncated, info = jax.vmap(self.env.step, (0, 0, 0, None))(
            keys, envs, bounded, self.parameters
        )
        last = self.normalised(statistics, info["final_observation"])
        value, after = (mlp(networks["critic"], x)[..., 0] for x in (seen, last))
        done = terminated | truncated
        total = total * self.settings["gamma"] + reward
        row = {"seen": seen, "raw": raw, "action": action, "reward": reward, "value": value, "total": total}
        row |= {
            "after": jnp.where(terminated, 0.0, after),
            "going": 1.0 - done,
            "log_prob": self.log_prob(networks, seen, action)[0],
        }
        return (networks, statistics, envs, following, jnp.where(done, 0.0, total), key), row

    def loss(self, networks: Tree, part: Tree) -> jax.Array:
        s = self.settings
        log_prob, entropy = self.log_prob(networks, part["seen"], part["action"])
        value, advantage = mlp(networks["critic"], part["seen"])[..., 0], part["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = jnp.exp(log_prob - part["log_prob"])
        clipped = jnp.clip(ratio, 1 - s["clip_range"], 1 + s["clip_range"])
        gain = jnp.minimum(ratio * advantage, clipped * advantage).mean()
        return s["vf_coef"] * 0.5 * ((value - part["return"]) ** 2).mean() - gain - s["ent_coef"] * entropy.mean()

    def update(self, state: Tree, _: None) -> tuple[Tree, None]:
        """A rollout and what is learned from it."""
        s = self.settings
        networks, adam, envs, raw, statistics, total, key = state
        carry = networks, statistics, envs, raw, total, key
        (_, _, envs, raw, total, key), rows = jax.lax.scan(self.step, carry, None, s["n_steps"])
        if s["normalize"]:
            seen, of_return = statistics
            statistics = moments(seen, rows["raw"].reshape(-1, *self.shape)), moments(of_return, rows["total"].reshape(-1))
        scale = jnp.sqrt(statistics[1][2] + 1e-8) if s["normalize"] else 1.0
        delta = rows["reward"] / scale + s["gamma"] * rows["after"] - rows["value"]

        def back(later: jax.Array, now: Tree) -> tuple[jax.Array, jax.Array]:
            advantage = now[0] + s["gamma"] * s["gae_lambda"] * now[1] * later
            return advantage, advantage

        advantage = jax.lax.scan(back, jnp.zeros(s["n_envs"]), (delta, rows["going"]), reverse=True)[1]
        items = {name: rows[name] for name in ("seen", "action", "log_prob")}
        items |= {"advantage": advantage, "return": advantage + rows["value"]}
        items = {name: column.reshape(-1, *column.shape[2:]) for name, column in items.items()}

        def learn(now: Tree, where: jax.Array) -> tuple[Tree, None]:
            gradient = jax.grad(self.loss)(now[0], {name: column[where] for name, column in items.items()})
            change, adam = self.adam.update(gradient, now[1])
            return (optax.apply_updates(now[0], change), adam), None

        key, *keys = jax.random.split(key, 1 + s["n_epochs"])
        size = s["n_envs"] * s["n_steps"]
        orders = jnp.concatenate([jax.random.permutation(one, size).reshape(s["minibatches"], -1) for one in keys])
        (networks, adam), _ = jax.lax.scan(learn, (networks, adam), orders)
        return (networks, adam, envs, raw, statistics, total, key), None

    def arrays(self, state: Tree) -> Arrays:
        pairs = {
            f"{place}/{number}": np.asarray(x) for number, pair in enumerate(state[0]["actor"]) for place, x in enumerate(pair)
        }
        return pairs | {"mean": np.asarray(state[4][0][1]), "var": np.asarray(state[4][0][2])}


def train(request: Request) -> tuple[int, dict[str, Any]]:
    ppo, saver = Ppo(request), Saver(request)
    state, block = jax.jit(ppo.begin, static_argnums=0)(request["seed"]), int(ppo.settings["block"])
    advance = jax.jit(lambda state: jax.lax.scan(ppo.update, state, None, block)[0])
    steps, each = 0, block * ppo.settings["n_envs"] * ppo.settings["n_steps"]
    while steps < ppo.settings["n_timesteps"] and saver.turn(steps, partial(ppo.arrays, state)):
        state = jax.block_until_ready(advance(state))
        steps += each
    saver.save(steps, ppo.arrays(state))
    return steps, ppo.settings


def load(request: Request) -> Callable[[str], Act]:
    ppo = Ppo(request)

    def read(path: str) -> Act:
        with np.load(path, allow_pickle=False) as file:
            pairs = [(file[f"0/{number}"], file[f"1/{number}"]) for number in range(3)]
            mean, deviation = file["mean"], np.sqrt(file["var"] + 1e-8)
        output = numpy_mlp(pairs, np.tanh)

        def act(observation: np.ndarray) -> np.ndarray:
            seen = np.clip((observation - mean) / deviation, -10, 10) if ppo.settings["normalize"] else observation
            out = output(seen)
            return out.argmax(1) if ppo.discrete else np.clip(out, ppo.low, ppo.high)

        return act

    return read


if __name__ == "__main__":
    run(Contestant(Ppo, train, load, ("jax", "gymnax", "optax", "numpy")), *sys.argv[1:])
