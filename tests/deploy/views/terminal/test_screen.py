"""What `headrace top` draws: lines made of a status, metrics and events, for terminals of any size."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from deploy.recorded.status import empty
from deploy.reporting.events import RunEvent
from deploy.reporting.flow import NewestRecord, flow
from deploy.views.terminal.screen import SPARKS, Form, RunView, draw, sparkline
from transport.text import moment_text

LIMIT = "simulators (actors 98% in env.step, learner waits 63%) · try more actors, or faster ones, as far as there are free cores"


def process(name: str, **changed: Any) -> dict[str, Any]:
    usual = {"name": name, "role": name.partition("-")[0], "state": "ready", "pid": 7, "steps_per_second": None, "restarts": 0}
    return usual | {"rss_bytes": 2**27, "cpu_percent": 50.0, "last_exit": None, "host": None, "silent_seconds": 0.1} | changed


def make_view(actors: int = 2, waits: float = 0.63, events: tuple[RunEvent, ...] = (), **changed: Any) -> RunView:
    status = empty("night", "CartPole-v1", "dqn") | {
        "state": "running",
        "uptime_seconds": 754.0,
        "steps": 412_003,
        "total_steps": 1_000_000,
        "bottleneck": LIMIT,
        "processes": [
            process("replay"),
            process("learner"),
            *(process(f"actor-{number}", steps_per_second=815.0) for number in range(actors)),
        ],
        "evaluation": {"policy_version": 42, "return_mean": 441.5, "success_rate": 0.35, "best_version": 40, "episodes": 20},
    }
    newest: dict[str, NewestRecord] = {
        "replay": {
            "time": 1.0,
            "items": 2200.0,
            "capacity": 10_000.0,
            "band_low": 16.0,
            "inserted_steps_per_second": 1630.0,
            "sampled_items_per_second": 51_200.0,
        },
        "learner": {"time": 1.0, "updates_per_second": 9.96, "policy_version": 43.0, "data_wait_fraction": waits},
        **{f"actor-{number}": {"time": 1.0, "lag": 1.0, "wait_credit_fraction": 0.0} for number in range(actors)},
    }
    returns = [math.nan, 10.0, 20.0, math.nan, 80.0, 160.0]
    status |= changed
    return RunView(status | {"flow": msgspec.to_builtins(flow(status, newest))}, returns, events, 1000.0)


def drawn(shown: RunView, width: int, height: int = 0, unicode: bool = True) -> list[str]:
    return [line.plain.rstrip() for line in draw(shown, Form(width, height, unicode))]


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("height", [0, 1, 10, 24, 60])
@pytest.mark.parametrize("width", [20, 33, 60, 80, 200])
def test_no_line_is_wider_and_no_picture_higher_than_the_terminal(width: int, height: int, unicode: bool) -> None:
    trouble = tuple(RunEvent(990.0 - k, "restarted", f"actor-{k}", "exit 1 \x1b[31m 漢字" * 9) for k in range(9))
    for shown in (make_view(), make_view(64, events=trouble), make_view(state="failed", reason="x" * 300)):
        lines = draw(shown, Form(width, height, unicode))
        assert all(line.cell_len <= width for line in lines) and len(lines) <= (height or 999)
        text = "".join(line.plain for line in lines)
        assert "\x1b" not in text and (unicode or text.isascii())


def test_eighty_columns_show_the_flow_in_one_line_and_the_place_that_is_blocked() -> None:
    lines = drawn(make_view(), 80, 24)
    assert lines[0] == "night running 12 min · CartPole-v1 · dqn · 412,003 of 1,000,000 steps"
    assert lines[1:3] == [
        "limit   simulators (actors 98% in env.step, learner waits 63%)",
        "next    try more actors, or faster ones, as far as there are free cores",
    ]
    flow = next(line for line in lines if line.startswith("actors"))
    assert flow == "actors 2 ─1,630 steps/s─▶ replay 22% ─51.2k items/s✕▶ learner 10.0 updates/s"
    assert "blocked: learner waits 63% of the time" in lines and "weights v43, actors are 1.0 versions behind" in lines
    assert "return   ▁▁ ▄█ 160.0" in lines
    assert "eval    v42 · success 35% · return 441.5 · best v40" in lines and "no trouble so far" in lines
    assert [line.split() for line in lines if line.startswith("actor-1")] == [
        ["actor-1", "ready", "815", "0", "128", "MB", "50%"]
    ]


LIMITED = "paused since 2001-09-09 03:45 · go on with headrace unpause"
EXPECTED, ENDS = {"figure": "return_mean", "score": 441.5, "low": 430.0, "high": 460.0}, moment_text(1600.0, 1000.0)
HOSTS = [
    {"name": "host-0", "state": "joined", "places": 8, "actors": 5},
    {"name": "host-1", "state": "silent", "places": 8, "actors": 8},
    *({"name": f"host-{number}", "state": "waiting", "places": 8, "actors": 0} for number in range(2, 12)),
]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"state": "paused", "paused_since": 400.0}, "night paused 10 min · CartPole-v1 · dqn · 412,003 of 1,000,000 steps"),
        ({"state": "paused", "bottleneck": LIMITED}, "next    go on with headrace unpause"),
        ({"state": "dead", "time": 400.0}, "night dead 10 min ago · CartPole-v1 · dqn · 412,003 of 1,000,000 steps"),
        ({"inference": {"rows_per_second": 1234.5, "rows_per_pass": 16.04}}, "inference 1,234 rows/s · 16.0 rows a pass"),
        ({"hosts": HOSTS}, "hosts   1 joined, 1 silent, 10 waiting · 13 of 96 places"),
        ({"ends_at": 1600.0, "forecast": EXPECTED}, f"ends    {ENDS}, in 10 min · forecast return 441.5 (430.0 to 460.0)"),
        ({"state": "stopped"}, "actors 2 ───▶ replay 22% ───▶ learner"),
    ],
)
def test_a_state_a_host_or_an_inference_process_has_its_line(changed: dict[str, Any], line: str) -> None:
    assert line in drawn(make_view(**changed), 100) and line not in drawn(make_view(), 100)


def test_a_narrow_terminal_shows_the_flow_from_top_to_bottom_and_fewer_columns() -> None:
    lines = drawn(make_view(), 40, 40)
    at = lines.index("actors  2")
    assert lines[at : at + 5] == [
        "actors  2",
        "  ▼ 1,630 steps/s",
        "replay  22%",
        "  ✕ 51.2k items/s  blocked: learner wai…",
        "learner 10.0 updates/s",
    ]
    heading = next(line for line in lines if line.startswith("process"))
    assert heading.split() == ["process", "state", "steps/s", "restarts"]


def test_a_terminal_without_unicode_shows_the_same_in_ascii() -> None:
    lines = drawn(make_view(), 80, 24, unicode=False)
    assert "actors 2 -1,630 steps/s-> replay 22% -51.2k items/sX> learner 10.0 updates/s" in lines
    assert any(line.startswith("return") and line.endswith("# 160.0") for line in lines)


def test_processes_in_trouble_come_first_and_the_rest_is_summed_up() -> None:
    shown = make_view(64)
    shown.status["processes"][40] |= {"state": "silent", "silent_seconds": 12.0}
    lines = drawn(shown, 80, 24)
    at = next(number for number, line in enumerate(lines) if line.startswith("process"))
    assert lines[at + 1].split()[:4] == ["actor-38", "silent", "12", "s"] and len(lines) == 24
    kept = len(lines) - at - 2
    assert lines[-1].startswith(f"and {66 - kept} more, ")


def test_the_newest_troubles_are_told_with_their_age() -> None:
    events = (
        RunEvent(100.0, "started", "supervisor", "the supervisor has started"),
        RunEvent(400.0, "restarted", "actor-1", "exit 1"),
        RunEvent(995.0, "rollbacks", "learner", "rollbacks: 1 more"),
    )
    lines = drawn(make_view(events=events), 80)
    at = lines.index("trouble")
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["5", "s", "ago", "learner", "rollbacks:", "rollbacks:", "1", "more"],
        ["10", "min", "ago", "actor-1", "restarted:", "exit", "1"],
    ]


def test_a_run_without_any_figure_is_drawn() -> None:
    lines = drawn(RunView(empty("new", "toy", "ppo"), [], [], 0.0), 60, 24)
    assert lines[0] == "new stopped · toy · ppo" and "no episode has ended yet" in lines


def test_a_sparkline_has_the_means_of_equal_shares() -> None:
    assert sparkline([1.0, 3.0, 2.0, 2.0, 9.0, 9.0], 3, SPARKS) == "▁▁█"
    assert sparkline([0.0, math.nan, 7.0], 9, SPARKS) == "▁ █"
    assert sparkline([5.0, 5.0], 9, SPARKS) == "▅▅" and sparkline([math.nan], 9, SPARKS) == "" == sparkline([], 9, SPARKS)
