"""The policy and the value function of learner/algorithms/ppo/networks.py as data."""

from __future__ import annotations

import math

from learner.algorithms.ppo.config import PpoConfig
from learner.description import PolicyDescription
from learner.networks.known.draft import Draft
from learner.networks.known.initial import Initialisation, orthogonal
from learner.networks.known.torsos import add_torso, known_body
from transport.experience import Categorical, Continuous, ExperienceSpec

FEATURES = "features"  # the results of the policy's torso, as the inputs of another program
POLICY_INITIAL = Initialisation(orthogonal(math.sqrt(2)), orthogonal(0.01))
VALUE_INITIAL = Initialisation(orthogonal(math.sqrt(2)), orthogonal(1.0))


def choices(spec: ExperienceSpec) -> tuple[int, ...]:
    """The number of values of each choice of an action; () for continuous ones."""
    if isinstance(spec.action, Continuous):
        return ()
    return (spec.action.n,) if isinstance(spec.action, Categorical) else spec.action.sizes


def describe_policy(spec: ExperienceSpec, config: PpoConfig) -> PolicyDescription | None:
    if config.log_std_init < config.log_std_min or (body := known_body(spec, config.body)) is None:
        return None
    if isinstance(spec.action, Continuous):
        body.draft.add_linear("head.0", body.features, len(spec.action.low))
        body.draft.add("log_std", "head.1", {"log_std": (len(spec.action.low),)})
    else:
        body.draft.add_linear("head.0", body.features, sum(choices(spec)))
    return body.draft.done()


def describe_value(spec: ExperienceSpec, config: PpoConfig) -> PolicyDescription | None:
    """The value function of vectors without memory. Its program begins with the inputs of the policy's, or with FEATURES where it
    shares the policy's torso."""
    body, draft = known_body(spec, config.body), Draft()
    if body is None or body.layout.images or config.memory:
        return None
    if config.shared:
        features: int | None = body.features
        draft.add("push", names=[FEATURES])
    else:
        features = add_torso(draft, "torso", spec, config.body, body.layout.shapes)
    assert features is not None
    draft.add_linear("head", features, 1)
    if config.normalize_reward:
        draft.add("rescale", "rescale", {"scale": ()})
    return draft.done()
