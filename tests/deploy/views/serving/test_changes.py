"""Versions change while clients ask: no answer is of a wrong version, and none is missing."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from deploy.views.serving.messages import ActRequest
from deploy.views.serving.service import PROBES, PolicyService
from deploy.views.serving.sources import FileSource
from deploy.views.serving.versions import Versions
from tests.deploy.views.serving.served import PENDULUM, STEEP, Served, answer_of, ask, serving, write_version, zoo
from tests.harness.waiting import wait_until
from transport.metrics import Metrics


def approx(version: int) -> Any:
    """The action of a version, in float32."""
    return pytest.approx([answer_of(version)], rel=1e-5)


class Crowd:
    """Clients that ask one after the other over their own connections, half of them over WebSockets, and check each answer."""

    def __init__(self, served: Served, count: int) -> None:
        self._served, self._over = served, threading.Event()
        self.versions = [Counter[int]() for _ in range(count)]  # of each client's answers
        self.asked, self.errors = [0] * count, list[str]()
        self._threads = [threading.Thread(target=self._client, args=(k,)) for k in range(count)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def newest(self) -> Counter[int]:
        return sum(self.versions, Counter())

    def everyone_has(self, version: int) -> bool:
        """Whether each client has had answers of a version."""
        assert self.errors == []
        return all(one[version] for one in self.versions)

    def _client(self, k: int) -> None:
        try:
            if k % 2:
                with self._served.websocket() as websocket:
                    while not self._over.is_set():
                        self._check(k, ask(websocket, observation=PENDULUM))
            else:
                with closing(self._served.connection()) as connection:
                    while not self._over.is_set():
                        self._check(k, self._served.act_over(connection, observation=PENDULUM))
        except Exception as error:
            self.errors.append(repr(error))

    def _check(self, k: int, answer: Any) -> None:
        self.asked[k] += 1
        version = answer["policy_version"]
        assert answer["action"] == approx(version), answer
        self.versions[k][version] += 1


def since(crowd: Crowd, before: Counter[int]) -> Counter[int]:
    return crowd.newest - before


def test_fifty_clients_under_a_new_version_and_bad_ones(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    write_version(path, 1)
    with serving(path) as served, Crowd(served, 50) as crowd:
        wait_until(lambda: crowd.everyone_has(1))
        write_version(path, 2)
        wait_until(lambda: crowd.everyone_has(2))
        path.write_bytes(path.read_bytes()[:-100])  # damaged
        wait_until(lambda: len(served.policy()["versions"]["refused"]) == 1)
        write_version(path, 3, faulty=True)  # fine for what these clients observe
        wait_until(lambda: crowd.everyone_has(3))
        began = time.monotonic()
        answer = served.act(observation=[STEEP, 0.0, 0.0])
        took, then = time.monotonic() - began, crowd.newest
        assert answer["policy_version"] == 2 and answer["action"] == approx(2), "the one before answers at once"
        under_way = len(crowd.versions)  # had been answered and not yet been counted
        wait_until(lambda: since(crowd, then)[2] > 500)
        assert since(crowd, then)[3] <= under_way and took < 1.0
        found = served.policy()["versions"]
        assert [one["version"] for one in found["refused"]] == ["policy.safetensors", "v3 of policy.safetensors"]
        assert found["serving"]["policy_version"] == 2 and str(tmp_path) not in json.dumps(found)
    assert crowd.errors == []
    assert sum(crowd.asked) == sum(crowd.newest.values()) and set(crowd.newest) == {1, 2, 3}


def test_a_bad_version_that_clients_observations_show_never_answers(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    write_version(path, 1)
    with serving(path) as served:
        for _ in range(PROBES):
            served.act(observation=[STEEP, 0.0, 0.0])
        write_version(path, 2, faulty=True)
        wait_until(lambda: served.policy()["versions"]["refused"])
        assert "not finite" in served.policy()["versions"]["refused"][0]["reason"]
        write_version(path, 3)
        wait_until(lambda: served.policy()["policy_version"] == 3)


def test_observations_for_which_no_version_has_an_answer_blame_none(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    write_version(path, 1, faulty=True)
    with serving(path) as served:
        write_version(path, 2, faulty=True)
        wait_until(lambda: served.policy()["policy_version"] == 2)
        found = served.send("POST", "/act", json.dumps({"observations": [PENDULUM, [STEEP, 0, 0]]}).encode())
        assert found.status == 422 and "not finite" in found.body["error"]
        assert served.act(observation=PENDULUM)["policy_version"] == 2 and not served.policy()["versions"]["refused"]


def test_a_file_of_another_environment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    write_version(path, 1)
    with serving(path) as served:
        path.write_bytes(zoo("cartpole").read_bytes())
        wait_until(lambda: served.policy()["versions"]["refused"])
        assert "CartPole-v1" in served.policy()["versions"]["refused"][0]["reason"] and served.act(observation=PENDULUM)


def test_a_share_of_clients_tries_a_version_until_it_is_promoted_or_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    write_version(path, 1)
    with serving(path, share=0.5) as served:

        def versions() -> Counter[int]:
            answers = [served.act(observation=PENDULUM, session=f"client-{k}") for k in range(64)]
            assert all(one["action"] == approx(one["policy_version"]) for one in answers)
            return Counter(one["policy_version"] for one in answers)

        write_version(path, 2)
        wait_until(lambda: served.policy()["versions"]["trial"])
        assert 16 < versions()[2] < 48
        assert served.send("POST", "/promote").body["policy_version"] == 2 and versions() == {2: 64}
        assert served.send("POST", "/rollback").body["policy_version"] == 1 and versions() == {1: 64}
        write_version(path, 3)
        wait_until(lambda: (served.policy()["versions"]["waiting"] or {}).get("policy_version") == 3)
        assert versions() == {1: 64}, "blocked"
        served.send("POST", "/promote")
        assert versions() == {3: 64}


def test_a_request_that_waits_is_not_answered_by_a_version_that_is_taken_back_meanwhile(tmp_path: Path) -> None:
    path, loaded = tmp_path / "policy.safetensors", list[Any]()
    for version in (1, 2):
        write_version(path, version)
        loaded.append(FileSource(path, lambda config: None))
    versions = Versions(loaded[0].first(), 1.0, 0, lambda line: None)
    versions.offer(loaded[1].first())
    service = PolicyService(loaded[0].about, versions, None, Metrics())

    async def asked() -> Any:
        answer = asyncio.create_task(service.act(ActRequest(observation=PENDULUM), None, "client"))
        await asyncio.sleep(0)  # it has chosen its version, and waits
        versions.rollback()
        return await answer

    assert asyncio.run(asked())["policy_version"] == 1


def test_a_request_that_is_under_way_is_answered_before_the_server_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, usual, under_way = tmp_path / "policy.safetensors", PolicyService.act, threading.Event()
    write_version(path, 1)

    async def slow(service: PolicyService, *arguments: Any) -> Any:
        under_way.set()
        while not stopping():
            await asyncio.sleep(0.01)
        return await usual(service, *arguments)

    monkeypatch.setattr(PolicyService, "act", slow)
    with serving(path) as served, served.websocket() as websocket:

        def stopping() -> bool:
            return served.server.stopping

        websocket.send(json.dumps({"observation": PENDULUM}))
        assert under_way.wait(60)
        served.server.stop()
        assert json.loads(websocket.recv(60))["policy_version"] == 1
