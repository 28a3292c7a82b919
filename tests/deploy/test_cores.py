"""The cores that a run may use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deploy import cores
from deploy.children import ROOT
from deploy.cores import LEAST_CORES, allowed


@pytest.mark.parametrize(
    ("setting", "own", "cores"),
    [
        ("", 8, 8.0),
        ("60%", 2, 1.2),
        ("60%", 5, 3.0),
        ("100 %", 3, 3.0),
        ("1.5", 2, 1.5),
        ("6", 2, 2.0),
        (0.5, 4, 0.5),
        ("1%", 2, LEAST_CORES),
    ],
)
def test_a_budget_is_a_share_of_the_cores_or_a_number_and_never_more_than_there_are(
    setting: str | float, own: int, cores: float
) -> None:
    assert allowed(setting, own) == cores


@pytest.mark.parametrize("setting", ["0", "-1", "0%", "150%", "nan", "inf", "half", "%", "0.01"])
def test_what_is_no_budget_is_refused(setting: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        allowed(setting)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_children_are_bound_to_as_few_cores_as_have_room_for_the_budget_until_that_is_undone() -> None:
    code = (
        "import subprocess, sys; from deploy import cores; from transport.system import own_cores\n"
        "child = lambda: subprocess.run([sys.executable, '-c', 'import os; print(len(os.sched_getaffinity(0)))'])\n"
        "cores.bind(0.6); print(len(own_cores())); child(); cores.bind(cores.allowed('')); print(len(own_cores()))\n"
        "cores.unbind(); print(own_cores() == cores.STARTED_CORES); child()"
    )
    done = subprocess.run([sys.executable, "-uc", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1", "1", "True", str(len(os.sched_getaffinity(0)))], done.stderr


def test_a_quota_binds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other containers would choose the same cores."""
    bound: list[object] = []
    monkeypatch.setattr(cores, "own_cores", lambda: list(range(64)))
    monkeypatch.setattr(cores, "core_count", lambda: 2)
    monkeypatch.setattr(cores, "STARTED_COUNT", 2)
    monkeypatch.setattr("psutil.Process.cpu_affinity", lambda process, chosen: bound.append(chosen), raising=False)
    monkeypatch.setattr(cores, "LOOK_SECONDS", 0.01)
    cores.bind(cores.allowed(""))
    assert not bound
    cores.bind(cores.allowed("50%"))
    assert len(bound) == 1, "where the user wants fewer"
