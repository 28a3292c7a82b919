"""A run's figures in MLflow: `--track mlflow`.

They go to the server that `uri` or MLFLOW_TRACKING_URI names, or into the database tracking/mlflow.db in the run's folder.
Neither code nor the names of machine and user are sent: MLflow's `start_run` would, its client does not.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta, Struct

from deploy.reporting.base import Point
from deploy.reporting.sinks.hyperparameters import hyperparameters, own_id, tracking_folder

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

KEY = "headrace.id"  # a tag of the run, by which a resumed run is found
WAITING_METRICS = 20_000  # that are kept while the server cannot be reached: some hours
METRICS_PER_CALL, PARAMS_PER_CALL, PARAM_LETTERS = 1000, 100, 500  # limits of the service
INVALID = re.compile(r"[^/\w.\- ]")
# Short waits: what cannot be sent now is sent with the next point.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}


class MLflowConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of MLflow."""

    experiment: Annotated[str, Meta(min_length=1, description="experiment that the run belongs to")] = "headrace"
    uri: Annotated[
        str,
        Meta(description="tracking server or database; empty means MLFLOW_TRACKING_URI, or a database in the run's folder"),
    ] = ""


class MLflow:
    """Creates a run in MLflow, or continues that of a resumed run. What cannot be sent is kept and sent with a later point."""

    Config: ClassVar[type[Struct]] = MLflowConfig
    own_process: ClassVar[bool] = True
    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "track"

    def __init__(self, run: Path, config: MLflowConfig) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        own = f"sqlite:///{(tracking_folder(run) / 'mlflow.db').resolve().as_posix()}"
        self._client: MlflowClient = MlflowClient(config.uri or os.environ.get("MLFLOW_TRACKING_URI") or own)
        self._folder, self._config = run, config
        self._run_id = ""
        self._waiting: list[Metric] = []
        self._reachable = True

    def write(self, record: Point) -> None:
        from mlflow.entities import Metric

        milliseconds = int(record.time * 1000)
        self._waiting += [Metric(named(tag), value, milliseconds, record.steps) for tag, value in record.values.items()]
        del self._waiting[:-WAITING_METRICS]
        self._send()

    def close(self) -> None:
        self._send()
        if self._run_id and self._reachable:
            self._client.set_terminated(self._run_id)

    def _send(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._run_id = self._run_id or self._open()
            while self._waiting:
                self._client.log_batch(self._run_id, metrics=self._waiting[:METRICS_PER_CALL])
                del self._waiting[:METRICS_PER_CALL]
        except MlflowException as error:
            if self._reachable:
                print(f"{' '.join(str(error).split())[:300]}; figures are kept until it answers", flush=True)
            self._reachable = False
        else:
            self._reachable = True

    def _open(self) -> str:
        """The id of the run in MLflow. Raises MlflowException."""
        client, key = self._client, own_id(self._folder, "mlflow")
        found = client.get_experiment_by_name(self._config.experiment)
        experiment = found.experiment_id if found else client.create_experiment(self._config.experiment)
        known = client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
        if known:
            client.update_run(known[0].info.run_id, status="RUNNING")
            return str(known[0].info.run_id)
        made = client.create_run(experiment, tags={KEY: key}, run_name=self._folder.name).info.run_id
        params = _params(hyperparameters(self._folder))
        for first in range(0, len(params), PARAMS_PER_CALL):
            client.log_batch(made, params=params[first : first + PARAMS_PER_CALL])
        return str(made)


def named(tag: str) -> str:
    """A tag as a name that the service takes, which is a path: an own algorithm's "train/KL(p, q)" is train/KL_p_ q_. It refuses
    a whole call for one wrong name."""
    return posixpath.normpath(INVALID.sub("_", tag))


def _params(values: dict[str, Any]) -> list[Param]:
    from mlflow.entities import Param

    return [Param(name, str(value)[:PARAM_LETTERS]) for name, value in values.items()]
