"""The env, actors and evaluator sections of a run's configuration. No torch and no simulator here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from transport.names import FIXED


class EnvConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Which environment, and what every environment has. 0 means: what suits it. Its family's options lie in the same table."""

    id: Annotated[
        str,
        Meta(
            description="mario, mario:1-2, robot, snake, snake:8, ALE/Pong-v5, a Gymnasium id, package.module:factory or :Family",
            extra=FIXED,
        ),
    ] = "mario"
    stack: Annotated[int, Meta(ge=0, le=16, description="observations stacked; 0: 4 for images, 1 otherwise", extra=FIXED)] = 0
    max_episode_steps: Annotated[
        int, Meta(ge=0, description="truncate an episode after this many steps; 0: the environment's own", extra=FIXED)
    ] = 0
    quantise: Annotated[bool, Meta(description="store bounded float observations as uint8", extra=FIXED)] = False
    chunk_length: Annotated[
        int, Meta(ge=0, le=4096, description="rows per chunk, a power of two; 0: 128 images, 64 otherwise", extra=FIXED)
    ] = 0
    wrappers: Annotated[
        tuple[str, ...],
        Meta(description="package.module:Wrapper,… put around the environment in this order, each called with it", extra=FIXED),
    ] = ()
    preflight_seconds: Annotated[float, Meta(gt=0, description="time an environment has to be made and stepped")] = 60.0
    options: Any = None  # an instance of what its family's options_type() gives; None: its defaults


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


class ActorProcess(Struct, frozen=True, forbid_unknown_fields=True):
    """settings/actor-I.json, and settings/evaluator.json. `env` and `algorithm` are their tables of config.toml."""

    seed: int
    env: dict[str, Any]
    algorithm: dict[str, Any]
    actors: ActorsConfig = ActorsConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
