"""The options of the parallelised Q-network."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from learner.algorithms import options
from learner.networks.known.torsos import BodyOptions
from transport.names import FIXED


class PqnConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Parallelised Q-network (PQN): Q-learning with lambda returns from rollouts, without replay and target network."""

    gamma: options.Gamma = 0.99
    q_lambda: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="lambda of the returns: 0 bootstraps from the next step, 1 only where a chunk or an episode ends",
        ),
    ] = 0.95
    n_epochs: options.NEpochs = 4
    minibatches: options.Minibatches = 16
    clip_rewards: options.ClipRewards = False
    reward_scale: options.RewardScaleOfQ = 1.0
    normalize_observation: options.NormalizeObservation = True
    network: options.Network = "auto"
    network_options: options.NetworkOptions = {}  # noqa: RUF012
    hidden: options.Hidden = 128
    filters: options.Filters = 1.0
    layers: Annotated[int, Meta(ge=1, le=8, description="hidden layers of an mlp", extra=FIXED)] = 2
    layer_norm: Annotated[
        bool,
        Meta(description="layer normalisation in the built-in networks: it replaces the target network", extra=FIXED),
    ] = True
    epsilon_base: options.EpsilonBase = 0.4
    epsilon_power: options.EpsilonPower = 7.0

    @property
    def body(self) -> BodyOptions:
        normed = {"width": self.hidden, "layer_norm": self.layer_norm}
        images = normed | {"filters": self.filters}
        built_in = {"nature": images, "compact": images, "mlp": normed | {"layers": self.layers}, "linear": {}}
        return BodyOptions(self.network, self.network_options, built_in, goal=True, normalise=self.normalize_observation)
