"""`--env.backend`: what steps the environments of an actor, for ids of Gymnasium's registry.

EnvPool has environments of its own under Gymnasium's ids. Only those of the groups in POOLS are used. The tests in
tests/actors/envs/foreign compare these with Gymnasium's: single steps from the same state, or the distribution of returns,
lengths and observations; and how episodes end.

A call of EnvPool wakes a thread, and both sides wait by spinning. That takes longer than four steps of CartPole. So `auto` is
EnvPool only for groups whose steps take so long that an actor becomes faster. MuJoCo's do, but not every body has been compared.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.envs.base import Simulators
from actors.errors import EnvError
from learner.devices import installing

if TYPE_CHECKING:
    import gymnasium

GYMNASIUM = "gymnasium"
BACKENDS = ("auto", GYMNASIUM, "vector", "envpool")
ABOUT = (
    "what steps the environments: gymnasium (one after the other), envpool or vector (Gymnasium's vector API; both all in one "
    "call), or auto, which is envpool where it is installed and faster"
)
REMEDY = "take --env.backend gymnasium"


class Pool(NamedTuple):
    """A group of environments that EnvPool has, too."""

    module: str  # of EnvPool
    auto: bool  # every environment of the group has been compared, and actors become faster (figures: docs/how-to.md)


# The package of Gymnasium that an environment's entry point is in -> EnvPool's.
POOLS = {
    "gymnasium.envs.classic_control": Pool("envpool.classic_control", auto=False),
    "gymnasium.envs.box2d": Pool("envpool.box2d", auto=True),
    "gymnasium.envs.mujoco": Pool("envpool.mujoco.gym", auto=False),
}


def resolve(backend: str, env_id: str, given: dict[str, Any], make: Callable[[], gymnasium.Env]) -> str:
    """The backend of an id with the `given` options in this interpreter, by the setting `backend`. `make` makes one."""
    if backend != "auto":
        return backend
    pool = _pool(env_id)
    if pool is None or not pool.auto or given or find_spec("envpool") is None:
        return GYMNASIUM
    from actors.envs.foreign.batched.pool import agrees, has

    if not has(pool.module, env_id):
        return GYMNASIUM
    env = make()
    try:
        return "envpool" if agrees(env, env_id) else GYMNASIUM
    finally:
        env.close()


def open_batch(backend: str, env: gymnasium.Env, env_id: str, count: int, given: dict[str, Any]) -> Simulators | None:
    """`count` environments like `env`, which was made by gymnasium.make with the `given` options. None: the caller
    makes them and steps them in turn; so it is for an `auto` that was not resolved, too. Raises EnvError, or ImportError where a
    package is not installed."""
    if backend == "vector":
        from actors.envs.foreign.batched.vector import open_vector

        return open_vector(env, env_id, count, given)
    if backend != "envpool":
        return None
    if given:
        raise EnvError(f"{env_id}: EnvPool's version has no --env.{next(iter(given)).replace('_', '-')}: {REMEDY}")
    pool = _pool(env_id)
    if find_spec("envpool") is None:
        raise EnvError(f"{env_id} needs envpool, which is not installed: {installing.headrace('envpool')}, or {REMEDY}")
    from actors.envs.foreign.batched.pool import PoolSimulators, agrees, has

    if pool is None or not has(pool.module, env_id):
        raise EnvError(f"{env_id}: EnvPool has no environment that is known to be the same: {REMEDY}")
    if not agrees(env, env_id):
        raise EnvError(f"{env_id}: EnvPool's observations or actions have another form: {REMEDY}")
    return PoolSimulators(env, env_id, count)


def _pool(env_id: str) -> Pool | None:
    """The group of an id; None if the registered environment is not one of Gymnasium's own."""
    import gymnasium

    spec = gymnasium.registry.get(env_id)
    if spec is None or not isinstance(spec.entry_point, str) or spec.additional_wrappers:
        return None
    module = spec.entry_point.partition(":")[0]
    return next((pool for name, pool in POOLS.items() if f"{module}.".startswith(f"{name}.")), None)
