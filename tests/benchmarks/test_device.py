"""`headrace bench device`: what is recorded, how answers are compared, and the lists of what a device cannot do."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks.device import __main__ as device
from benchmarks.device import gpu, operations, quick
from learner.devices.capabilities import capabilities

CPU = torch.device("cpu")


def test_a_tiny_run_on_the_cpu_ends_with_sound_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(operations, "RECORDED", ("dqn vector",))
    tiny = ["--device", "cpu", "--sizes", "64", "--memory-mb", "1", "--seconds", "0.01"]
    assert device.main([*tiny, "--threads", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {(each["case"], each["metric"]): each for each in document["results"]}
    assert found["matrix product 64", "float32"]["unit"] == "TFLOP/s" and found["memory", "copy"]["value"] > 0
    (ratio,) = (each for each in document["ratios"] if each["metric"] == "float32")
    assert ratio["value"] == 1.0
    assert found["all of dqn vector", "device"]["value"] > 0 and document["items"] == 32
    assert document["operations"] == {"falls back": [], "fails": [], "differs": []}, "the CPU equals itself"


def test_a_quick_check_of_a_gpu_says_what_is_odd_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(device: torch.device) -> Any:
        yield quick.Check("copies", True, "9 GB/s", "2 GB/s", {"copies": (9.0, "GB/s")})
        raise RuntimeError("an illegal memory access\nwas encountered")

    def slow(device: torch.device) -> Any:
        yield quick.Check("dqn", False, "3 waits", "0", {})

    monkeypatch.setattr(quick, "gpu", lambda name: CPU)
    monkeypatch.setattr(quick, "CHECKS", (broken, slow))
    assert gpu.main(["--quick"]) == 1
    _, *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "ODD", "ODD"] and "illegal memory access was" in lines[1]
    assert last.startswith("1 of 3 as expected")
    assert gpu.main(["--quick", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["ok"] for each in document["checks"]] == [True, False, False] and document["results"][0]["value"] == 9.0


def test_where_there_is_no_gpu_a_quick_check_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--quick", "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert said.err == "headrace bench gpu: there is no GPU to check: --device names the CPU\n" and not said.out


def test_an_update_is_checked_beside_the_cpus() -> None:
    expected = quick.after_steps(quick.made("dqn vector", CPU, precision="float32"))
    check = quick.beside_the_cpu("dqn vector", "float32", CPU, expected)
    assert check.ok and "the CPU's figures" in check.found
    expected["loss"] += 1.0
    check = quick.beside_the_cpu("dqn vector", "float32", CPU, expected)
    assert not check.ok and "loss" in check.found


def test_it_tells_other_benchmarks_what_the_device_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert device.main(["--device", "cpu", "--about"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)["precisions"]) == sorted(capabilities(CPU).precisions)
