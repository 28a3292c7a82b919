"""SBX (Stable-Baselines3's algorithms in JAX), run by a Python that has it, as a contestant of `headrace suite`.

Its settings are those of stable_baselines3_peer.py.
"""

from __future__ import annotations

import sys
from typing import Any

import flax.linen
import jax
import numpy as np
import sbx

from benchmarks.peers.contestant import Arrays, run
from benchmarks.peers.stable_baselines3_peer import Library


class Sbx(Library):
    module = sbx
    activations = flax.linen
    algorithms = ("ddpg", "dqn", "ppo", "sac", "td3")
    packages = ("sbx-rl", "stable_baselines3", "jax", "flax", "torch", "numpy", "gymnasium")

    def weights(self, model: Any) -> Arrays:
        leaves = jax.tree.leaves(getattr(model.policy, acting(model)).params)
        return {str(number): np.asarray(leaf) for number, leaf in enumerate(leaves)}

    def restore(self, model: Any, weights: Arrays) -> None:
        state = getattr(model.policy, acting(model))
        leaves = [weights[str(number)] for number in range(len(weights))]
        parameters = jax.tree.unflatten(jax.tree.structure(state.params), leaves)
        setattr(model.policy, acting(model), state.replace(params=parameters))


def acting(model: Any) -> str:
    """The name of the state that its policy acts by."""
    return "actor_state" if hasattr(model.policy, "actor_state") else "qf_state"


if __name__ == "__main__":
    run(Sbx().contestant(), *sys.argv[1:])
