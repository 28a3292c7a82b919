"""Which network and which way of acting belong to an algorithm: all that actors and evaluation need to know of it."""

from __future__ import annotations

from torch import nn

from learner.algorithms.acting import Policy, QPolicy, SoftActing, StochasticPolicy
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.networks import ActorCritic, build_actor_critic
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.networks import SoftPolicy, build_soft_policy
from learner.config import AlgorithmConfig
from learner.networks.q_network import QNetwork, build_network
from transport.experience import ExperienceSpec


def build_policy(spec: ExperienceSpec, config: AlgorithmConfig) -> nn.Module:
    """The network whose weights travel, in float32 on the CPU. Raises ValueError with one line for what cannot be built."""
    if isinstance(config, DqnConfig):
        return build_network(spec, config)
    if isinstance(config, SacConfig):
        return build_soft_policy(spec, config)
    return build_actor_critic(spec, config)


def acting_policy(network: nn.Module, precision: str = "float32") -> Policy:
    """What acts by build_policy's network on the CPU. `precision` is that of convolutions, or auto.

    Raises DeviceError for one that there is not.
    """
    if isinstance(network, QNetwork):
        return QPolicy(network, precision)
    if isinstance(network, SoftPolicy):
        return SoftActing(network)
    assert isinstance(network, ActorCritic), f"nobody acts by {type(network).__name__}"
    return StochasticPolicy(network, precision)
