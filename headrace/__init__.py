"""Headrace from Python: start runs, wait for them, and act with the policies that they have learned.

    import headrace

    run = headrace.train("CartPole-v1", total_steps=100_000)
    run.wait()
    policy = run.policy()
    action = policy.predict(observation)

Importing this package starts no process and imports no other one: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.errors import ConfigurationError, HeadraceError, RefusedError, RunFailedError
    from headrace.evaluation import evaluate
    from headrace.policy import Policy, load
    from headrace.run import Run, train

__all__ = [
    "ConfigurationError",
    "HeadraceError",
    "Policy",
    "RefusedError",
    "Run",
    "RunFailedError",
    "evaluate",
    "load",
    "train",
]

_MODULES = {
    **dict.fromkeys(("HeadraceError", "ConfigurationError", "RefusedError", "RunFailedError"), "headrace.errors"),
    **dict.fromkeys(("Run", "train"), "headrace.run"),
    **dict.fromkeys(("Policy", "load"), "headrace.policy"),
    "evaluate": "headrace.evaluation",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("headrace")
    if name not in _MODULES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
