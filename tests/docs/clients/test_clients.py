"""Each client of docs/clients/ against a real server: its physics, and what it does when a connection ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from actors.envs.remote.server import Session, SessionServer
from actors.envs.remote.session import Exchange
from benchmarks.clients.programs import FOLDER, LANGUAGES, Language
from tests.docs.clients.referee import Referee, balancing
from transport.files.token import VARIABLE

TOKEN, WRONG = "the-token-of-this-test", "the-token-of-another-test"
PATIENCE_SECONDS = 120
RANDOM_STEPS, MOST_STEPS = 200, 3000
MOST_LINES = 200


def judge(session: Session) -> np.ndarray:
    """Plays until each environment has had an episode that fell and one of 500 steps. Returns the first observations. The policy
    is random, then one that balances the pole; an observation that an episode ends with need not be sent."""
    referee, random, count = Referee(), np.random.default_rng(1), session.environments
    steps = Exchange(session)
    first = seen = steps.first(seed=5)
    length, fell, lasted = np.zeros(count, int), np.zeros(count, bool), np.zeros(count, bool)
    for number in range(MOST_STEPS):
        if number == RANDOM_STEPS:  # in the middle of episodes
            seen, length = steps.first(seed=None), np.zeros(count, int)
        assert np.abs(seen[length == 0]).max(initial=0) <= 0.05
        wild = number < RANDOM_STEPS
        actions = random.integers(2, size=count) if wild else balancing(seen)
        outcome = steps.step(actions)
        length += 1
        ended = outcome.terminated | outcome.truncated
        for k in range(count):
            expected, reward, terminated = referee.step(seen[k], int(actions[k]))
            assert outcome.reward is not None and outcome.reward[k] == reward and outcome.terminated[k] == terminated
            assert outcome.truncated[k] == (length[k] == 500 and not terminated)
            served = session.hello.mode == "serve" or not ended[k]
            if served or outcome.truncated[k]:
                found = outcome.observation if served else outcome.final_observation
                np.testing.assert_allclose(found[k], expected, rtol=1e-5, atol=1e-6)
        length[ended], fell, lasted = 0, fell | outcome.terminated, lasted | outcome.truncated
        seen = steps.first(seed=None) if ended.any() else outcome.observation
        if (fell & lasted).all():
            return first
    raise AssertionError(f"after {MOST_STEPS} steps: fell {fell}, 500 steps {lasted}")


class Judged:
    """A server that judges the first program that connects and invites it to come again, breaks the next connection, and ends
    the third for good."""

    def __init__(self, *origins: str) -> None:
        self.found = SimpleQueue[np.ndarray | Exception]()
        self.refused, self._sessions, self.mode = list[str](), 0, ""
        self.server = SessionServer(("127.0.0.1", 0), TOKEN, self._judge, self.refused.append, origins=origins)
        self.address = f"ws://127.0.0.1:{self.server.port}"

    def _judge(self, session: Session) -> None:
        self._sessions, self.mode = self._sessions + 1, session.hello.mode
        try:
            self.found.put(judge(session) if self._sessions == 1 else Exchange(session).first(seed=5))
        except Exception as error:
            self.found.put(error)
        if self._sessions == 1:
            session.dismiss("the check is over", again=True)
        elif self._sessions == 3:
            session.dismiss("the test is over")

    def first_observation(self) -> np.ndarray:
        found = self.found.get(timeout=PATIENCE_SECONDS)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def judged() -> Iterator[Judged]:
    made = Judged()
    yield made
    made.server.close()


@pytest.fixture(scope="module", params=LANGUAGES)
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    language = LANGUAGES[request.param]
    if language.missing:
        pytest.skip(f"needs {language.missing}")
    return language.built(tmp_path_factory.mktemp("built"))


def started(command: list[str], address: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """With the right token in its file."""
    (folder / "headrace").mkdir()
    (folder / "headrace" / "token").write_text(f"{TOKEN}\n")
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment = kept | {"XDG_CONFIG_HOME": str(folder), "HOME": str(folder)} | variables
    return subprocess.Popen([*command, address], stdout=-1, stderr=subprocess.STDOUT, text=True, env=environment)


def test_a_client_is_gymnasiums_cartpole_and_connects_again_until_it_is_told_to_stay_away(
    command: list[str], judged: Judged, tmp_path: Path
) -> None:
    program = started(command, judged.address, tmp_path)
    first, *others = (judged.first_observation() for _ in range(3))
    printed, _ = program.communicate(timeout=PATIENCE_SECONDS)
    assert program.returncode == 1 and "Headrace ends this: the test is over" in printed
    assert printed.count(f"connected to {judged.address}") == 3 and not judged.refused
    assert printed.count("; again in 0.5 s") == 2 and ("the check is over" in printed or "the connection ended" in printed)
    assert all((seen == first).all() == (judged.mode == "serve") for seen in others)  # which gets a seed


def test_a_client_with_a_wrong_token_says_so_and_ends(command: list[str], judged: Judged, tmp_path: Path) -> None:
    program = started(command, judged.address, tmp_path, **{VARIABLE: WRONG})
    printed, _ = program.communicate(timeout=PATIENCE_SECONDS)
    assert program.returncode == 1 and "Headrace ends this: the token is wrong" in printed and "connected" not in printed
    assert len(judged.refused) == 1 and judged.found.empty()


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_a_client_is_short_enough_to_be_read(language: Language) -> None:
    assert len((FOLDER / language.source).read_text(encoding="utf-8").splitlines()) <= MOST_LINES
