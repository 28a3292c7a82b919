"""The options of `headrace play`, which the command line passes to the process that plays as one JSON argument."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct


class PersonOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    env: dict[str, Any]  # the env section
    flags: str = ""  # the environment as `headrace up` takes it
    out: str  # the file of the episodes
    episodes: Annotated[int, Meta(ge=0, description="number of episodes; 0 means until Esc is pressed")] = 0
    fps: Annotated[float, Meta(ge=0, le=240, description="steps per second; 0 means the environment's own speed")] = 0.0
    seed: Annotated[int, Meta(ge=0, lt=2**31, description="seed of the first episode; 0 means another one each time")] = 0
    terminal: Annotated[bool, Meta(description="play in this terminal, even if there is a display for a window")] = False
