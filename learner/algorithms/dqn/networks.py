"""The Q-network: a body, and a dueling or plain head. Its head and initial weights are also those of pqn and r2d2.

Vectors may be normalised by running statistics that are published with the weights: see learner/networks/inputs.py. Layers of
the built-in torsos are initialised after He et al. 2015 (arXiv:1502.01852, eq. 10: variance 2 / fan-in), the head with variance
1 / fan-in, biases with zero; a custom torso keeps its own initial weights. Random numbers come from torch's global generator:
seed it first.
"""

from __future__ import annotations

from torch import nn

from learner.algorithms.dqn.config import DqnConfig
from learner.networks.base import TORSOS, Body, PolicyModule, make_body, resolve
from learner.networks.parts import Dueling, Rescale
from transport.experience import Categorical, Continuous, ExperienceSpec


def q_body(spec: ExperienceSpec, config: DqnConfig) -> Body:
    """The body of a Q-network, or of a distributional one. Raises ValueError, in one line."""
    require_categorical(spec, "dqn", "choose an algorithm for continuous actions")
    return make_body(spec, **config.body._asdict())


def q_network(spec: ExperienceSpec, config: DqnConfig) -> PolicyModule:
    """A module that computes Q-values [N, n]; in float32 on the CPU, in training mode. Raises ValueError, in one line."""
    return with_q_head(spec, config.network, q_body(spec, config), config.dueling, config.normalize_reward)


def require_categorical(spec: ExperienceSpec, algorithm: str, advice: str) -> None:
    """Raises ValueError, in one line, unless an action is one of n."""
    if not isinstance(spec.action, Categorical):
        action = spec.action
        what = f"{len(action.low)} reals" if isinstance(action, Continuous) else f"{len(action.sizes)} choices"
        raise ValueError(f"{algorithm} chooses one of n actions, but this environment's action is a vector of {what}: {advice}")


def with_q_head(spec: ExperienceSpec, network: str, body: Body, dueling: bool = False, rescales: bool = False) -> PolicyModule:
    """The body and a head for Q-values [N, n], initialised. `network`: the torso's name; `rescales`: there is a running scale."""
    assert isinstance(spec.action, Categorical)
    n = spec.action.n
    parts: list[nn.Module] = [nn.Linear(body.features, n + 1), Dueling()] if dueling else [nn.Linear(body.features, n)]
    head = nn.Sequential(*parts, *([Rescale()] if rescales else []))
    policy = PolicyModule(body, head)
    for module in policy.modules() if resolve(spec, network) in TORSOS else head:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear" if module is head[0] else "relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return policy


def last_rescale(policy: PolicyModule) -> Rescale | None:
    """The running scale at the end of a policy's head, if it has one."""
    last = list(policy.head.children())[-1:]
    return last[0] if last and isinstance(last[0], Rescale) else None
