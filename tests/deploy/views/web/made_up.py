"""Folders of runs that never were: metrics, status, events and log as a run of any size writes them."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from actors.evaluation.video.kept import Video, add_video
from deploy.config.files import Layer, write_config
from deploy.config.layers import resolve
from deploy.reporting.events import RunEvent
from transport.run_dir import RunDir

BEGAN = 1_795_000_000.0
RECORD_SECONDS = 5.0


def made_up(
    folder: Path,
    *,
    seconds: float = 600.0,
    actors: int = 2,
    seed: int = 1,
    speed: float = 1.0,
    state: str = "stopped",
    troubled: bool = False,
    log_lines: Sequence[str] = (),
    **settings: Any,
) -> RunDir:
    """A run that learns CartPole with DQN, `speed` times as fast as usual. `settings`: of config.toml, section__key."""
    run = RunDir(folder)
    run.create()
    values: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "algorithm": {"name": "dqn"},
        "seed": seed,
        "actors": {"count": actors},
    }
    for name, value in settings.items():
        section, _, key = name.partition("__")
        values.setdefault(section, {})[key] = value
    run.config.write_bytes(write_config(resolve([Layer("command line", values)])))
    random = np.random.default_rng(seed)
    times: list[float] = np.arange(RECORD_SECONDS, seconds + 0.1, RECORD_SECONDS).tolist()
    rate = 1500.0 * actors
    _write_lines(run.metrics("replay"), [_replay(at, at * rate, random) for at in times])
    _write_lines(run.metrics("learner"), [_learner(at, seconds, random) for at in times])
    for number in range(actors):
        broken = troubled and number == 1
        _write_lines(run.metrics(f"actor-{number}"), [_actor(at, seconds, random, broken, speed) for at in times])
    evaluations = _evaluations(times[:: max(len(times) // 400, 2)], seconds, random, speed)
    _write_lines(run.metrics("evaluator"), evaluations)
    events = [
        RunEvent(BEGAN, "started", "supervisor", "the supervisor has started"),
        RunEvent(BEGAN + 8, "running", "supervisor", "every process is ready"),
        *(_troubles(seconds) if troubled else []),
    ]
    if state != "running":
        reason = "learner failed (exit status 1)" if state == "failed" else "stopped by you"
        events.append(RunEvent(BEGAN + seconds, state, "supervisor", reason))
    _write_lines(run.events, [{name: getattr(event, name) for name in RunEvent.__struct_fields__} for event in events])
    last = evaluations[-1]
    run.status.write_text(json.dumps(_status(run.name, state, seconds, actors, rate, last, troubled)))
    lines = [f"supervisor | run {run.name} begins", *_log(times, actors), *log_lines]
    run.log("run").write_text(
        "".join(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(BEGAN + 5 * i))} {line}\n" for i, line in enumerate(lines))
    )
    return run


def with_videos(run: RunDir, returns: Mapping[int, float], public: bool = True, data: bytes = b"a film") -> RunDir:
    """Gives the run videos of these policy versions and returns, the newest last."""
    run.videos.mkdir()
    for version, total in returns.items():
        file = f"best-v{version}.mp4"
        (run.videos / file).write_bytes(data + b" %d" % version)
        add_video(run, Video(file, version, total, public), 100)
    return run


def _write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _replay(at: float, steps: float, random: np.random.Generator) -> dict[str, Any]:
    items, rate = min(steps, 100_000), steps / at * random.uniform(0.9, 1.1)
    return {
        "time": BEGAN + at, "uptime_seconds": at, "inserted_steps": steps, "inserted_steps_per_second": rate,
        "sampled_items_per_second": 12_000 * random.uniform(0.9, 1.1), "items": items, "capacity": 100_000,
        "bytes": items * 30, "log_bytes": items * 34, "samples_per_insert": 4 + 2 * math.sin(at / 300) + random.normal() / 10,
        "band_low": 2.0, "band_high": 8.0, "busy_fraction": 0.3 + random.normal() / 50,
        "insert_hold_fraction": max(random.normal() / 10, 0), "sample_hold_fraction": 0.05,
    }  # fmt: skip


def _learner(at: float, seconds: float, random: np.random.Generator) -> dict[str, Any]:
    updates, learned = at * 120, at / seconds
    return {
        "time": BEGAN + at, "uptime_seconds": at, "updates": updates, "updates_per_second": 120 * random.uniform(0.95, 1.05),
        "updates_per_second_60": 120.0, "items": updates * 128, "items_per_second": 15_000.0,
        "policy_version": int(at / 4), "epoch": int(at / 4), "save_bytes": 400_000,
        "loss": 0.5 * math.exp(-2 * learned) + abs(random.normal()) / 20, "td": 3 * math.exp(-learned) + random.normal() / 10,
        "q": 80 * (1 - math.exp(-4 * learned)) + random.normal(), "gradient_norm": 2 + abs(random.normal()),
        "learning_rate": 1e-3 * (1 - learned / 2), "lag_mean": 12 + random.normal(),
        "data_wait_fraction": max(0.22 + random.normal() / 20, 0), "update_fraction": 0.7, "copy_fraction": 0.02,
        "checkpoint_fraction": 0.01, "starved_fraction": 0.1,
    }  # fmt: skip


def _progress(at: float, seconds: float, speed: float) -> float:
    return 1 / (1 + math.exp(-12 * (speed * at / seconds - 0.35)))


def _actor(at: float, seconds: float, random: np.random.Generator, broken: bool, speed: float) -> dict[str, Any]:
    down = broken and 0.55 < at / seconds < 0.62
    found = max(20 + 440 * _progress(at, seconds, speed) + random.normal() * 15, 9)
    return {
        "time": BEGAN + at, "uptime_seconds": at, "steps": at * 1500, "episodes": at * 5, "policy_version": int(at / 4),
        "steps_per_second": 0.0 if down else 1500 * random.uniform(0.85, 1.1), "lag": int(random.integers(0, 2)),
        "environments": 8, "broken_episodes": 3 if broken else 0, "episode_return": found, "episode_length": 200.0,
        "act_fraction": 0.35, "env_step_fraction": 0.45, "insert_fraction": 0.05,
        "wait_credit_fraction": max(0.08 + random.normal() / 40, 0),
        "raw_bytes_per_second": 60_000.0, "sent_bytes_per_second": 24_000.0,
    }  # fmt: skip


def _evaluations(times: Sequence[float], seconds: float, random: np.random.Generator, speed: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    best, best_version = -math.inf, 0
    for at in times:
        mean, version = min(20 + 480 * _progress(at, seconds, speed) + random.normal() * 25, 500.0), int(at / 4)
        if mean > best:
            best, best_version = mean, version
        success = round(20 * _progress(at, seconds, speed)) / 20
        found.append(
            {
                "time": BEGAN + at, "uptime_seconds": at, "rounds": len(found) + 1, "policy_version": version,
                "best_version": best_version, "episodes": 20, "return_mean": mean, "return_std": 60.0,
                "length_mean": mean, "score_mean": mean, "success_rate": success,
            }
        )  # fmt: skip
    return found


def _troubles(seconds: float) -> list[RunEvent]:
    at = BEGAN + seconds * 0.55
    return [
        RunEvent(at, "silent", "actor-1", "no report for 6 s"),
        RunEvent(at + 4, "restarted", "actor-1", "hung: no report for 10.2 s"),
        RunEvent(at + seconds * 0.04, "restarted", "actor-1", "died: SIGSEGV in the simulator"),
        RunEvent(at + seconds * 0.1, "broken_episodes", "actor-1", "broken episodes: 3 more", 3),
        RunEvent(at + seconds * 0.2, "rollbacks", "learner", "rollbacks: 1 more", 1),
        RunEvent(at + seconds * 0.3, "rejected", "replay", "rejected: 12 more", 12),
        RunEvent(at + seconds * 0.31, "abandoned", "actor-0", "ModuleNotFoundError: no module named my_env"),
    ]


def _status(
    name: str, state: str, seconds: float, actors: int, rate: float, last: dict[str, Any], troubled: bool
) -> dict[str, Any]:
    up = state == "running"
    names = ["replay", "learner", *(f"actor-{number}" for number in range(actors)), "evaluator"]
    processes = [
        {
            "name": one, "role": one.partition("-")[0], "pid": 4000 + number if up else None,
            "state": "ready" if up else "stopped", "silent_seconds": 0.4 if up else None, "restarts": 0, "last_exit": None,
            "steps_per_second": 1490.0 if up and one.startswith("actor") else None,
            "rss_bytes": 180_000_000 if up else None, "cpu_percent": 42.0 if up else None,
        }
        for number, one in enumerate(names)
    ]  # fmt: skip
    troubles: dict[str, Any] = {}
    if troubled:
        processes[3] |= {"restarts": 2, "last_exit": "died: SIGSEGV in the simulator", "state": "silent" if up else "stopped"}
        processes[2] |= {"restarts": 6, "last_exit": "ModuleNotFoundError: no module named my_env", "state": "failed"}
        troubles = {"actor-1": {"broken_episodes": 3}, "learner": {"rollbacks": 1}, "replay": {"rejected": 12}}
    shown = ("policy_version", "episodes", "success_rate", "return_mean", "score_mean", "best_version")
    learner = {"epoch": 100, "updates": 12_000, "updates_per_second": 120.0, "policy_version": 100}
    return {
        "run": name, "state": state, "reason": None if up else "stopped by you", "time": BEGAN + seconds,
        "pid": os.getpid(),  # that of the test, which has the lock while the run counts as up
        "uptime_seconds": seconds, "env": "CartPole-v1", "algorithm": "dqn",
        "steps": int(seconds * rate), "total_steps": int(seconds * rate * 1.25), "processes": processes,
        "replay": {"items": 100_000, "capacity": 100_000, "bytes": 3_000_000},
        "learner": learner | {"device": "cpu", "precision": "float32"},
        "evaluation": {key: last[key] for key in shown},
        "troubles": troubles, "next_seed": 9,
        "bottleneck": "simulators (actors 45% in env.step, learner waits 22%) · try more actors",
    }  # fmt: skip


def _log(times: Sequence[float], actors: int) -> list[str]:
    found: list[str] = []
    for at in times[:200]:
        found += [
            f"actor-{number % actors}  | 1,500 steps/s (10 s) · episodes {int(at)} · return 231.5 · policy v{int(at / 4)} lag 0"
            for number in range(2)
        ]
        found.append(f"learner  | epoch {int(at / 4)} · 120.0 updates/s · loss 0.0234 · data wait 22.0%")
    return [
        *found,
        "bottleneck: simulators (actors 45% in env.step) · try more actors",
        "supervisor | actor-1 died (hung: no report for 10.2 s); starting again",
    ]
