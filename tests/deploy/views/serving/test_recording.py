"""What clients send becomes experience, once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from actors.datasets.base import open_source
from deploy.children import child_environment, python_command
from deploy.errors import ConfigError
from deploy.views.serving.recording import MOST_STREAMS, Recording
from deploy.views.serving.sinks import FolderSink, ReplaySink
from deploy.views.serving.sources import FileSource
from learner.weights import checkpoint
from replay.config import ReplayConfig
from tests.deploy.views.serving.served import TOKEN, Served, serving, zoo
from tests.deploy.views.serving.test_service import remembering
from tests.harness.replay import ReplayProcess
from tests.harness.waiting import wait_until

CLIENTS, EPISODES = 8, 4


class Step(NamedTuple):
    """What a client has seen: each number is of this step alone."""

    client: int
    episode: int
    step: int
    action: int
    reward: float


def observation(client: int, episode: int, step: int) -> list[float]:
    return [float(client), float(episode), float(step), 0.5]


def length(client: int, episode: int) -> int:
    return 3 + 5 * client + episode


def reward(client: int, episode: int, step: int) -> float:
    return client * 1000.0 + episode * 100 + step


def terminates(client: int, episode: int) -> bool:
    return (client + episode) % 2 == 0


def play(served: Served, client: int, episodes: Sequence[int] = range(EPISODES), stop_at: int = 10**6) -> list[Step]:
    """Plays episodes, repeating every third request as if its answer had been lost; returns the steps that have ended. The end of
    an episode comes with the first observation of the next one, or, from every other client, without."""
    done, count = list[Step](), 0
    with closing(served.connection()) as connection:

        def ask(**message: Any) -> Any:
            nonlocal count
            given = {"session": f"client-{client}", "step": count, "deterministic": count % 2 == 0} | message
            answer = served.act_over(connection, **given)
            if count % 3 == 0:
                assert served.act_over(connection, **given) == answer
            count += 1
            return answer["action"]

        action = ask(observation=observation(client, episodes[0], 0))
        for episode in episodes:
            steps = length(client, episode)
            for step in range(steps):
                done.append(Step(client, episode, step, action, reward(client, episode, step)))
                message: dict[str, Any] = {"reward": done[-1].reward, "observation": observation(client, episode, step + 1)}
                if step + 1 == steps:
                    message["final_observation"] = message.pop("observation")
                    message |= {"terminated" if terminates(client, episode) else "truncated": True}
                    if client % 2 and episode != episodes[-1]:
                        message["observation"] = observation(client, episode + 1, 0)
                action = ask(**message)
                if len(done) == stop_at:
                    return done
            if action is None and episode != episodes[-1]:
                action = ask(observation=observation(client, episode + 1, 0))
    assert action is None, "an episode that has ended needs no action"
    return done


def all_of(played: Iterable[list[Step]]) -> list[Step]:
    return [step for steps in played for step in steps]


def recorded(folder: Path) -> list[Step]:
    """The steps in a folder or in the replay of a run, checked to be those of `observation`."""
    found = []
    for episode in open_source(str(folder)).episodes():
        seen = next(iter(episode.observations.values()))
        client, number, first = (int(value) for value in seen[0, :3])
        count = len(episode.rewards)
        assert [one.tolist() for one in seen[:count]] == [observation(client, number, first + t) for t in range(count)]
        whole = first + count == length(client, number)
        assert episode.terminated == (whole and terminates(client, number))
        if not episode.terminated and whole:
            assert seen[count].tolist() == observation(client, number, first + count), (
                "the last observation, from which to bootstrap"
            )
        found += [
            Step(client, number, first + t, int(action), float(gain))
            for t, (action, gain) in enumerate(zip(episode.actions, episode.rewards, strict=True))
        ]
    return found


def into(folder: Path, source: FileSource) -> Recording:
    sink = FolderSink(folder, source.about)
    return Recording(sink.spec, sink, None)


def test_episodes_of_many_clients_are_a_data_set(tmp_path: Path) -> None:
    sent = list[Step]()
    for part in (range(2), range(2, EPISODES)):  # a server goes on with the folder of another
        with (
            serving(zoo("cartpole"), recording=lambda source: into(tmp_path / "data", source)) as served,
            ThreadPoolExecutor(CLIENTS) as pool,
        ):
            sent += all_of(pool.map(partial(play, served, episodes=part), range(CLIENTS)))
    assert sorted(recorded(tmp_path / "data")) == sorted(sent)


def test_an_episode_that_breaks_off_keeps_the_steps_whose_results_are_known(tmp_path: Path) -> None:
    with serving(zoo("cartpole"), recording=lambda source: into(tmp_path / "data", source)) as served:
        sent = play(served, 3, [0], stop_at=9)
        served.act(session="client-3", first=True, observation=observation(3, 1, 0))
        sent += play(served, 4, [0], stop_at=5)
    assert sorted(recorded(tmp_path / "data")) == sorted(sent)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    about = FileSource(zoo("cartpole"), lambda config: None).about
    sink = FolderSink(tmp_path / "data", about)
    with pytest.raises(ConfigError, match="another server"):
        FolderSink(tmp_path / "data", about)
    sink.close()
    with pytest.raises(ConfigError, match="other observations"):
        FolderSink(tmp_path / "data", FileSource(zoo("pendulum"), lambda config: None).about)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    with pytest.raises(ConfigError, match="is a run"):
        FolderSink(tmp_path / "run", about)


class Process(Served):
    """`headrace serve` in a process of its own."""

    def __init__(self, *words: str) -> None:
        environment = child_environment() | {"HEADRACE_TOKEN": TOKEN}
        command = python_command("deploy.cli", "serve", *words)
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        assert found
        self.port = int(found[1])

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        return self.process.wait(), rest


@contextmanager
def process(*words: str) -> Iterator[Process]:
    made = Process(*words)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        assert made.process.stdout is not None
        made.process.stdout.close()


@pytest.mark.flow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_server_has_recorded_nothing_twice_and_all_that_it_said(tmp_path: Path) -> None:
    words = ("zoo:cartpole", "--record-to", str(tmp_path / "data"))
    with process(*words) as served, ThreadPoolExecutor(CLIENTS) as pool:
        before = all_of(pool.map(partial(play, served, episodes=[0, 1]), range(CLIENTS)))
        said = served.policy()["recording"]["steps"]
        assert 0 < said <= len(before)
        served.end(signal.SIGKILL)
    with process(*words) as served, ThreadPoolExecutor(CLIENTS) as pool:
        lost = served.send("POST", "/act", b'{"observation": [0, 0, 0, 0], "session": "client-0", "step": 5, "reward": 1}')
        assert lost.status == 409, "an episode of the killed server does not go on"
        after = all_of(pool.map(partial(play, served, episodes=[2, 3]), range(CLIENTS)))
        status, rest = served.end(signal.SIGINT)
        assert status == 0 and "every request" in rest
    found = recorded(tmp_path / "data")
    assert len(set(found)) == len(found) and set(found) <= {*before, *after} and set(after) <= set(found)
    assert len(found) - len(after) >= said


@pytest.mark.flow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_experience_arrives_in_replay_once_though_replay_is_killed(tmp_path: Path) -> None:
    path = remembering(tmp_path / "policy.safetensors", "stack")
    source = FileSource(path, lambda config: None)
    spec = source.about.spec
    with ReplayProcess(tmp_path / "run", spec, ReplayConfig(capacity=100_000, min_size=100)) as replay:
        replay.run_dir.spaces.write_text(checkpoint.read(path)[1]["spaces"])
        replay.start()
        wait_until(lambda: replay.bound)
        annotate = source.first().acting.annotate

        def recording(_: FileSource) -> Recording:
            return Recording(spec, ReplaySink(replay.address, "serve-1", replay.run_dir, spec, MOST_STREAMS), annotate)

        with (
            serving(path, recording=recording) as served,
            ThreadPoolExecutor(CLIENTS) as pool,
        ):
            halves = list[Step]()
            for part in (range(2), range(2, EPISODES)):
                halves += all_of(pool.map(partial(play, served, episodes=part), range(CLIENTS)))
                if part[0] == 0:
                    replay.kill()
                    replay.start()
                    wait_until(lambda: replay.bound)
            assert served.policy()["recording"]["dropped_chunks"] == 0
        replay.stop()
        found = recorded(replay.run_dir.path)
        assert sorted(found) == sorted(halves)
