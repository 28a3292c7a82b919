"""The deploy section of a run's configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class DeployConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How the processes of a run are kept alive and brought to an end."""

    stop_seconds: Annotated[float, Meta(gt=0, le=300, description="time for an orderly stop; then whoever is left is killed")] = (
        8.0
    )
    leave_seconds: Annotated[
        float, Meta(ge=0, description="time an actor that is no longer wanted has to hand over what it holds")
    ] = 60.0
    restarts: Annotated[
        int, Meta(ge=0, description="deaths of one process that are made good by a restart before the next gives it up")
    ] = 6
    healthy_seconds: Annotated[float, Meta(gt=0, description="so long at work makes up for one of them")] = 5.0
    min_actors: Annotated[
        int, Meta(ge=1, description="with fewer actors that have not been given up the run fails (never more than there are)")
    ] = 1
    hang_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="an actor at work that is silent for so long is replaced; longer where steps take longer; "
            "0: 3.5, or four times what the slowest reset or step took in the check before launch",
        ),
    ] = 0.0
    stall_seconds: Annotated[
        float,
        Meta(gt=0, description="the same for learner, replay and evaluator, and an actor until its first step is done"),
    ] = 300.0
    bind: Annotated[
        str,
        Meta(
            description="address that servers listen on over TCP, such as 127.0.0.1 or ::1; any that other machines reach needs "
            "`headrace keys`; empty: private sockets of this user"
        ),
    ] = ""
    advertise: Annotated[
        str,
        Meta(
            description="name or address that clients connect to; empty: that of deploy.bind, for 0.0.0.0 and :: the host's name"
        ),
    ] = ""
    actor_python: Annotated[
        str, Meta(description="interpreter of whatever makes an environment (actors, evaluator, pre-flight); empty: this one")
    ] = ""
    verbosity: Annotated[
        Literal["all", "events"],
        Meta(description="what the terminal shows: all that the log has, or only starts, ends, evaluations and bottlenecks"),
    ] = "all"
    sinks: Annotated[
        tuple[str, ...],
        Meta(description="where figures go besides the run's files: tensorboard, jsonl, package.module:Name"),
    ] = ("tensorboard",)
    sink_options: Annotated[
        dict[str, dict[str, Any]], Meta(description='the options of a sink: [deploy.sink_options."package.module:Name"]')
    ] = {}
    log_bytes: Annotated[int, Meta(ge=10_000, description="a log file is set aside at this size")] = 20_000_000
    metrics_bytes: Annotated[int, Meta(ge=10_000, description="a file of metrics is set aside at this size")] = 20_000_000
    fresh_kept: Annotated[
        int, Meta(ge=0, description="old folders of a run that --fresh keeps; it removes the oldest beyond these")
    ] = 5
    files_kept: Annotated[int, Meta(ge=1, le=100, description="files set aside that are kept, of each log and of metrics")] = 1
