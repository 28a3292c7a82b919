"""An environment of an OpenEnv server, whose messages a stand-in has."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.sync.server import ServerConnection, serve

from actors.envs.make import make_env, read_env
from actors.errors import EnvError


class Counter:
    """Counts the steps of each session up to five; `spoil` changes its answers."""

    def __init__(self) -> None:
        self.spoil: dict[str, Any] = {}
        self.sessions = 0
        self._server = serve(self._handle, "127.0.0.1", 0, compression=None)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"openenv:http://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def _handle(self, connection: ServerConnection) -> None:
        self.sessions += 1
        count = seed = 0
        for text in connection:
            message = json.loads(text)
            if message["type"] == "reset":
                count, seed, gained = 0, message["data"].get("seed", 0), None
            else:
                count, gained = count + 1, 2 * message["data"]["action_id"]
            seen = {"place": [count, seed], "name": "counter", "speed": 0.5, "flags": [[True, False]]}
            answer = {"type": "observation", "data": {"observation": seen, "reward": gained, "done": count == 5}}
            connection.send(json.dumps(answer | self.spoil))

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture
def counter() -> Iterator[Counter]:
    made = Counter()
    yield made
    made.close()


def test_numbers_of_the_observation_rewards_and_ends_arrive(counter: Counter) -> None:
    env = make_env(read_env({"id": counter.url, "choices": 3}))
    assert env.reset(seed=7)[0].tolist() == [0, 7, 0.5, 1, 0]
    outcomes = [env.step(np.int64(2)) for _ in range(5)]
    assert [(outcome[0][0], outcome[1], outcome[2], outcome[3]) for outcome in outcomes] == [
        (step, 4.0, step == 5, False) for step in range(1, 6)
    ]
    env.close()


def test_fields_are_those_that_are_named(counter: Counter) -> None:
    env = make_env(read_env({"id": counter.url, "choices": 3, "observation": ["speed", "place"]}))
    assert env.reset(seed=7)[0].tolist() == [0.5, 0, 7] and env.observation_space.shape == (3,)
    env.close()


@pytest.mark.parametrize(
    ("options", "spoil", "why"),
    [
        ({}, {}, r"--env\.choices N \(one of N\)"),
        ({"choices": 3, "size": 1}, {}, r"--env\.choices N \(one of N\)"),
        (
            {"choices": 3, "observation": ["name"]},
            {},
            r"'name' is no number or list of numbers; it has place \(list\), name \(str\)",
        ),
        ({"choices": 3}, {"type": "error", "data": {"message": "out\x1b[2J of order"}}, "it answered out"),
        ({"choices": 3}, {"data": [1]}, "it answered"),
        ({"choices": 3}, {"data": {"reward": 1}}, "no observation"),
        ({"choices": 3}, {"data": {"observation": {"name": "x", "ragged": [[1], [1, 2]]}}}, "it has no numbers"),
    ],
)
def test_what_does_not_fit_is_one_line(counter: Counter, options: dict[str, Any], spoil: dict[str, Any], why: str) -> None:
    counter.spoil = spoil
    with pytest.raises(EnvError, match=why) as raised:
        make_env(read_env({"id": counter.url, **options}))
    assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)


@pytest.mark.parametrize("where", ["", "ftp://x", "http://", "http://127.0.0.1:1"])
def test_where_no_server_is_there_is_one_line(where: str) -> None:
    with pytest.raises(EnvError, match=r"name a server|Connection refused"):
        make_env(read_env({"id": f"openenv:{where}", "choices": 2}))


def test_a_connection_that_broke_is_made_anew_by_the_next_reset(counter: Counter) -> None:
    env: Any = make_env(read_env({"id": counter.url, "choices": 3}))
    env.reset()
    env.unwrapped._socket.close_socket()
    with pytest.raises(EnvError):
        env.step(1)
    assert env.reset(seed=3)[0][1] == 3 and counter.sessions == 2
    env.close()
