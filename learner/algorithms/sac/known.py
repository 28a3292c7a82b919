"""The networks of learner/algorithms/sac/networks.py as data, and what options they need."""

from __future__ import annotations

import math
from typing import Protocol

from learner.description import PolicyDescription
from learner.networks.known.draft import Draft
from learner.networks.known.initial import Initialisation, uniform
from learner.networks.known.torsos import AUTO, FLAT, LAYER_NORM_EPSILON, BodyOptions, known_body, resolve
from transport.experience import Continuous, ExperienceSpec

ACTION = "action"  # the last input of the critics' program: bounded actions
INITIAL = Initialisation(uniform, uniform)


class NetworkOptions(Protocol):
    """The options of a Gaussian policy and of its critics."""

    @property
    def body(self) -> BodyOptions:
        """That of the policy; critics have such torsos of their own."""

    @property
    def hidden(self) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def layer_norm(self) -> bool: ...

    @property
    def critics(self) -> int: ...

    @property
    def outputs(self) -> int:
        """Of each critic."""


def describe_gaussian_policy(spec: ExperienceSpec, config: NetworkOptions) -> PolicyDescription | None:
    """Its program ends with means and log-stds."""
    if (spec.has_images and config.body.network == AUTO) or not isinstance(spec.action, Continuous):
        return None
    if (body := known_body(spec, config.body)) is None:
        return None
    body.draft.add_linear("head.0", body.features, 2 * len(spec.action.low))
    return body.draft.done()


def describe_critics(spec: ExperienceSpec, config: NetworkOptions) -> PolicyDescription | None:
    """The critics where they have no torso: weights [critics, outputs, inputs], biases [critics, 1, outputs].

    Their program ends with their outputs."""
    name, body = resolve(spec, config.body.network), known_body(spec, config.body)
    if name not in FLAT or body is None or not isinstance(spec.action, Continuous):
        return None
    shapes, draft = body.layout.shapes, Draft()
    hidden = [config.hidden] * (config.layers if name == "mlp" else 0)
    sizes, count = [sum(map(math.prod, shapes.values())) + len(spec.action.low), *hidden, config.outputs], config.critics
    layers = list(enumerate(zip(sizes, sizes[1:], strict=False)))
    weights = draft.hold("weights", {str(number): (count, outputs, inputs) for number, (inputs, outputs) in layers})
    biases = draft.hold("biases", {str(number): (count, 1, outputs) for number, (_, outputs) in layers})
    draft.add("push", names=[*shapes, ACTION])
    for number, names in enumerate(zip(weights, biases, strict=True)):
        if number and config.layer_norm:
            draft.add("layer_norm", eps=LAYER_NORM_EPSILON)
        if number:
            draft.add("relu")
        draft.apply("linear", names)
    return draft.done()
