"""The env and actors sections of a run's configuration. No torch and no simulator here."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class EnvConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Which environment, and how an agent sees it. 0 means: what suits the environment."""

    id: Annotated[
        str,
        Meta(description="mario, mario:1-2, robot, snake, snake:8, ALE/Pong-v5, a Gymnasium id or package.module:factory"),
    ] = "mario"
    stack: Annotated[int, Meta(ge=0, le=16, description="observations stacked; 0: 4 for images, 1 otherwise")] = 0
    skip: Annotated[
        int, Meta(ge=0, le=60, description="simulator frames per step, where the workload has frames; 0: its own")
    ] = 0
    actions: Annotated[str, Meta(description="action set, where the workload has several (mario: right, simple, complex)")] = ""
    backend: Annotated[
        Literal["", "nes_py", "retro", "auto", "pybullet", "kinematic"],
        Meta(
            description="what simulates: mario has nes_py, retro (four times as fast), auto (retro where installed), "
            "empty: nes_py; robot has pybullet, kinematic (no physics, many times as fast), empty: pybullet"
        ),
    ] = ""
    urdf: Annotated[str, Meta(description="file of an arm of six revolute joints (robot); empty: FANUC LR Mate 200iD")] = ""
    arm: Annotated[str, Meta(description="digest of the arm that a run began with (robot); headrace up writes it")] = ""
    reward: Annotated[Literal["dense", "sparse"], Meta(description="how reaching is paid (robot)")] = "dense"
    tolerance: Annotated[
        float, Meta(gt=0, lt=1, description="how near to its target the flange must come, in metres (robot)")
    ] = 0.02
    tier: Annotated[Literal["all", "easy", "medium", "hard"], Meta(description="targets by their distance from home (robot)")] = (
        "all"
    )
    curriculum: Annotated[
        bool, Meta(description="begin with near targets and 10 cm, and go on to the task as success allows (robot)")
    ] = False
    max_episode_steps: Annotated[
        int, Meta(ge=0, description="truncate an episode after this many steps; 0: the environment's own")
    ] = 0
    quantise: Annotated[bool, Meta(description="store bounded float observations as uint8")] = False
    chunk_length: Annotated[
        int, Meta(ge=0, le=4096, description="rows per chunk, a power of two; 0: 128 images, 64 otherwise")
    ] = 0
    preflight_seconds: Annotated[float, Meta(gt=0, description="time an environment has to be made and stepped")] = 60.0


class ActorsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How many actors, and how each collects."""

    count: Annotated[int, Meta(ge=1, le=1024, description="actor processes")] = 2
    envs_per_actor: Annotated[
        int, Meta(ge=1, le=1024, description="environments stepped by one actor, with one batched inference")
    ] = 4
    chunk_seconds: Annotated[float, Meta(gt=0, description="a chunk leaves at the latest after this long")] = 10.0
    threads: Annotated[int, Meta(ge=1, description="compute threads of one actor")] = 1
    memory_bytes: Annotated[
        int, Meta(ge=0, description="an actor whose processes hold more than this together is replaced; 0: no limit")
    ] = 0
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"],
        Meta(description="what convolutions act in; auto asks the processor for bfloat16, int8 is faster still and less exact"),
    ] = "auto"


def run_seed(seed: int) -> int:
    """The seed of a run's first environment; those of the others follow."""
    return seed * 100_003


class EvaluatorConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How the newest weights are measured, greedily, while the run goes on."""

    enabled: Annotated[bool, Meta(description="whether a run has an evaluator")] = True
    episodes: Annotated[int, Meta(ge=1, description="episodes of a round, all with the same weights")] = 20
    max_episode_steps: Annotated[int, Meta(ge=1, description="an episode that lasts longer is cut there")] = 27_000
    core_share: Annotated[float, Meta(gt=0, le=1, description="share of one core that the evaluator takes at most")] = 0.15
