"""A run's newest figures for Prometheus, on a page of this machine: http://127.0.0.1:9464/metrics.

A tag becomes the name of a metric: `rollout/ep_rew_mean` is headrace_rollout_ep_rew_mean. A number in a tag becomes a label with
the name of the word before it: `actor/3/fps` is headrace_actor_fps{actor="3"}. grafana.json beside this file is a dashboard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta, Struct

from deploy.reporting.base import EVALUATION, Point

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

LOOPBACK = "127.0.0.1"
INVALID = re.compile(r"[^a-zA-Z0-9_]")


class PrometheusConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of Prometheus."""

    port: Annotated[int, Meta(ge=0, le=65535, description="TCP port on 127.0.0.1; 0 means any that is free")] = 9464


class Prometheus:
    """Serves the newest value of each figure."""

    Config: ClassVar[type[Struct]] = PrometheusConfig
    own_process: ClassVar[bool] = True
    package: ClassVar[str] = "prometheus_client"
    extra: ClassVar[str] = "metrics"

    def __init__(self, run: Path, config: PrometheusConfig) -> None:
        """Raises OSError, in one line, where the port is taken."""
        from prometheus_client import CollectorRegistry, start_http_server

        self._run, self._newest = run.name, Point(0, 0.0, {})
        registry = CollectorRegistry()
        registry.register(self)  # type: ignore[arg-type]
        try:
            self._server, _ = start_http_server(config.port, LOOPBACK, registry)
        except OSError as error:
            advice = "give another with --deploy.sink-options.prometheus.port N"
            raise OSError(f"port {config.port} cannot be used ({error.strerror}): {advice}") from error
        print(f"figures for Prometheus: http://{LOOPBACK}:{self._server.server_port}/metrics", flush=True)

    def write(self, record: Point) -> None:
        # The figures of an evaluation stay until the next one.
        standing = {tag: value for tag, value in self._newest.values.items() if tag.startswith(EVALUATION)}
        self._newest = record._replace(values=standing | dict(record.values))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called at each request, in the server's thread."""
        from prometheus_client.core import GaugeMetricFamily

        newest = self._newest
        if not newest.time:
            return
        families: dict[str, Any] = {}
        for name, (tag, labels, value) in _metrics(newest):
            family = families.setdefault(name, GaugeMetricFamily(name, f"{tag} of a Headrace run"))
            family.add_sample(name, {"run": self._run} | labels, value)  # those of one name may have different labels
        yield from families.values()


def _metrics(point: Point) -> Iterator[tuple[str, tuple[str, dict[str, str], float]]]:
    """Each metric's name with its tag, labels and value."""
    yield "headrace_steps", ("environment steps", {}, point.steps)
    yield "headrace_point_timestamp_seconds", ("time of the newest point", {}, point.time)
    for tag, value in point.values.items():
        name, labels = named(tag)
        yield name, (tag, dict(labels), value)


def named(tag: str) -> tuple[str, Mapping[str, str]]:
    """The name and the labels of a tag."""
    words, labels = ["headrace"], dict[str, str]()
    for word in tag.split("/"):
        if word.isdigit():
            labels[words[-1]] = word
        else:
            words.append(INVALID.sub("_", word))
    return "_".join(words), labels
