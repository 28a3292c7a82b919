"""The env, actors and evaluator sections of a run's configuration. Imports neither torch nor a simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from transport.experience import ExperienceSpec
from transport.messages.control import Assignment
from transport.names import CODE, FIXED, RARE, Named

# It becomes part of tags, column names and log lines.
InfoKeyword = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=40)]


class EnvConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The environment, and what applies to every environment. An environment's own options are in the same table."""

    id: Annotated[
        str,
        Meta(
            description="environment: mario, mario:1-2, robot, snake:8, a Gymnasium id (CartPole-v1, ALE/Pong-v5), or "
            "package.module:Name for a factory or family of your own",
            extra=FIXED | CODE,
        ),
    ] = "mario"
    stack: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="observations stacked into one input; 0 means the usual number of the environment: 4 for "
            "images, 1 for vectors",
            extra=FIXED,
        ),
    ] = 0
    max_episode_steps: Annotated[
        int,
        Meta(
            ge=0,
            description="steps after which an episode is truncated; 0 means the limit of the environment itself",
            extra=FIXED,
        ),
    ] = 0
    quantise: Annotated[
        bool, Meta(description="store bounded float observations as uint8: a quarter of the memory, but less exact", extra=FIXED)
    ] = False
    chunk_length: Annotated[
        int,
        Meta(
            ge=0,
            le=4096,
            description="steps that are sent and stored together, a power of two; 0 means 128 for images and 64 for vectors",
            extra=FIXED,
        ),
    ] = 0
    wrappers: Annotated[
        tuple[str, ...],
        Meta(
            description="wrappers put around the environment in this order, each package.module:Wrapper, separated by commas",
            extra=FIXED | CODE,
        ),
    ] = ()
    info_keywords: Annotated[
        tuple[InfoKeyword, ...],
        Meta(
            max_length=32,
            description='keys of info whose values at the end of episodes are measured: distance for info["distance"]; separated '
            "by commas",
        ),
    ] = ()
    preflight_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="time that making and stepping the environment may take in the check before the launch; raise "
            "it for a slow simulator",
        ),
    ] = 60.0
    options: Any = None  # an instance of what its family's options_type() gives; None: the defaults


class ActorsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The processes that step environments."""

    count: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="actor processes; more collect faster as long as CPU cores are free. Left out: one for every two "
            "cores, 2 to 16, or fewer where memory is short",
        ),
    ] = 0
    envs_per_actor: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="environments in each actor, which share one forward pass per step; more collect faster and use "
            "more memory. Left out: 4 with images and 8 without",
        ),
    ] = 0
    chunk_seconds: Annotated[
        float,
        Meta(gt=0, description="longest time that an actor keeps steps before it sends them, even if the chunk is not full"),
    ] = 10.0
    threads: Annotated[int, Meta(ge=1, le=1024, description="CPU threads that compute in each actor")] = 1
    memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="memory that one actor and its child processes may use before it is replaced, for simulators "
            "that leak; 0 means no limit",
        ),
    ] = 0
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"],
        Meta(
            description="number type of convolutions while acting. auto: float32 in numpy for small networks, otherwise bfloat16 "
            "where the CPU is faster with it; int8: faster for large networks, less exact"
        ),
    ] = "auto"
    inference: Annotated[
        Literal["local", "batched"],
        Meta(
            description="where the policy's network runs while acting. local: in each actor; batched: in one process on each "
            "machine, for all its actors"
        ),
    ] = "local"
    inference_device: Annotated[
        str,
        Meta(
            description="device of batched inference on each machine with actors: auto, cpu, cuda, cuda:1, xpu, mps or directml"
        ),
    ] = "cpu"
    inference_threads: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="CPU threads of batched inference; 0 means half as many as the machine has cores",
            extra=RARE,
        ),
    ] = 0


def usual_environments(images: bool) -> int:
    """actors.envs_per_actor, where no number is asked for."""
    return 4 if images else 8


def run_seed(seed: int) -> int:
    """The seed of a run's first environment; the others have the seeds after it."""
    return seed * 100_003


class EvaluatorConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The process that measures the newest weights, acting greedily, while the run goes on."""

    enabled: Annotated[
        bool, Meta(description="start an evaluator process, which measures the newest weights and keeps the best")
    ] = True
    episodes: Annotated[
        int,
        Meta(
            ge=1,
            description="episodes of one evaluation, all played with the same weights; fewer where they take longer than 40 s, "
            "and up to three times as many for weights that may be the best",
        ),
    ] = 20
    max_episode_steps: Annotated[int, Meta(ge=1, description="steps after which an episode of an evaluation is cut off")] = 27_000
    max_idle_steps: Annotated[
        int,
        Meta(
            ge=0,
            description="steps without reward after which an episode of an evaluation is cut off, such as a game that waits for "
            "a button; 0 means never",
            extra=RARE,
        ),
    ] = 3_000
    core_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="largest share of one CPU core that the evaluator uses after its first 2 s of processor time; raise it "
            "for more frequent evaluations",
        ),
    ] = 0.15
    last_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="longest time for an evaluation of the last policy when the run has reached its --total-steps or "
            "--stop-after. After 10 s it ends with the first episode of each environment; 0: it is not evaluated",
            extra=RARE,
        ),
    ] = 60.0
    videos: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="videos of the best policies that are kept in videos/, one episode of each; they take at most a tenth of "
            "the evaluator's time. 0 records none",
        ),
    ] = 0


class ActorProcess(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of settings/actor-I.json and settings/evaluator.json. `env` and `algorithm` are tables of config.toml."""

    seed: int
    env: dict[str, Any]
    algorithm: dict[str, Any]
    actors: ActorsConfig = ActorsConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    shards: int = 1  # replay processes
    limited: bool = False  # the run has total_steps: an actor takes no step before the supervisor says how many it may take


@dataclass(frozen=True)
class ActorSettings:
    """The settings of one actor, or of the evaluator, with the environment and the algorithm read from their tables."""

    index: int
    process: ActorProcess
    env: EnvConfig
    algorithm: Named
    spec: ExperienceSpec

    @property
    def assignment(self) -> Assignment:
        """This actor's place among the environments of the run, until the supervisor assigns another."""
        actors = self.process.actors
        streams = actors.envs_per_actor
        offset = self.index * streams
        return Assignment(offset, max(actors.count * streams, offset + streams), run_seed(self.process.seed) + offset)
