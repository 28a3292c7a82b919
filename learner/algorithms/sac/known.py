"""The policy and the critics of learner/algorithms/sac/networks.py as data."""

from __future__ import annotations

import math

from learner.algorithms.sac.bins import BINS
from learner.algorithms.sac.config import SacConfig
from learner.description import PolicyDescription
from learner.networks.known.draft import Draft
from learner.networks.known.initial import Initialisation, uniform
from learner.networks.known.torsos import FLAT, LAYER_NORM_EPSILON, known_body, resolve
from transport.experience import Continuous, ExperienceSpec

PAIR = 2  # critics; the minimum of their values is used
ACTION = "action"  # the last input of the critics' program: bounded actions
INITIAL = Initialisation(uniform, uniform)


def describe_policy(spec: ExperienceSpec, config: SacConfig) -> PolicyDescription | None:
    refused = (spec.has_images and config.network == "auto") or (config.weight_norm and not config.layer_norm)
    if refused or not isinstance(spec.action, Continuous):
        return None
    if (body := known_body(spec, config.body)) is None:
        return None
    body.draft.add_linear("head.0", body.features, 2 * len(spec.action.low))
    return body.draft.done()


def describe_critics(spec: ExperienceSpec, config: SacConfig) -> PolicyDescription | None:
    """The pair of critics where they have no torso: weights [2, outputs, inputs], biases [2, 1, outputs].

    Their program ends with a value, or with the logits of bins."""
    name, body = resolve(spec, config.network), known_body(spec, config.body)
    if name not in FLAT or body is None or not isinstance(spec.action, Continuous):
        return None
    shapes, draft = body.layout.shapes, Draft()
    hidden = [config.hidden] * (config.layers if name == "mlp" else 0)
    outputs = BINS if config.critic == "categorical" else 1
    sizes = [sum(map(math.prod, shapes.values())) + len(spec.action.low), *hidden, outputs]
    layers = list(enumerate(zip(sizes, sizes[1:], strict=False)))
    weights = draft.hold("weights", {str(number): (PAIR, outputs, inputs) for number, (inputs, outputs) in layers})
    biases = draft.hold("biases", {str(number): (PAIR, 1, outputs) for number, (_, outputs) in layers})
    draft.add("push", names=[*shapes, ACTION])
    for number, names in enumerate(zip(weights, biases, strict=True)):
        if number and config.layer_norm:
            draft.add("layer_norm", eps=LAYER_NORM_EPSILON)
        if number:
            draft.add("relu")
        draft.apply("linear", names)
    return draft.done()
