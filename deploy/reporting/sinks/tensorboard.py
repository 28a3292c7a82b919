"""TensorBoard event files. Only the supervisor writes them; x = environment steps."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

from deploy.reporting.base import Point
from transport.files.writing import open_to_append
from transport.metrics import INFO, Record

# Figures of the learner that have another tag, or that do not measure training.
NOT_TRAINING = ("policy_version", "epoch", "lag_mean", "rejected_weights")
SHARD_FIGURES = {"size": "items", "samples_per_insert": "samples_per_insert"}  # tag replay/<i>/…: figure of the record
DERIVED = ("_per_second", "_per_second_60", "_fraction", "_seconds")


class TensorBoard:
    """One event file per incarnation of the supervisor, in the run's folder tensorboard/. On a full disk points are lost."""

    def __init__(self, run: Path, config: object = None) -> None:
        """Writes and imports nothing before the first point."""
        self._folder = run / "tensorboard"
        self._file: IO[bytes] | None = None

    def write(self, record: Point) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in record.values.items()])
        try:
            self._append(Event(wall_time=record.time, step=record.steps, summary=summary).SerializeToString())
        except OSError:
            self.close()

    def close(self) -> None:
        """A later point opens another file."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:  # points that could not be flushed are lost
                pass
            self._file = None

    def _append(self, event: bytes) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
            self._file = open_to_append(self._folder / name)
            RecordWriter(self._file).write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        RecordWriter(self._file).write(event)
        self._file.flush()


def tags(
    actors: dict[int, Record],
    replay: Record,
    learner: Record,
    evaluation: Record,
    steps: float,
    shards: Mapping[str, Record] = MappingProxyType({}),
) -> Record:
    """The values to plot, from the newest records of the processes; those without a figure are left out. `shards`: of replay, by
    name; `replay` is then all of them together."""
    records = [record for record in actors.values() if record]
    found: dict[str, float | None] = {
        "rollout/ep_rew_mean": _mean(records, "episode_return"),
        "rollout/ep_len_mean": _mean(records, "episode_length"),
        "rollout/success_rate": _mean(records, "success_rate"),
        "time/fps": sum(record.get("steps_per_second", 0.0) for record in records) if records else None,
        "time/total_timesteps": steps,
        "eval/mean_reward": evaluation.get("return_mean"),
        "eval/mean_ep_length": evaluation.get("length_mean"),
        "eval/mean_score": evaluation.get("score_mean"),
        "eval/success_rate": evaluation.get("success_rate"),
        "replay/size": replay.get("items"),
        "replay/samples_per_insert": replay.get("samples_per_insert"),
        "policy/lag_mean": learner.get("lag_mean"),
        "learner/updates_per_second": learner.get("updates_per_second"),
        "learner/data_wait_fraction": learner.get("data_wait_fraction"),
    }
    names = dict.fromkeys(name for record in records for name in record if name.startswith(INFO))
    found |= {f"rollout/{name}": _mean(records, name) for name in names}
    found |= {f"eval/{name}": value for name, value in evaluation.items() if name.startswith(INFO)}
    found |= {f"actor/{index}/fps": record.get("steps_per_second") for index, record in actors.items()}
    for name, record in shards.items():
        found |= {f"{name.replace('-', '/')}/{figure}": record.get(key) for figure, key in SHARD_FIGURES.items()}
    counters = {name.removesuffix("_per_second") for name in learner if name.endswith("_per_second")}
    training = {name for name in learner if not name.endswith(DERIVED)} - counters - set(NOT_TRAINING)
    found |= {f"train/{name}": learner[name] for name in training}
    return {tag: value for tag, value in found.items() if value is not None}


def _mean(records: Sequence[Record], name: str) -> float | None:
    values = [record[name] for record in records if name in record]
    return sum(values) / len(values) if values else None
