"""The evaluator: what it measures, what it keeps, and how little it takes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from actors.config import ActorsConfig, EnvConfig, EvaluatorConfig
from actors.episodes import Episode
from actors.evaluation import evaluator as module
from actors.evaluation.evaluator import Best, Evaluator, Throttle, describe, equally_often
from actors.evaluation.video.kept import read_videos
from actors.settings import read_settings
from learner.weights import checkpoint
from replay.config import ReplayConfig
from tests.actors.evaluation import test_demo
from tests.actors.evaluation.test_demo import make_run
from tests.harness.fleet import Fleet
from tests.harness.waiting import wait_until
from transport.messages.control import Answer, Order, Progress, Stop
from transport.messages.fields import Message
from transport.metrics import Metrics
from transport.sockets.server import Server

ABOUT = {"spec_digest": "a" * 16, "env": "toy", "algorithm": "dqn"}
WEIGHTS = {"w": np.ones(2, np.float32)}


def figures(success: float | None, returns: float) -> dict[str, object]:
    return {"success_rate": success, "return_mean": returns, "episodes": 20, "broken_episodes": 0, "idle_episodes": 0}


def test_success_counts_before_return_and_a_restart_knows_what_was_best(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    best = Best(path, ABOUT)
    steps = [
        (None, -100.0, True),
        (None, -90.0, True),
        (0.1, -95.0, True),
        (0.0, 90.0, False),
        (0.1, -95.0, True),
        (0.1, 21.0, True),
    ]
    for version, (success, returns, better) in enumerate(steps, 1):
        assert best.consider(version, WEIGHTS, figures(success, returns)) == better
    again = Best(path, ABOUT)
    assert again.version == best.version == 6 and not again.consider(7, WEIGHTS, figures(0.1, 20.0))
    assert checkpoint.read(path)[1]["policy_version"] == "6"


def test_another_spec_or_a_damaged_file_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "best.safetensors"
    Best(path, ABOUT).consider(7, WEIGHTS, figures(1.0, 10.0))
    assert Best(path, ABOUT | {"spec_digest": "b" * 16}).version == -1
    path.write_bytes(b"not weights")
    assert Best(path, ABOUT).version == -1 and "is not used" in capsys.readouterr().out


def test_rest_is_owed_for_work_and_not_saved_up() -> None:
    used, now = 5.0, 100.0
    throttle = Throttle(0.1, used=lambda: used, clock=lambda: now)
    assert throttle.sleep_seconds() == 0
    used, now = 6.0, 101.0
    assert throttle.sleep_seconds() == pytest.approx(9.0)
    now = 500.0
    assert throttle.sleep_seconds() == 0
    throttle.begin()
    used, now = 6.5, 500.5
    assert throttle.sleep_seconds() == pytest.approx(4.5)


def test_the_first_evaluations_are_not_slowed_down() -> None:
    used, now = 5.0, 100.0
    throttle = Throttle(0.1, free=2.0, used=lambda: used, clock=lambda: now)
    used, now = 6.5, 101.5
    assert throttle.sleep_seconds() == 0
    throttle.begin()
    used, now = 7.5, 102.5
    assert throttle.sleep_seconds() == pytest.approx(4.0), "half a second of it counts"
    throttle.begin()
    used, now = 8.0, 103.0
    assert throttle.sleep_seconds() == pytest.approx(4.5)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (figures(0.35, 1523.44), "success 35% · return 1,523.4"),
        (figures(None, -1.0), "return -1.00"),
        (figures(0.5, 1.0) | {"broken_episodes": 3, "idle_episodes": 1}, "success 50% · return 1.00 · 3 broken · 1 idle"),
    ],
)
def test_the_line_says_what_there_is(found: dict[str, object], said: str) -> None:
    assert describe(42, found, 40) == f"v42 · 20 episodes · {said} · best v40"


def test_each_reset_and_step_is_reported_because_together_they_may_take_longer_than_a_process_may_be_silent(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", f"{test_demo.__name__}:Painted")
    beats: list[str] = []
    lifetime: Any = SimpleNamespace(beat=lambda: beats.append("here"))
    evaluator = Evaluator(read_settings(run), EvaluatorConfig(), run, lifetime)
    assert evaluator._videos is None, "none was asked for"
    env = evaluator._env
    env.reset()
    assert len(beats) == env.count > 1
    env.step(np.zeros(env.count, np.int64))
    assert len(beats) == 2 * env.count


class Slow(test_demo.Painted):
    """Episodes of 100 steps, each of which takes step_seconds of a clock of its own."""

    step_seconds = now_seconds = 0.0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        Slow.now_seconds += Slow.step_seconds
        _, reward, _, _, info = super().step(action)
        return np.zeros(1, np.float32), reward, self.now == 100, False, info


@pytest.mark.parametrize(("step_seconds", "environments", "episodes"), [(0.001, 4, 20), (0.05, 4, 8), (0.2, 1, 2), (0.45, 1, 1)])
def test_whatever_a_step_takes_there_are_five_evaluations_in_five_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_seconds: float, environments: int, episodes: int
) -> None:
    monkeypatch.setattr(Slow, "step_seconds", step_seconds)
    monkeypatch.setattr(Slow, "now_seconds", 0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: Slow.now_seconds))
    run = make_run(tmp_path / "run", f"{__name__}:Slow")
    monkeypatch.setattr(Throttle, "sleep_seconds", lambda _: 0.0)
    lifetime: Any = SimpleNamespace(beat=lambda: None, answer=lambda *_: False, stopping=False, paused=False, metrics=Metrics())
    evaluator = Evaluator(read_settings(run), EvaluatorConfig(), run, lifetime)
    found = []
    while Slow.now_seconds < 300 and len(found) < 9:
        found.append(evaluator._play(1, ordered=False))
    played = [each for each in found if each is not None]
    assert evaluator._env.count == environments and {len(each) for each in played} == {episodes}
    assert len(played) >= 5


def test_weights_that_may_be_the_best_are_evaluated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", f"{test_demo.__name__}:Painted")
    lines: list[str] = []
    lifetime: Any = SimpleNamespace(beat=lambda: None, record_soon=lambda: None, paused=False, stopping=False, metrics=Metrics())
    evaluator = Evaluator(read_settings(run), EvaluatorConfig(), run, lifetime, lines.append)
    returns: list[float | None] = []  # None: the evaluation is to be begun again

    def play(version: int, ordered: bool) -> list[Episode] | None:
        lifetime.stopping = not returns
        found = returns.pop(0) if returns else None
        return None if found is None else [Episode(0, found, 1, 0.0, None)]

    monkeypatch.setattr(evaluator, "_play", play)
    for version, (given, paused, said) in enumerate(
        [
            ([1.0, 9.0], False, "v1 · 1 episodes · return 1.00 · best v1"),  # the first
            ([0.5, 9.0], False, "v2 · 1 episodes · return 0.5 · best v1"),
            ([5.0, -9.0, 9.0], False, "v3 · 2 episodes · return -2.00 · best v1"),
            ([3.0, 1.0, 2.0, 9.0], False, "v4 · 3 episodes · return 2.00 · best v4"),
            ([3.0], False, "v5 · 1 episodes · return 3.00 · best v5"),  # it has to stop
            ([3.0, None, 5.0], False, "v6 · 2 episodes · return 4.00 · best v6"),
            ([], False, ""),
            ([4.0, 9.0], True, "v8 · 1 episodes · return 4.00 · best v8"),
        ],
        1,
    ):
        lines.clear()
        returns[:] = given
        lifetime.paused = paused
        evaluator._measure(version, ordered=paused)
        assert lines == ([said] if said else [])


def test_each_environment_counts_as_often_as_the_others() -> None:
    played = [Episode(env, 0.0, length, 0.0, None) for env, length in [(1, 3), (1, 4), (0, 9), (1, 5), (0, 8)]]
    assert sorted((episode.env, episode.length) for episode in equally_often(played, 2)) == [(0, 8), (0, 9), (1, 3), (1, 4)]
    assert equally_often(played, 3) == []


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path / "run", EnvConfig(id="CartPole-v1"), ActorsConfig(), ReplayConfig(), 1)
    yield made
    made.close()


def evaluating(fleet: Fleet, **evaluator: object) -> None:
    """Starts the evaluator with these settings of its section."""
    path = fleet.run_dir.settings("evaluator")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"evaluator": evaluator}))
    fleet.start("evaluator", "actors.evaluation.evaluator", str(fleet.run_dir.path))


@pytest.mark.flow
def test_it_follows_the_weights_reports_each_round_and_keeps_the_best(fleet: Fleet) -> None:
    transport = fleet.run_dir.settings("transport")
    settings = json.loads(transport.read_text()) if transport.exists() else {}
    transport.write_text(json.dumps(settings | {"record_seconds": 1000}))  # only the best evaluations are recorded at once
    evaluating(fleet, episodes=5, core_share=0.2)
    metrics = fleet.run_dir.metrics("evaluator")
    process = psutil.Process(fleet.processes["evaluator"].pid)
    wait_until(lambda: process.nice() > 0, 60, "a low priority")
    fleet.publish()
    wait_until(lambda: "v1 · 5 episodes · return" in fleet.log("evaluator"), 60, "a round of v1")
    assert fleet.log("evaluator").startswith("v1")  # version 0 is not worth a word
    wait_until(lambda: metrics.exists() and bool(metrics.read_text()), 60, "a record of the best evaluation")
    assert json.loads(metrics.read_text().splitlines()[0])["best_version"] == 1
    weights, metadata = checkpoint.read(fleet.run_dir.best)
    assert metadata["policy_version"] == "1" and float(metadata["return_mean"]) > 5
    checkpoint.load_into(fleet.network, weights)
    assert fleet.stop("evaluator") == 0, fleet.log("evaluator")


@pytest.mark.flow
def test_it_keeps_evaluating_while_versions_come_faster_than_it_can_fetch_them(fleet: Fleet) -> None:
    evaluating(fleet, episodes=5, core_share=1.0)
    versions = itertools.count(1)

    def evaluated() -> bool:
        assert fleet.publisher is not None
        fleet.publisher.publish(fleet.network, next(versions))
        return fleet.log("evaluator").count("5 episodes · return") >= 3

    wait_until(evaluated, what="three evaluations")
    assert fleet.stop("evaluator") == 0, fleet.log("evaluator")


@pytest.mark.flow
def test_a_video_of_the_best_policy_is_kept_on_request(fleet: Fleet) -> None:
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")  # draws CartPole
    evaluating(fleet, episodes=5, core_share=0.5, videos=1)
    fleet.publish()
    wait_until(lambda: bool(read_videos(fleet.run_dir)), 60, "a video")
    (video,) = read_videos(fleet.run_dir)
    assert video.policy_version == 1 and video.may_be_published and video.total_reward > 5
    assert (fleet.run_dir.videos / video.file).stat().st_size > 1000
    assert fleet.stop("evaluator") == 0, fleet.log("evaluator")


class Supervisor:
    """The other end of the evaluator's control socket."""

    def __init__(self, fleet: Fleet) -> None:
        self.server = Server(fleet.run_dir.bind_address("supervisor"))
        fleet.run_dir.write_endpoint("supervisor", self.server.address)
        self.last: Progress | None = None
        self._peer = b""

    def until(self, true: Callable[[Progress], bool], what: str) -> None:
        def found() -> bool:
            while (arrived := self.server.receive(0.01)) is not None:
                self._peer, self.last = arrived[0], arrived[1]
            return self.last is not None and true(self.last)

        wait_until(found, 60, what)

    def send(self, message: Message) -> None:
        self.server.send(self._peer, message)

    def answer(self, number: int) -> Answer:
        self.send(Order("evaluate", number))
        self.until(lambda last: last.answer is not None and last.answer.number == number, "the answer")
        assert self.last is not None and self.last.answer is not None
        return self.last.answer


@pytest.fixture
def supervisor(fleet: Fleet) -> Iterator[Supervisor]:
    made = Supervisor(fleet)
    yield made
    made.server.close()


@pytest.mark.flow
def test_it_rests_in_a_pause_and_evaluates_when_it_is_ordered_to(fleet: Fleet, supervisor: Supervisor) -> None:
    evaluating(fleet, episodes=5, core_share=1.0)
    supervisor.until(lambda last: last.state == "ready", "ready")
    answer = supervisor.answer(1)
    assert not answer.done and answer.text == "there are no trained weights yet"
    supervisor.send(Order("pause", 0))
    supervisor.until(lambda last: last.resting, "it rests")
    fleet.publish()
    numbers, answers = itertools.count(2), list[Answer]()

    def begins() -> bool:
        answers.append(supervisor.answer(next(numbers)))
        return answers[-1].done

    wait_until(begins, what="it has fetched the weights")
    assert "policy v1 has begun: 5 episodes" in answers[-1].text
    wait_until(lambda: "v1 · 5 episodes · return" in fleet.log("evaluator"), 60, "a round of v1")
    supervisor.until(lambda last: last.resting, "it rests again")
    supervisor.send(Order("unpause", 0))
    supervisor.until(lambda last: not last.resting, "it does not rest")
    assert "policy v1 has begun" in supervisor.answer(next(numbers)).text, "although it has been evaluated"
    again = re.compile(r"v1 · (5|10|15) episodes · return")  # as often as it is as good as the first round
    wait_until(lambda: len(again.findall(fleet.log("evaluator"))) == 2, 60, "another round of v1")
    assert fleet.stop("evaluator") == 0, fleet.log("evaluator")


@pytest.mark.flow
def test_an_evaluation_under_way_rests_in_a_pause_until_it_is_ordered(fleet: Fleet, supervisor: Supervisor) -> None:
    fleet.publish()
    evaluating(fleet, episodes=1_000_000, core_share=1.0)
    supervisor.until(lambda last: last.beats > 200, "it plays")
    supervisor.send(Order("pause", 0))
    supervisor.until(lambda last: last.resting, "it rests")
    answer = supervisor.answer(1)
    assert answer.done and "an evaluation of policy v1 is under way: " in answer.text
    supervisor.until(lambda last: not last.resting, "it goes on")
    supervisor.send(Order("pause", 0))
    assert fleet.stop("evaluator") == 0, fleet.log("evaluator")


@pytest.mark.flow
@pytest.mark.parametrize(("seconds", "episodes"), [(60.0, 5), (1e-6, 1_000_000)])
def test_at_the_planned_end_it_evaluates_the_last_weights_if_there_is_time(
    fleet: Fleet, supervisor: Supervisor, seconds: float, episodes: int
) -> None:
    last = {f"policy/{name}": weight for name, weight in fleet.network.state_dict().items()}
    fleet.run_dir.latest.parent.mkdir(exist_ok=True)
    checkpoint.write(fleet.run_dir.latest, last, {"policy_version": "7"})
    evaluating(fleet, episodes=episodes)
    supervisor.until(lambda last: last.state == "ready", "ready")
    supervisor.send(Stop("10s are over", finishing_seconds=seconds))
    assert fleet.processes["evaluator"].wait(60) == 0, fleet.log("evaluator")
    evaluated, left_out = (line in fleet.log("evaluator") for line in ("v7 · 5 episodes · return", "policy was not evaluated: "))
    assert (evaluated, left_out) == (episodes == 5, episodes != 5), fleet.log("evaluator")
    assert fleet.run_dir.best.exists() == evaluated


@pytest.mark.flow
def test_at_any_other_end_it_evaluates_nothing_more(fleet: Fleet, supervisor: Supervisor) -> None:
    fleet.start("evaluator", "actors.evaluation.evaluator", str(fleet.run_dir.path))
    supervisor.until(lambda last: last.state == "ready", "ready")
    supervisor.send(Stop("stopped by you"))
    assert fleet.processes["evaluator"].wait(60) == 0 and fleet.log("evaluator") == ""
