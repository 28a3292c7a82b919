"""A policy server answers as the policy does, over every way to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import msgspec
import numpy as np
import pytest

import headrace
from deploy.views.serving.messages import MSGPACK
from learner.algorithms.base import make_algorithm, read_algorithm
from learner.networks.describe import describe
from learner.weights import checkpoint
from tests.deploy.views.serving.served import TOKEN, Served, ask, serving, zoo
from tests.deploy.views.sharing.exported import make_exported
from tests.docs.blocks import ROOT, blocks
from transport.experience import read_spec


@pytest.fixture(scope="module")
def cartpole() -> Iterator[Served]:
    with serving(zoo("cartpole")) as served:
        yield served


def observations(count: int, size: int = 4) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, size)).astype(np.float32)


def test_each_way_to_ask_gives_the_action_of_the_policy(cartpole: Served) -> None:
    policy, seen = headrace.load("zoo:cartpole"), observations(40)
    actions = [policy.predict(one) for one in seen]
    version = policy.about["policy_version"]
    assert len(set(actions)) == 2
    assert [cartpole.act(observation=one.tolist()) for one in seen[:10]] == [
        {"action": action, "policy_version": version} for action in actions[:10]
    ]
    assert cartpole.act(observations=seen.tolist()) == {"actions": actions, "policy_version": version}
    packed = msgpack.packb({"observations": seen.tobytes()})
    found = cartpole.send("POST", "/act", packed, content_type=MSGPACK)
    assert found.body == {"actions": actions, "policy_version": version}
    with cartpole.websocket() as websocket:
        assert [ask(websocket, observation=one.tolist())["action"] for one in seen[:10]] == actions[:10]
        websocket.send(msgpack.packb({"observation": seen[0].tobytes()}))
        assert msgpack.unpackb(websocket.recv()) == {"action": actions[0], "policy_version": version}
    with ThreadPoolExecutor(8) as pool:  # computed together
        assert [found["action"] for found in pool.map(lambda one: cartpole.act(observation=one.tolist()), seen)] == actions


def test_a_policy_says_what_it_takes_and_what_it_is(cartpole: Served) -> None:
    found = cartpole.policy()
    assert (found["env"], found["algorithm"], found["needs_session"]) == ("CartPole-v1", "ppo", False)
    assert found["observation_space"]["shape"] == [4] and found["action_space"]["n"] == 2
    assert found["versions"]["serving"]["return_mean"] == 500 and cartpole.send("GET", "/health").body == {"status": "ok"}


def remembering(path: Path, kind: str) -> Path:
    """A policy with a stack of two observations, or with a memory."""
    if kind == "stack":
        make_exported(path)
        weights, metadata = checkpoint.read(path)
        box = {"kind": "box", "shape": [4], "dtype": "<f4", "low": [None] * 4, "high": [None] * 4}
        metadata["spaces"] = json.dumps({"observation": box, "action": {"kind": "discrete", "n": 3, "start": 0}})
    else:
        _, metadata = checkpoint.read(zoo("cartpole"))
        config = json.loads(metadata["config"])
        config["algorithm"] |= {"memory": "lstm", "memory_width": 8}
        algorithm = make_algorithm(read_algorithm(config["algorithm"]))
        network = algorithm.policy(read_spec(metadata["spec"].encode()))
        weights = {name: np.asarray(value.numpy()) for name, value in network.state_dict().items()}
        metadata |= {"config": json.dumps(config), "policy": msgspec.json.encode(describe(network)).decode()}
    # Large ones, so that what came before changes actions.
    weights = {name: np.random.default_rng(1).normal(size=one.shape).astype(one.dtype) for name, one in weights.items()}
    if kind == "memory":
        weights["body.inputs.normaliser.variance"] = np.ones(4, np.float32)
    checkpoint.write(path, weights, metadata)
    return path


@pytest.mark.parametrize("kind", ["stack", "memory"])
def test_sessions_remember_each_its_own_episode(kind: str, tmp_path: Path) -> None:
    path = remembering(tmp_path / "policy.safetensors", kind)
    seen = observations(60).reshape(3, 20, 4) * 3
    policy, wanted, alone = headrace.load(path), list[int](), list[int]()
    for one in seen:
        for step, observation in enumerate(one):
            if step % 12 == 0:
                policy.reset()
            wanted.append(policy.predict(observation))
        for observation in one:
            policy.reset()
            alone.append(policy.predict(observation))
    assert wanted != alone, "what came before must matter"
    with serving(path) as served, served.websocket() as websocket:
        found: list[list[int]] = [[], [], []]
        for step in range(20):
            for client in range(3):
                message = {"observation": seen[client, step].tolist(), "first": step == 12, "step": step}
                answer = ask(websocket, **message) if client == 0 else served.act(**message, session=f"client-{client}")
                found[client].append(answer["action"])
                if client and step % 3 == 0:  # its answer was lost
                    assert served.act(**message, session=f"client-{client}") == answer
        assert [action for one in found for action in one] == wanted
        refused = served.send("POST", "/act", json.dumps({"observation": [0.0] * 4}).encode())
        assert refused.status == 400 and "session" in refused.body["error"]
        gap = {"observation": [0.0] * 4, "session": "client-1", "step": 21}
        assert served.send("POST", "/act", json.dumps(gap).encode()).status == 409


def test_the_client_that_the_documentation_shows_plays_to_the_end(cartpole: Served, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to.md").read_text(encoding="utf-8")
    client = next(block.text for block in blocks(page) if block.argument == "play.py")
    (tmp_path / ".config" / "headrace").mkdir(parents=True)
    (tmp_path / ".config" / "headrace" / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "play.py").write_text(client)
    command = [sys.executable, str(tmp_path / "play.py"), str(cartpole.port)]
    done = subprocess.run(
        command, env=os.environ | {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["return 500"] * 3, done.stderr


WRONG: list[tuple[bytes, int | tuple[int, int], str]] = [
    (b"{", 400, "not a message"),
    (b"\xff\xfe", 400, "not a message"),
    (b"[" * 5000, 400, "not a message"),
    (b"{}", 400, "`observation`"),
    (b'{"observation": [1, 2, 3]}', 400, "shape"),
    (b'{"observation": [1, 2, 3, "x"]}', 400, "numbers"),
    (b'{"observation": {"a": 1}}', 400, "numbers"),
    (b'{"observation": [1e300, 0, 0, 0]}', 400, "finite"),
    (b'{"observation": [NaN, 0, 0, 0]}', 400, "not a message"),
    (b'{"observations": []}', 400, "1 to 256"),
    (b'{"observations": 5}', 400, "1 to 256"),
    (b'{"observation": [0, 0, 0, 0], "x": 1}', 400, "unknown field"),
    (b'{"observation": [0, 0, 0, 0], "session": "with space"}', 400, "session"),
    (b'{"observation": [0, 0, 0, 0], "session": 5}', 400, "session"),
    (b'{"observation": [0, 0, 0, 0], "step": -1}', 400, "step"),
    (b'{"observation": [0, 0, 0, 0], "reward": 1}', (400, 409), "reward"),
    (b'{"observation": [0, 0, 0, 0], "session": "new", "reward": 1}', 409, "begin an episode"),
    (b'{"observation": [0, 0, 0, 0], "session": "new", "first": true, "truncated": true}', 409, "begin an episode"),
    (b'{"observations": [[0, 0, 0, 0]], "session": "new"}', 400, "one environment"),
    (b" " * (1 << 20), 413, "at most"),
]


@pytest.mark.parametrize(("body", "status", "says"), WRONG, ids=[f"{body[:40]!r}" for body, *_ in WRONG])
def test_a_wrong_message_is_one_line(cartpole: Served, body: bytes, status: int | tuple[int, int], says: str) -> None:
    found = cartpole.send("POST", "/act", body)
    statuses = status if isinstance(status, tuple) else (status,)  # over HTTP, and over a WebSocket, which is a session
    assert found.status == statuses[0] and says in found.body["error"] and "\n" not in found.body["error"], found
    if statuses[0] < 413 and body.isascii():
        with cartpole.websocket() as websocket:
            websocket.send(body.decode())
            told = json.loads(websocket.recv())
            assert told["status"] == statuses[-1] and says in told["error"]
            assert "action" in ask(websocket, observation=[0, 0, 0, 0]), "the connection goes on"


def test_a_wrong_path_or_method_is_one_line(cartpole: Served) -> None:
    assert [cartpole.send(*asked).status for asked in (("GET", "/x"), ("GET", "/act"), ("DELETE", "/policy"))] == [404, 405, 405]


def test_values_that_are_not_finite_blame_no_version(cartpole: Served) -> None:
    packed = msgpack.packb({"observation": [float("nan"), 0.0, 0.0, 0.0]})
    found = cartpole.send("POST", "/act", packed, content_type=MSGPACK)
    assert found.status == 400 and "finite" in found.body["error"]
    assert cartpole.policy()["versions"]["refused"] == []
