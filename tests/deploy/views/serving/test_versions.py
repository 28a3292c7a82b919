"""New versions, trials, and the way back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deploy.views.serving import sources
from deploy.views.serving.version import Version
from deploy.views.serving.versions import KEPT, Versions


class Known:
    """Stands in for a Version."""

    figures: dict[str, float] = {}

    def __init__(self, number: int) -> None:
        self.number, self.name = number, f"v{number}"


def known(*numbers: int) -> list[Any]:
    return [Known(number) for number in numbers]


def made(first: Version, share: float = 1.0, promote_after: int = 0) -> tuple[Versions, list[str]]:
    lines: list[str] = []
    return Versions(first, share, promote_after, lines.append), lines


def serving(versions: Versions) -> dict[str, int]:
    counted: dict[str, int] = {}
    for client in range(4000):
        name = versions.choose(str(client)).name
        counted[name] = counted.get(name, 0) + 1
    return counted


def test_a_new_version_answers_all_and_the_way_back_is_kept() -> None:
    one, two, three = known(1, 2, 3)
    versions, lines = made(one)
    versions.offer(two)
    versions.offer(three)
    assert serving(versions) == {"v3": 4000} and versions.keeps(two) and lines == ["v2 serves"], "one line for many"
    versions.rollback()
    assert serving(versions) == {"v2": 4000}
    versions.rollback()
    assert serving(versions) == {"v1": 4000} and "no version before" in versions.rollback()


def test_after_a_rollback_new_versions_wait_until_they_are_promoted() -> None:
    one, two, three, four = known(1, 2, 3, 4)
    versions, _ = made(one)
    versions.offer(two)
    versions.rollback()
    versions.offer(three)
    assert serving(versions) == {"v1": 4000} and versions.describe()["blocked"]
    versions.promote()
    assert serving(versions) == {"v3": 4000}
    versions.offer(four)
    assert serving(versions) == {"v4": 4000}


def test_promotion_undoes_a_rollback() -> None:
    one, two = known(1, 2)
    versions, _ = made(one)
    versions.offer(two)
    versions.rollback()
    versions.promote()
    assert serving(versions) == {"v2": 4000}


def test_a_trial_has_its_share_of_clients_the_same_until_it_ends_and_others_the_next_time() -> None:
    one, two, three, four = known(1, 2, 3, 4)
    versions, _ = made(one, share=0.1)
    versions.offer(two)
    versions.offer(three)
    versions.offer(four)
    first = [versions.choose(str(client)).name for client in range(4000)]
    assert 300 < first.count("v2") < 500 and first.count("v1") == 4000 - first.count("v2")
    assert first == [versions.choose(str(client)).name for client in range(4000)]
    versions.promote()
    second = [versions.choose(str(client)).name for client in range(4000)]
    assert 300 < second.count("v4") < 500 and "v3" not in second, "the newest of those that have waited is next"
    both = np.mean([a == "v2" and b == "v4" for a, b in zip(first, second, strict=True)])
    assert both < 0.03, "by chance 0.01"
    versions.rollback()
    assert serving(versions) == {"v2": 4000} and not versions.describe()["blocked"]


def test_a_trial_without_fault_is_promoted_by_its_requests_alone() -> None:
    one, two = known(1, 2)
    versions, lines = made(one, share=0.5, promote_after=10)
    versions.offer(two)
    versions.count(one, 1000)
    versions.count(two, 9)
    assert versions.trial is two
    versions.count(two, 1)
    assert versions.current is two and any("without fault" in line for line in lines)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_version_that_is_blamed_answers_nobody_any_more(share: float) -> None:
    one, two = known(1, 2)
    versions, lines = made(one, share)
    versions.offer(two)
    assert versions.fallback(two) is one
    versions.take_back(two, "broken")
    versions.take_back(two, "broken")  # by a request that was under way
    assert serving(versions) == {"v1": 4000} and not versions.keeps(two)
    assert [one["version"] for one in versions.describe()["refused"]] == ["v2"] and "refused v2: broken; v1 goes on" in lines
    assert versions.fallback(one) is None
    versions.take_back(one, "broken")
    assert versions.current is one, "there is no other"


def test_a_bounded_number_of_earlier_versions_is_kept() -> None:
    first, *others = known(*range(20))
    versions, _ = made(first)
    for version in others:
        versions.offer(version)
    kept = [version for version in [first, *others] if versions.keeps(version)]
    assert len(kept) == KEPT + 1 and kept[-1] is others[-1]


def test_a_run_that_is_started_again_at_other_addresses_is_followed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    polled, closed, published = list[str](), list[str](), dict[str, str]()

    class Follower:
        def __init__(self, weights: str, *given: object) -> None:
            self.address = weights

        def poll(self) -> None:
            polled.append(self.address)

        def close(self) -> None:
            closed.append(self.address)

    monkeypatch.setattr(sources, "PayloadFollower", Follower)
    run: Any = SimpleNamespace(endpoint=published.get, keys=lambda name: None)
    file: Any = SimpleNamespace(about=None, first=None, description=SimpleNamespace(most_bytes=1, tensors=()))
    source = sources.LiveSource(run, file, "serve")
    assert source.newer() is None and not polled, "the run is not up"
    for port in ("1", "1", "", "2"):  # at last it is down, and up again
        published.clear()
        published.update({"weights": f"tcp://{port}", "payload": "tcp://9"} if port else {})
        source.newer()
    assert polled == ["tcp://1", "tcp://1", "tcp://1", "tcp://2"] and closed == ["tcp://1"]
