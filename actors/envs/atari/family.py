"""Atari 2600 games as an environment family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from actors.envs.base import EnvironmentFamily, Setup
from actors.envs.foreign.families import one_line_errors
from transport.names import FIXED

if TYPE_CHECKING:
    import gymnasium

SKIP = 4


class AtariOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Atari 2600 games."""

    skip: Annotated[int, Meta(ge=0, le=60, description="emulator frames per step; 0 means 4", extra=FIXED)] = 0


class Atari(EnvironmentFamily):
    """ALE/NAME-v5."""

    about = "Atari 2600 games with the usual preprocessing, 84x84 grey, such as ALE/Pong-v5"
    Options = AtariOptions
    ends_episodes = True
    options: AtariOptions

    def make(self, setup: Setup) -> gymnasium.Env:
        def build() -> gymnasium.Env:
            from actors.envs.atari.env import make_atari

            more = {} if setup.render_mode is None else {"render_mode": setup.render_mode}
            return make_atari(self.env_id, self.frames_per_step, setup.max_episode_steps, disable_env_checker=True, **more)

        return one_line_errors(self.env_id, build)

    @property
    def frames_per_step(self) -> int:
        return self.options.skip or SKIP
