"""`PYTHON benchmarks/by_hand/jax_loops.py`: for `headrace bench updates`, updates in JAX as one writes them for an experiment.

It needs JAX and numpy alone. Each line of its input is a case, a way (`step`: each step is compiled; `scan`: all steps of an
update in one) and the seconds of a block; each line of its output says the milliseconds of the processor that a step took.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])  # before JAX counts the cores that its threads may have

import jax
import numpy as np
from jax import numpy as jnp

ROWS = 64  # of a chunk
SCANNED = 32  # updates from replay in one scan
RATE, EPSILON, NORM = 1e-4, 1e-5, 0.5
Tree = Any


def layers(random: np.random.Generator, *sizes: int) -> Tree:
    pairs = zip(sizes[:-1], sizes[1:], strict=True)
    return [(jnp.asarray(random.normal(0, i**-0.5, (i, o)), jnp.float32), jnp.zeros(o)) for i, o in pairs]


def mlp(parameters: Tree, x: jax.Array, active: Callable[[jax.Array], jax.Array], normed: bool = False) -> jax.Array:
    for weight, bias in parameters[:-1]:
        x = x @ weight + bias
        if normed:
            mean = x.mean(1, keepdims=True)
            x = (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + 1e-5)
        x = active(x)
    return x @ parameters[-1][0] + parameters[-1][1]


def dueling(out: jax.Array) -> jax.Array:
    return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdims=True)


def taken(values: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(values, action[:, None], 1)[:, 0]


def adam(state: Tree, gradient: Tree) -> tuple[Tree, jax.Array]:
    """A step with a clipped gradient; state: (parameters, first moment, second, steps)."""
    parameters, first, second, steps = state
    norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, NORM / (norm + 1e-6)), gradient)
    steps = steps + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
    rate, root = RATE / (1 - 0.9**steps), jnp.sqrt(1 - 0.999**steps)
    move = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) / root + EPSILON), parameters, first, second)
    return (move, first, second, steps), norm


class Rollouts:
    """PPO and PQN. All of an update is `whole`; `step` is that of one minibatch."""

    def __init__(self, case: dict[str, Any], random: np.random.Generator) -> None:
        self.ppo, self.options = case["algorithm"] == "ppo", case["options"]
        self.epochs, self.minibatches = case["passes"]
        sizes, actions = (case["inputs"], case["hidden"], case["hidden"]), case["actions"]
        heads = [layers(random, *sizes, n) for n in ((actions, 1) if self.ppo else (1 + actions,))]
        self.state: Tree = (heads, *(jax.tree.map(jnp.zeros_like, heads) for _ in "12"), jnp.zeros(()))
        streams = case["batch"] * self.minibatches // ROWS
        self.data = {
            "observation": jnp.asarray(random.normal(size=(ROWS + 1, streams, case["inputs"])), jnp.float32),
            "action": jnp.asarray(random.integers(0, actions, (ROWS, streams))),
            "reward": jnp.asarray(random.normal(size=(ROWS, streams)), jnp.float32),
            "going": jnp.asarray(random.random((ROWS, streams)) > 0.1, jnp.float32),
            "log_prob": jnp.full((ROWS, streams), -2.0),
        }
        self.key = jax.random.key(0)

    def outputs(self, parameters: Tree, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits or Q-values, and values."""
        seen = jnp.clip((observation - 0.1) / 1.1, -10, 10)
        if self.ppo:
            return mlp(parameters[0], seen, jnp.tanh), mlp(parameters[1], seen, jnp.tanh)[:, 0]
        q = dueling(mlp(parameters[0], seen, jax.nn.relu, normed=True))
        return q, q.max(1)

    def prepare(self, parameters: Tree, data: Tree) -> Tree:
        options, rows = self.options, data["observation"]
        value = self.outputs(parameters, rows.reshape(-1, rows.shape[-1]))[1].reshape(rows.shape[:2])
        discount = options["gamma"] * data["going"]
        delta = data["reward"] + discount * value[1:] - value[:-1]

        def back(total: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            total = now[0] + now[1] * total
            return total, total

        trace = options["gae_lambda" if self.ppo else "q_lambda"]
        advantage = jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, discount * trace), reverse=True)[1]
        columns = {"advantage": advantage, "return": advantage + value[:-1], "observation": rows[:-1]}
        columns |= {name: data[name] for name in ("action", "log_prob")}
        return {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}

    def loss(self, parameters: Tree, part: Tree) -> tuple[jax.Array, Tree]:
        options = self.options
        out, value = self.outputs(parameters, part["observation"])
        if not self.ppo:
            td = part["return"] - taken(out, part["action"])
            return 0.5 * (td**2).mean(), (jnp.abs(td).mean(), out.mean())
        advantage = part["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log = jax.nn.log_softmax(out)
        difference = taken(log, part["action"]) - part["log_prob"]
        ratio, clip = jnp.exp(difference), options["clip_range"]
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage).mean()
        error, entropy = ((value - part["return"]) ** 2).mean(), -(jnp.exp(log) * log).sum(1).mean()
        metrics = ((ratio - 1 - difference).mean(), (jnp.abs(ratio - 1) > clip).mean(), entropy, gain, error)
        return options["vf_coef"] * error - gain - options["ent_coef"] * entropy, metrics

    def step(self, state: Tree, items: Tree, where: jax.Array) -> tuple[Tree, Tree]:
        part = {name: column[where] for name, column in items.items()}
        gradient, metrics = jax.grad(self.loss, has_aux=True)(state[0], part)
        state, norm = adam(state, gradient)
        return state, (metrics, norm)

    def orders(self, key: jax.Array) -> jax.Array:
        """[minibatches, items of each], of one epoch."""
        size = self.data["action"].size
        return jax.random.permutation(key, size).reshape(self.minibatches, -1)

    def whole(self, state: Tree, data: Tree, key: jax.Array) -> tuple[Tree, Tree]:
        items = self.prepare(state[0], data)
        orders = jax.vmap(self.orders)(jax.random.split(key, self.epochs)).reshape(self.epochs * self.minibatches, -1)
        state, metrics = jax.lax.scan(lambda state, where: self.step(state, items, where), state, orders)
        return state, jax.tree.map(jnp.mean, metrics)

    def calls(self, way: str) -> Callable[[], object]:
        whole, prepare, step, orders = (jax.jit(each) for each in (self.whole, self.prepare, self.step, self.orders))

        def scan() -> object:
            self.key, key = jax.random.split(self.key)
            self.state, metrics = whole(self.state, self.data, key)
            return jax.block_until_ready(metrics)

        def stepwise() -> object:
            items = prepare(self.state[0], self.data)
            for _ in range(self.epochs):
                self.key, key = jax.random.split(self.key)
                for where in np.asarray(orders(key)):
                    self.state, metrics = step(self.state, items, where)
            return jax.block_until_ready(metrics)

        return scan if way == "scan" else stepwise


class Replayed:
    """DQN (double, dueling, n-step, prioritised) and SAC (two critics, temperature): a step an update."""

    def __init__(self, case: dict[str, Any], random: np.random.Generator) -> None:
        self.sac, self.options = case["algorithm"] == "sac", case["options"]
        inner, inputs, actions, batch = (case["hidden"], case["hidden"]), case["inputs"], case["actions"], case["batch"]
        if self.sac:
            critics = [layers(random, inputs + actions, *inner, 1) for _ in "12"]
            learned: Tree = (critics, layers(random, inputs, *inner, 2 * actions), jnp.full((), math.log(0.2)))
            action = jnp.asarray(random.uniform(-1, 1, (SCANNED, batch, actions)), jnp.float32)
        else:
            learned = (layers(random, inputs, *inner, 1 + actions),)
            action = jnp.asarray(random.integers(0, actions, (SCANNED, batch)))
        moments = (jax.tree.map(jnp.zeros_like, learned) for _ in "12")
        self.state: Tree = ((learned, *moments, jnp.zeros(())), jax.tree.map(jnp.copy, learned[0]), jax.random.key(0))
        seen = [jnp.asarray(random.normal(size=(SCANNED, batch, inputs)), jnp.float32) for _ in "12"]
        reward = jnp.asarray(random.normal(size=(SCANNED, batch)), jnp.float32)
        going = jnp.asarray(random.random((SCANNED, batch)) > 0.1, jnp.float32)
        self.batches: Tree = (*seen, action, reward, going, jnp.ones((SCANNED, batch)))
        self.done = 0

    def dqn_loss(self, learned: Tree, target: Tree, batch: Tree, _key: jax.Array) -> tuple[jax.Array, Tree]:
        now, following, action, reward, going, probability = batch
        best = dueling(mlp(learned[0], following, jax.nn.relu)).argmax(1)
        value = taken(dueling(mlp(target, following, jax.nn.relu)), best)
        goal = jax.lax.stop_gradient(reward + self.options["gamma"] ** self.options["n_step"] * going * value)
        q = taken(dueling(mlp(learned[0], now, jax.nn.relu)), action)
        weight = (probability.min() / probability) ** self.options["importance_exponent"]
        off = jnp.abs(goal - q)
        huber = jnp.where(off < 1, 0.5 * off**2, off - 0.5)
        return (weight * huber).mean(), (off, q.mean())

    def act(self, policy: Tree, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, log_std = jnp.split(mlp(policy, observation, jax.nn.relu), 2, 1)
        log_std = jnp.clip(log_std, -5, 2)
        noise = jax.random.normal(key, mean.shape)
        action = mean + jnp.exp(log_std) * noise
        normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        return jnp.tanh(action), (normal - 2 * (math.log(2) - action - jax.nn.softplus(-2 * action))).sum(1)

    def values(self, critics: Tree, *seen: jax.Array) -> jax.Array:
        joined = jnp.concatenate(seen, 1)
        return jnp.stack([mlp(critic, joined, jax.nn.relu)[:, 0] for critic in critics])

    def sac_loss(self, learned: Tree, target: Tree, batch: Tree, key: jax.Array) -> tuple[jax.Array, Tree]:
        (critics, policy, temperature), frozen = learned, jax.lax.stop_gradient(learned)
        now, following, action, reward, going, _ = batch
        alpha, (one, two) = jnp.exp(frozen[2]), jax.random.split(key)
        drawn, log_prob = self.act(frozen[1], following, one)
        value = self.values(target, following, drawn).min(0) - alpha * log_prob
        goal = jax.lax.stop_gradient(reward + self.options["gamma"] * going * value)
        td = self.values(critics, now, action) - goal
        drawn, log_prob = self.act(policy, now, two)
        policy_loss = (alpha * log_prob - self.values(frozen[0], now, drawn).min(0)).mean()
        entropy = jax.lax.stop_gradient(log_prob).mean() - drawn.shape[1]
        return 0.5 * (td**2).mean(1).sum() + policy_loss - temperature * entropy, (jnp.abs(td).max(0), log_prob.mean())

    def step(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        learning, target, key = state
        key, drawn = jax.random.split(key)
        loss = self.sac_loss if self.sac else self.dqn_loss
        gradient, metrics = jax.grad(loss, has_aux=True)(learning[0], target, batch, drawn)
        learning, norm = adam(learning, gradient)
        if self.sac:
            target = jax.tree.map(lambda old, new: old + self.options["tau"] * (new - old), target, learning[0][0])
        return (learning, target, key), (metrics, norm)

    def calls(self, way: str) -> Callable[[], object]:
        step, scanned = jax.jit(self.step), jax.jit(lambda state, batches: jax.lax.scan(self.step, state, batches))
        batches = [jax.tree.map(lambda column, which=which: column[which], self.batches) for which in range(SCANNED)]

        def scan() -> object:
            self.state, metrics = scanned(self.state, self.batches)
            return jax.block_until_ready(metrics)

        def stepwise() -> object:
            self.state, metrics = step(self.state, batches[self.done % SCANNED])
            self.done += 1
            return np.asarray(metrics[0][0])  # the priorities

        return scan if way == "scan" else stepwise


def main() -> None:
    made: dict[tuple[str, str], tuple[Callable[[], object], int]] = {}
    print(json.dumps({"version": jax.__version__}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        key = case["name"], case["way"]
        if key not in made:
            kind = Rollouts if case["algorithm"] in ("ppo", "pqn") else Replayed
            steps = SCANNED if kind is Replayed and case["way"] == "scan" else case["steps"]
            made[key] = kind(case, np.random.default_rng(0)).calls(case["way"]), steps
            made[key][0]()  # compiles
        call, steps = made[key]
        begun, calls = time.process_time(), 0
        while not calls or time.process_time() < begun + case["seconds"]:
            call()
            calls += 1
        print(json.dumps({"ms": 1e3 * (time.process_time() - begun) / (calls * steps)}), flush=True)


if __name__ == "__main__":
    main()
