"""Headrace from Python: start runs, wait for them, and act with the learned policies.

    import headrace

    run = headrace.train("CartPole-v1", total_steps=100_000)
    run.wait()
    policy = run.policy()
    action = policy.predict(observation)

Importing this package starts no process and imports no other package: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.envs.base import EnvironmentFamily
    from deploy.reporting.base import Callbacks, Sink
    from headrace.connection import connect
    from headrace.errors import ConfigurationError, HeadraceError, RefusedError, RunFailedError
    from headrace.evaluation import evaluate
    from headrace.policy import Policy, load
    from headrace.run import Run, train
    from learner.algorithms.base import Algorithm
    from learner.networks.base import TorsoFactory as Network
    from replay.table.base import Selector

__all__ = [
    "Algorithm",
    "Callbacks",
    "ConfigurationError",
    "EnvironmentFamily",
    "HeadraceError",
    "Network",
    "Policy",
    "RefusedError",
    "Run",
    "RunFailedError",
    "Selector",
    "Sink",
    "connect",
    "evaluate",
    "load",
    "train",
]

# Public name -> module:name. Some protocols have another name in their own module.
_PLACES = {
    **{name: f"headrace.errors:{name}" for name in ("ConfigurationError", "HeadraceError", "RefusedError", "RunFailedError")},
    "Run": "headrace.run:Run",
    "train": "headrace.run:train",
    "Policy": "headrace.policy:Policy",
    "load": "headrace.policy:load",
    "evaluate": "headrace.evaluation:evaluate",
    "connect": "headrace.connection:connect",
    "Algorithm": "learner.algorithms.base:Algorithm",
    "Network": "learner.networks.base:TorsoFactory",
    "EnvironmentFamily": "actors.envs.base:EnvironmentFamily",
    "Selector": "replay.table.base:Selector",
    "Callbacks": "deploy.reporting.base:Callbacks",
    "Sink": "deploy.reporting.base:Sink",
}


def hidden_package() -> str:
    """The complaint about a user's module that hides one of Headrace's packages, as `replay.py` beside a script does; empty if
    there is none. Imports nothing."""
    beside = Path(__file__).resolve().parents[1]
    for name in ("transport", "replay", "learner", "actors", "deploy"):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin and Path(found.origin).resolve().parent != beside / name:
            return f"{found.origin} hides Headrace's own package `{name}`: give it another name"
    return ""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("headrace")
    if name not in _PLACES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    if module != "headrace.errors":
        if hidden := hidden_package():
            from headrace.errors import ConfigurationError

            raise ConfigurationError(hidden)
    found = globals()[name] = getattr(importlib.import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
