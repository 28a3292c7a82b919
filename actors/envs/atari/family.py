"""Atari 2600 games as an environment family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from actors.envs.base import EnvironmentFamily, Setup, Simulators
from actors.envs.foreign.families import one_line_errors
from actors.errors import EnvError
from transport.names import FIXED

if TYPE_CHECKING:
    import gymnasium

SKIP = 4


class AtariOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Atari 2600 games."""

    skip: Annotated[int, Meta(ge=0, le=60, description="emulator frames per step; 0 means 4", extra=FIXED)] = 0
    fire: Annotated[
        bool,
        Meta(
            description="press FIRE after a reset and after a lost life, in games that stand still until it is pressed, such as "
            "Breakout",
            extra=FIXED,
        ),
    ] = True
    size: Annotated[int, Meta(ge=36, le=210, description="height and width of the observed frame in pixels", extra=FIXED)] = 84
    backend: Annotated[
        Literal["auto", "gymnasium", "vector"],
        Meta(
            description="what steps the games: gymnasium (one after the other), vector (ale-py's own, all in one call), or auto, "
            "which is gymnasium"
        ),
    ] = "auto"


class Atari(EnvironmentFamily):
    """ALE/NAME-v5."""

    about = "Atari 2600 games with the usual preprocessing, 84x84 grey, such as ALE/Pong-v5"
    Options = AtariOptions
    seed_steps = 10_000  # ale-py loads the game again for each seed, which takes as long as 400 steps
    ends_episodes = True
    options: AtariOptions

    def make(self, setup: Setup) -> gymnasium.Env:
        def build() -> gymnasium.Env:
            from actors.envs.atari.env import make_atari

            more = {} if setup.render_mode is None else {"render_mode": setup.render_mode}
            skip, fire, size = self.frames_per_step, self.options.fire, self.options.size
            return make_atari(self.env_id, skip, fire, size, setup.max_episode_steps, disable_env_checker=True, **more)

        return one_line_errors(self.env_id, build)

    def resolve_options(self) -> AtariOptions:
        # Most of a step is the emulator's time, and that is the same.
        return msgspec.structs.replace(self.options, backend="gymnasium") if self.options.backend == "auto" else self.options

    def simulators(self, env: gymnasium.Env, count: int) -> Simulators | None:
        if self.options.backend != "vector":
            return None
        from actors.envs.atari.env import make_batch, waits_for_fire

        if self.options.fire and waits_for_fire(self.env_id):
            raise EnvError(
                f"{self.env_id}: ale-py's vector environment does not press FIRE after a lost life, and the game waits for it: "
                "take --env.backend gymnasium, or --env.fire false"
            )
        return one_line_errors(self.env_id, lambda: make_batch(env, self.env_id, self.frames_per_step, self.options.size, count))

    @property
    def frames_per_step(self) -> int:
        return self.options.skip or SKIP
