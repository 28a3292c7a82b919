"""What the system says about its battery and its screen, by a stand-in for psutil and one for xprop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from deploy.conditions import Conditions
from tests.harness.waiting import wait_until


@pytest.fixture
def battery(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(power_plugged=True)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: found, raising=False)
    return found


def test_a_battery_counts_while_the_machine_is_not_plugged_in(battery: SimpleNamespace) -> None:
    said: list[str] = []
    conditions = Conditions(("battery",), said.append)
    conditions.ask()
    assert conditions.holds == ""
    battery.power_plugged = False
    conditions.start()
    wait_until(lambda: conditions.holds == "on battery", what="the thread has asked")
    conditions.close()
    assert said == []


@pytest.mark.skipif(sys.platform == "win32", reason="X")
def test_a_program_over_the_whole_screen_counts_and_one_in_a_window_does_not(
    battery: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    xprop, state, active = tmp_path / "xprop", tmp_path / "state", tmp_path / "active"
    xprop.write_text(f"#!/bin/sh\n[ $1 = -root ] && cat {active} && exit\ncat {state} && echo $2 >>{tmp_path}/asked\n")
    xprop.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setenv("XDG_SESSION_TYPE", "x11")
    conditions = Conditions(("battery", "fullscreen"), pytest.fail)
    for window, wm_state, holds in (
        ("0x1a0000b", "_NET_WM_STATE(ATOM) = _NET_WM_STATE_FULLSCREEN", "behind a full-screen program"),
        ("0x1a0000b, 0x0", "_NET_WM_STATE(ATOM) = _NET_WM_STATE_MAXIMIZED_VERT", ""),
        ("0x1a0000b", "_NET_WM_STATE:  not found.", ""),
        ("0x0", "_NET_WM_STATE(ATOM) = _NET_WM_STATE_FULLSCREEN", ""),
    ):
        active.write_text(f"_NET_ACTIVE_WINDOW(WINDOW): window id # {window}\n")
        state.write_text(f"{wm_state}\n")
        conditions.ask()
        assert conditions.holds == holds
    assert (tmp_path / "asked").read_text().split() == ["0x1a0000b"] * 3, "and no window where none is active"
    state.write_text("_NET_WM_STATE_FULLSCREEN\n")
    active.write_text("_NET_ACTIVE_WINDOW(WINDOW): window id # 0x1a0000b\n")
    battery.power_plugged = False
    conditions.ask()
    assert conditions.holds == "on battery and behind a full-screen program"


def test_where_the_system_does_not_tell_one_line_says_so_and_nothing_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_SESSION_TYPE", "wayland")
    said: list[str] = []
    conditions = Conditions(("battery", "fullscreen"), said.append)
    for _ in range(3):
        conditions.ask()
        assert conditions.holds == ""
    assert said == [
        f"deploy.pause_on {name}: {why}, so the run does not pause for it"
        for name, why in (
            ("battery", "this machine tells of no battery"),
            ("fullscreen", "Wayland does not tell other programs what is on the screen"),
        )
    ]
