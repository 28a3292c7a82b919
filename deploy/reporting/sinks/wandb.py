"""A run's figures in Weights & Biases: `--track wandb`.

What is sent: the figures, the settings without [deploy], the run's name. Code, console, git, installed packages, the names of
machine and user, and measurements of the machine are not sent, although the library sends them by default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from deploy.reporting.base import Point
from deploy.reporting.sinks.hyperparameters import hyperparameters, own_id, tracking_folder

if TYPE_CHECKING:
    import wandb

CONNECT_SECONDS = 30.0
STEPS = "time/total_timesteps"


class WandbConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of WeightsAndBiases."""

    project: Annotated[str, Meta(min_length=1, description="project that the run belongs to")] = "headrace"
    entity: Annotated[str, Meta(description="team or user; empty means your default")] = ""
    group: Annotated[str, Meta(description="group of the run, such as that of several seeds")] = ""
    mode: Annotated[
        Literal["online", "offline"],
        Meta(description="offline writes to the run's folder tracking/ alone; `wandb sync` sends it later"),
    ] = "online"


class WeightsAndBiases:
    """Creates a run in the service, or continues that of a resumed run. If the service cannot be reached or no account is logged
    in, the figures are written to the run's folder."""

    Config: ClassVar[type[Struct]] = WandbConfig
    own_process: ClassVar[bool] = True
    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "track"

    def __init__(self, run: Path, config: WandbConfig) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # read at import: no reports about this machine to the library's makers
        import wandb

        self._folder, self._config = run, config
        try:
            self._run = self._open(config.mode)
        except wandb.errors.Error as error:
            reason = " ".join(str(error).split())
            print(f"{reason}; writing to {tracking_folder(run) / 'wandb'}, which `wandb sync --sync-all` sends later", flush=True)
            wandb.teardown()
            self._run = self._open("offline")
        self._run.define_metric("*", step_metric=STEPS)

    def write(self, record: Point) -> None:
        self._run.log({**record.values, STEPS: record.steps, "_timestamp": record.time})

    def close(self) -> None:
        self._run.finish()

    def _open(self, mode: Literal["online", "offline"]) -> wandb.Run:
        """Raises wandb.errors.Error."""
        import wandb

        private: dict[str, Any] = {
            "save_code": False,
            "disable_code": True,
            "disable_git": True,
            "disable_job_creation": True,
            "console": "off",
            "host": "-",  # empty would mean this machine's name
            "program": "-",
            "x_disable_meta": True,
            "x_disable_stats": True,
            "x_disable_machine_info": True,
            "x_save_requirements": False,
        }
        return wandb.init(
            project=self._config.project,
            entity=self._config.entity or None,
            group=self._config.group or None,
            name=self._folder.name,
            id=own_id(self._folder, "wandb"),
            resume="allow",
            dir=tracking_folder(self._folder),
            config=hyperparameters(self._folder),
            settings=wandb.Settings(mode=mode, silent=True, init_timeout=CONNECT_SECONDS, **private),
        )
