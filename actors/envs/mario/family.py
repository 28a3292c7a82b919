"""Super Mario Bros. as an environment family."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from actors.envs.base import EnvironmentFamily, Setup, variant
from transport.names import FIXED

if TYPE_CHECKING:
    import gymnasium


SKIP = 4  # emulator frames per step


class MarioOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Super Mario Bros."""

    actions: Annotated[str, Meta(description="action set: right, simple or complex; empty means simple", extra=FIXED)] = ""
    skip: Annotated[int, Meta(ge=0, le=60, description="emulator frames per step; 0 means 4", extra=FIXED)] = 0
    backend: Annotated[
        Literal["", "nes_py", "retro", "native", "auto"],
        Meta(
            description="emulator: nes_py, retro (four times as fast), native (twenty times; compiled at its first use), or "
            "auto, which is native where there is a C compiler, else retro where it is installed; empty means nes_py"
        ),
    ] = "auto"
    restarts: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="share of the training episodes that begin where an earlier one has been, each part of the level "
            "equally often; evaluation always begins at the start of the level; nes_py ignores it",
        ),
    ] = 0.0
    size: Annotated[int, Meta(ge=36, le=240, description="height and width of the observed frame in pixels", extra=FIXED)] = 84
    view: Annotated[
        Literal["grey", "contrast"],
        Meta(
            description="grey: the usual picture, its status lines masked; contrast: without status lines, in greys in which "
            "Mario and his enemies stand out from what is behind them",
            extra=FIXED,
        ),
    ] = "grey"


class Mario(EnvironmentFamily):
    """mario, or mario:WORLD-STAGE, or several as in mario:1-1,4-1."""

    about = "Super Mario Bros. 1-1, grey; mario:WORLD-STAGE for another level (worlds 1-8, stages 1-4), mario:1-1,4-1 for several"
    Options = MarioOptions
    ends_episodes = True
    reports_success = True
    success_name = "flag_rate"
    options: MarioOptions

    def make(self, setup: Setup) -> gymnasium.Env:
        from actors.envs.mario.env import MarioEnv

        options, backend = self.options, emulator(self.options.backend)
        return MarioEnv(
            variant(self.env_id),
            options.actions,
            self.frames_per_step,
            setup.max_episode_steps,
            backend,
            0.0 if setup.evaluation else options.restarts,
            options.size,
            options.view,
        )

    def resolve_options(self) -> MarioOptions:
        if self.options.backend != "auto":
            return self.options
        return msgspec.structs.replace(self.options, backend=emulator("auto"))

    def notes(self) -> tuple[str, ...]:
        if not self.options.restarts or emulator(self.options.backend) != "nes_py":
            return ()
        return (f"{self.env_id} begins each episode at the start of the level, since nes_py keeps no earlier positions",)

    @property
    def frames_per_step(self) -> int:
        return self.options.skip or SKIP


def emulator(backend: str) -> Literal["nes_py", "retro", "native"]:
    """The emulator that env.backend means in this interpreter."""
    if backend == "auto":
        from actors.envs.mario import native_console

        if native_console.can_be_used():
            return "native"
        return "retro" if find_spec("stable_retro") else "nes_py"
    return backend or "nes_py"  # type: ignore[return-value]
