"""`headrace.connect`: a program that owns its loop asks a run for actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigurationError, raises_one_line
from learner.devices import installing

if TYPE_CHECKING:
    import gymnasium

    from actors.envs.remote.client import Connection


@raises_one_line
def connect(
    address: str,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    environments: int | None = None,
    token: str | None = None,
    name: str = "",
    wait_seconds: float = 60.0,
) -> Connection:
    """Connects to an actor of `headrace up --env remote`; call `act` of the connection once for each step.

    `address`: ws://127.0.0.1:PORT. `environments`: K of a batch; None: one, whose values have no axis for it. `token`: None for
    the one of this account. `wait_seconds`: the longest wait for an actor. Raises ConfigurationError.
    """
    try:
        from actors.envs.remote.client import Connection
    except ImportError as error:
        raise ConfigurationError(f"connect needs websockets: {installing.headrace('remote')}") from error
    return Connection(address, observation_space, action_space, environments, token, name, wait_seconds)
