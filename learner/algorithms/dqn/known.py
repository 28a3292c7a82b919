"""The Q-networks of learner/algorithms/dqn/networks.py as data, also those of pqn and r2d2."""

from __future__ import annotations

import math

from learner.description import PolicyDescription
from learner.networks.known.initial import Initialisation, he_normal
from learner.networks.known.torsos import BodyOptions, known_body
from transport.experience import Categorical, ExperienceSpec

INITIAL = Initialisation(he_normal(math.sqrt(2)), he_normal(1.0))


def describe_q_network(
    spec: ExperienceSpec, wanted: BodyOptions, dueling: bool = False, rescales: bool = False
) -> PolicyDescription | None:
    """The body, and the head of with_q_head()."""
    if not isinstance(spec.action, Categorical) or (body := known_body(spec, wanted)) is None:
        return None
    draft, last = body.draft, 1
    draft.add_linear("head.0", body.features, spec.action.n + dueling)
    if dueling:
        draft.add("dueling")
        last = 2
    if rescales:
        draft.add("rescale", f"head.{last}", {"scale": ()})
    return draft.done()
