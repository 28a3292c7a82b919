"""The policy and the critics as data."""

from __future__ import annotations

import math

from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.sac.bins import BINS
from learner.algorithms.sac.known import ACTION
from learner.description import PolicyDescription
from learner.networks.known.draft import Draft
from learner.networks.known.torsos import FLAT, LAYER_NORM_EPSILON, known_body, resolve
from transport.experience import Continuous, ExperienceSpec


def describe_policy(spec: ExperienceSpec, config: ReppoConfig) -> PolicyDescription | None:
    """Its program ends with means and log-stds."""
    body = known_body(spec, config.body)
    if body is None or resolve(spec, config.network) not in FLAT or not isinstance(spec.action, Continuous):
        return None
    body.draft.add_linear("head.0", body.features, 2 * len(spec.action.low))
    return body.draft.done()


def describe_critics(spec: ExperienceSpec, config: ReppoConfig) -> PolicyDescription | None:
    """Weights [critics, outputs, inputs], biases [critics, 1, outputs]; the program ends with the logits of bins."""
    name, body = resolve(spec, config.network), known_body(spec, config.body)
    if name not in FLAT or body is None or not isinstance(spec.action, Continuous):
        return None
    shapes, draft, count = body.layout.shapes, Draft(), config.critics
    hidden = [config.critic_hidden or config.hidden] * (config.layers if name == "mlp" else 0)
    sizes = [sum(map(math.prod, shapes.values())) + len(spec.action.low), *hidden, BINS]
    layers = list(enumerate(zip(sizes, sizes[1:], strict=False)))
    weights = draft.hold("weights", {str(number): (count, outputs, inputs) for number, (inputs, outputs) in layers})
    biases = draft.hold("biases", {str(number): (count, 1, outputs) for number, (_, outputs) in layers})
    draft.add("push", names=[*shapes, ACTION])
    for number, names in enumerate(zip(weights, biases, strict=True)):
        if number and config.layer_norm:
            draft.add("layer_norm", eps=LAYER_NORM_EPSILON)
        if number:
            draft.add(config.critic_activation)
        draft.apply("linear", names)
    return draft.done()
