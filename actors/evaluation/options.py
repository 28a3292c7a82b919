"""The options of `headrace eval`, `headrace demo` and `headrace replay`. The command line makes flags of the fields that have a
description, and passes all of them to the process that plays as one JSON argument."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from transport.run_dir import RunDir


class PlayOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The policy and the environment of a run's weights, as far as they are not the newest and that of training."""

    best: Annotated[bool, Meta(description="the weights of the best evaluation so far, instead of the newest")] = False
    weights: Annotated[
        str, Meta(description="the weights in this file, a checkpoint of the run or an export, instead of the newest")
    ] = ""
    env: dict[str, Any] = {}  # keys of the env section that differ from the run's


class EvaluationOptions(PlayOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    episodes: Annotated[int, Meta(ge=1, description="number of episodes")] = 100
    seed: Annotated[int, Meta(ge=0, description="seed of the episodes; another one plays other episodes")] = 0
    random: Annotated[bool, Meta(description="random actions instead of a policy, for comparison")] = False
    stochastic: Annotated[bool, Meta(description="act with exploration instead of greedily")] = False
    tolerances: Annotated[
        tuple[Annotated[float, Meta(gt=0, lt=1)], ...],
        Meta(description="robot only: evaluate at each of these distances in metres too, such as 0.05,0.02,0.01"),
    ] = ()
    json: Annotated[bool, Meta(description="print the figures as JSON, for programs")] = False
    precision: str = "float32"  # of convolutions, as in actors.precision


class DemoOptions(PlayOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    episodes: Annotated[int, Meta(ge=1, description="number of episodes")] = 3
    seed: Annotated[int, Meta(ge=0, description="seed of the episodes; another one shows other episodes")] = 0
    video: Annotated[str, Meta(description="record to this file, such as out.mp4, instead of opening a window")] = ""
    overlay: Annotated[
        bool, Meta(description="show action values or probabilities, the reward and the return beside each picture")
    ] = False
    headless: Annotated[bool, Meta(description="neither window nor file, only a line per episode")] = False
    steer: Annotated[bool, Meta(description="you may take over: Tab gives you the keys, and hands back")] = False


class RepeatOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    episode: Annotated[
        str,
        Meta(
            description="best or worst (by the return), first-success, or a number of --list: 1 is the oldest in the log",
        ),
    ] = "best"
    step: Annotated[int | None, Meta(description="the episode that ended nearest to this environment step of the run")] = None
    list: Annotated[bool, Meta(description="only print a table of the episodes in the log")] = False
    check: Annotated[bool, Meta(description="play every episode again without pictures, and count those that are exact")] = False
    least_return: Annotated[
        float | None,
        Meta(description="what first-success means: a return of at least this, instead of what the environment reports"),
    ] = None
    video: Annotated[str, Meta(description="record to this file, such as out.mp4, instead of opening a window")] = ""
    headless: Annotated[bool, Meta(description="neither window nor file, only what is exact")] = False
    steps: int = 0  # of the run so far; 0: not known


Options = TypeVar("Options", bound=PlayOptions | RepeatOptions)


def to_arguments(run_dir: RunDir, options: PlayOptions | RepeatOptions) -> list[str]:
    return [str(run_dir.path), msgspec.json.encode(options).decode()]


def from_arguments(arguments: Sequence[str], kind: type[Options]) -> tuple[RunDir, Options]:
    run_dir, text = arguments
    return RunDir(Path(run_dir)), msgspec.json.decode(text, type=kind)
