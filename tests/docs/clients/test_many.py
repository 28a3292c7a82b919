"""Clients of all languages at once at one actor, some of which behave badly; what leaves it is CartPole all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.clients.programs import FOLDER, LANGUAGES
from learner.algorithms.base import ActionBatch
from tests.actors.envs.remote.test_sessions import Actor
from tests.docs.clients.referee import Referee, balancing
from tests.harness.waiting import wait_until
from transport.experience import Categorical, Columns, ExperienceSpec, observed
from transport.files.token import VARIABLE

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
TOKEN = "the-token-of-this-test"
SPEC = ExperienceSpec((observed("observation", (4,), "<f4"),), Categorical(2), chunk_length=16)
PYTHON_PROGRAMS, ENVIRONMENTS, MOST_CHECKED = 6, 32, 2_000
PINGS_SECONDS = 65  # three pings
CHANGED = """
import time, cartpole

class Changed(cartpole.CartPole):
    def step(self, action):
        observation, *others = super().step(action)
        {change}
        return observation, *others

cartpole.CartPole = Changed
cartpole.main()
"""


class Balancing:
    """Balances the pole most of the time."""

    state: dict[str, tuple[int, ...]] = {}

    def __init__(self) -> None:
        self._random = np.random.default_rng(3)

    def assign(self, seed: int, offset: int, count: int, total: int) -> None: ...

    def act(self, observation: Columns, state: Columns, mode: str) -> ActionBatch:
        seen = observation["observation"]
        chosen = balancing(seen.reshape(len(seen), -1)[:, -4:])
        return ActionBatch(np.where(self._random.random(len(seen)) < 0.3, 1 - chosen, chosen), {}, {})

    def annotate(self, columns: Columns) -> Columns:
        return columns


class Program:
    """A process, and what it prints."""

    def __init__(self, command: list[str], address: str, folder: Path) -> None:
        self._printed = folder / f"{len(list(folder.iterdir()))}.txt"
        with self._printed.open("w") as file:
            self.process = subprocess.Popen([*command, address], stdout=file, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        return self._printed.read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a language's client, or the Python one with a line in its step."""
    monkeypatch.setenv(VARIABLE, TOKEN)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    made: list[Program] = []

    def begin(port: int, language: str = "python", change: str = "") -> Program:
        command = [sys.executable, "-c", CHANGED.format(change=change)] if change else LANGUAGES[language].built(tmp_path)
        made.append(Program(command, f"ws://127.0.0.1:{port}", tmp_path))
        return made[-1]

    yield begin
    for program in made:
        program.end()


def actor(environments: int = ENVIRONMENTS, port: int = 0, silence_seconds: float = 60.0) -> Actor:
    return Actor(environments, SPEC, Balancing(), port=port, silence_seconds=silence_seconds)


def steps(actor: Actor) -> dict[int, int]:
    """How many have arrived, by the number of the environment."""
    found: dict[int, int] = {}
    for chunk in list(actor.chunks):
        found[chunk.stream] = found.get(chunk.stream, 0) + chunk.length
    return found


def check(actor: Actor) -> None:
    """Items are steps of CartPole, and there are as many as steps were taken before the actor's last moment."""
    items, referee = actor.items(), Referee()
    assert 0 <= actor.metrics.value("steps") - len(items["key"]) <= ENVIRONMENTS
    for k in np.random.default_rng(0).permutation(len(items["key"]))[:MOST_CHECKED]:
        observations, action = items["observation/observation"][k], int(items["action"][k])
        state = observations[items["observation_index"][k][-1]]
        expected, reward, terminated = referee.step(state, action)
        assert items["reward"][k][0] == reward and items["terminated"][k] == terminated
        if not terminated:
            np.testing.assert_allclose(observations[items["next_index"][k][-1]], expected, rtol=1e-5, atol=1e-6)


def test_of_ten_programs_at_once_some_die_lie_or_are_slow_and_the_others_go_on_and_find_the_next_actor(start: Start) -> None:
    others = [name for name, language in LANGUAGES.items() if name != "python" and not language.missing]
    with actor() as first:
        killed = start(first.port)
        good = [start(first.port) for _ in range(PYTHON_PROGRAMS - 1)] + [start(first.port, name) for name in others]
        wait_until(lambda: len(first.collector.programs) == 1 + len(good), what="all are connected")
        environments = sum(program.environments for program in list(first.collector.programs))
        wait_until(lambda: len(steps(first)) == environments, what="steps of all arrive")
        killed.process.send_signal(signal.SIGKILL)
        wait_until(lambda: len(first.collector.programs) == len(good), what="the one that was killed has left")
        known = set(first.collector.programs)
        lies = [
            (start(first.port, change="observation = [float('nan')] * 4 if self.steps == 9 else observation"), "no map in json"),
            (start(first.port, change="observation = [1e300] * 4 if self.steps == 9 else observation"), "not finite"),
            (start(first.port, change="observation = observation[:3] if self.steps == 9 else observation"), "has the shape"),
        ]
        for program, why in lies:
            assert program.process.wait(60) == 1 and "Headrace ends this: " in program.text and why in program.text
        start(first.port, change="time.sleep(0.1)")
        found = wait_until(lambda: [numbers for one, (_, numbers) in list(first.collector.programs.items()) if one not in known])
        slow, before = found[0][0], steps(first)
        wait_until(lambda: steps(first).get(slow, 0) > before.get(slow, 0) + 8)
        quick = {number for one in known for number in first.collector.programs[one][1]}
        after = steps(first)
        assert all(after[number] - before[number] > after[slow] - before.get(slow, 0) for number in quick)
    check(first)
    with actor(port=first.port) as second:
        wait_until(lambda: len(second.collector.programs) == 1 + len(good), what="all have come back")
        wait_until(lambda: len(steps(second)) == environments, what="steps of all arrive")
    check(second)
    assert all(program.text.count("connected to ") == 2 for program in good)


def test_a_program_that_stands_still_is_let_go_and_comes_back(start: Start) -> None:
    with actor(environments=1, silence_seconds=1.0) as one:
        program = start(one.port)
        wait_until(lambda: steps(one), what="steps arrive")
        program.process.send_signal(signal.SIGSTOP)
        wait_until(one.left, what="it is let go")
        before = steps(one)[0]
        program.process.send_signal(signal.SIGCONT)
        wait_until(lambda: steps(one)[0] > before + 50, what="it goes on")
        assert program.text.count("connected to ") >= 2
    check(one)


@pytest.mark.slow
def test_a_program_of_one_thread_may_take_longer_for_a_step_than_a_ping_waits(start: Start) -> None:
    with actor(silence_seconds=300.0) as one:
        program = start(one.port, change=f"time.sleep({PINGS_SECONDS} if self.steps == 2 else 0)")
        wait_until(lambda: sum(steps(one).values()) > 50, seconds=2 * PINGS_SECONDS)
        assert program.text.count("connected") == 1 and "again" not in program.text
