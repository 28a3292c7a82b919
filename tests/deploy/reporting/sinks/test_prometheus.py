"""The page for Prometheus has the newest figures, and the dashboard asks for nothing else."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.config.run import DeployConfig
from deploy.reporting.base import Point
from deploy.reporting.figures import tags
from deploy.reporting.sinks import prometheus
from deploy.reporting.sinks.feeds import Sinks
from deploy.reporting.sinks.prometheus import Prometheus, PrometheusConfig, named
from tests.harness.waiting import wait_until

parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client: pip install 'headrace[metrics]'")

POINT = Point(1200, 12.5, {"rollout/ep_rew_mean": -1.5, "actor/0/fps": 10.0, "actor/11/fps": 30.0, "train/loss": 0.25})
Sample = tuple[str, tuple[tuple[str, str], ...]]


def scraped(address: str) -> dict[Sample, float]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        text = answer.read().decode()
    families = parser.text_string_to_metric_families(text)
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples}


@pytest.fixture
def served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[Prometheus, str]]:
    """A sink on a free port, and its address."""
    sink = Prometheus(tmp_path / "night", PrometheusConfig(port=0))
    yield sink, capsys.readouterr().out.rpartition(" ")[2].strip()
    sink.close()


def test_the_figures_on_the_page_are_those_of_the_newest_point(served: tuple[Prometheus, str]) -> None:
    sink, address = served
    assert address.startswith("http://127.0.0.1:") and scraped(address) == {}
    sink.write(Point(1100, 11.5, {"rollout/ep_rew_mean": -9.0, "actor/5/fps": 1.0, "eval/mean_reward": 7.0}))
    sink.write(POINT)
    run = ("run", "night")
    assert scraped(address) == {
        ("headrace_steps", (run,)): 1200.0,
        ("headrace_point_timestamp_seconds", (run,)): 12.5,
        ("headrace_rollout_ep_rew_mean", (run,)): -1.5,
        ("headrace_actor_fps", (("actor", "0"), run)): 10.0,
        ("headrace_actor_fps", (("actor", "11"), run)): 30.0,
        ("headrace_train_loss", (run,)): 0.25,
        ("headrace_eval_mean_reward", (run,)): 7.0,  # stands until the next evaluation
    }


def test_shards_of_replay_are_beside_their_sum(served: tuple[Prometheus, str]) -> None:
    sink, address = served
    shards = {f"replay-{shard}": {"items": float(shard), "samples_per_insert": 2.0} for shard in (1, 2)}
    written = tags({}, {"items": 3.0, "samples_per_insert": 2.0}, {}, {}, 9.0, shards)
    sink.write(Point(9, 12.5, written))
    with urllib.request.urlopen(address, timeout=30) as answer:
        sizes = [line for line in answer.read().decode().splitlines() if line.startswith("headrace_replay_size{")]
    assert sorted(sizes) == [
        *('headrace_replay_size{replay="1",run="night"} 1.0', 'headrace_replay_size{replay="2",run="night"} 2.0'),
        'headrace_replay_size{run="night"} 3.0',
    ]


def test_any_tag_becomes_a_name_that_prometheus_takes() -> None:
    assert named("info/côté-2.x") == ("headrace_info_c_t__2_x", {})
    assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", named(tag)[0]) for tag in ("a b/{}", "9/lives", "", "ü"))


def test_a_port_that_is_taken_is_one_line_with_the_way_out(served: tuple[Prometheus, str], tmp_path: Path) -> None:
    port = served[1].rpartition(":")[2].partition("/")[0]
    said: list[str] = []
    deploy = DeployConfig(sinks=("prometheus",), sink_options={"prometheus": {"port": int(port)}})
    made = Sinks(deploy, tmp_path, said.append, lambda label, line: None)
    made.write(POINT)
    wait_until(lambda: said, 240, what="it is off")
    made.close()
    assert said == [
        f"sink prometheus is off for the rest of this run: OSError: port {port} cannot be used (Address already in use): "
        "give another with --deploy.sink-options.prometheus.port N"
    ]


def test_a_run_serves_its_figures_from_a_process_of_its_own(tmp_path: Path) -> None:
    lines: list[str] = []
    deploy = DeployConfig(sinks=("prometheus",), sink_options={"prometheus": {"port": 0}})
    made = Sinks(deploy, tmp_path / "night", lines.append, lambda label, line: lines.append(f"{label}: {line}"))
    made.write(POINT)
    wait_until(lambda: lines, 240, what="its address is in the log")
    assert lines[0].startswith("prometheus: figures for Prometheus: http://127.0.0.1:")
    found = wait_until(lambda: scraped(lines[0].rpartition(" ")[2]), what="the point has arrived")
    assert found["headrace_steps", (("run", "night"),)] == 1200.0
    made.close()
    with pytest.raises(OSError):
        scraped(lines[0].rpartition(" ")[2])


def test_every_query_of_the_dashboard_is_for_figures_that_a_run_has() -> None:
    dashboard: dict[str, Any] = json.loads(Path(prometheus.__file__).with_name("grafana.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    actor = {"episode_return": 1.0, "episode_length": 1.0, "success_rate": 1.0, "steps_per_second": 1.0}
    learner = {"loss": 1.0, "lag_mean": 1.0, "updates_per_second": 1.0, "data_wait_fraction": 0.0}
    evaluation = {"return_mean": 1.0, "length_mean": 1.0, "score_mean": 1.0, "success_rate": 1.0}
    written = tags({0: actor}, {"items": 1.0, "samples_per_insert": 1.0}, learner, evaluation, 1.0)
    served = {named(tag)[0] for tag in written} | {"headrace_steps"}
    asked = {re.fullmatch(r'(\w+)\{run=~"\$run"\}', target["expr"])[1] for target in targets}  # type: ignore[index]
    assert len(asked) > 10 and asked <= served
    labels = {label for target in targets for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}
    assert labels == {"run", *named("actor/0/fps")[1], *named("replay/0/size")[1]}
