"""`headrace bench device`: what is recorded, how answers are compared, and the lists of what a device cannot do."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.common.report import Report
from benchmarks.device import __main__ as device
from benchmarks.device import gpu, operations, quick, resident
from benchmarks.device.operations import Operation, Outcome, Recorder, compare, difference, fallbacks
from learner.devices.capabilities import capabilities

CPU = torch.device("cpu")


def recorded(*networks: str) -> list[Operation]:
    found: dict[Any, Operation] = {}
    for network in resident.networks():
        if network.name in networks:
            resident.record(network, 32, "float32", found)
    return list(found.values())


def test_every_shipped_network_is_recorded_with_what_it_is_known_to_need() -> None:
    found = {network.name: dict[Any, Operation]() for network in resident.networks()}
    for network in resident.networks():
        resident.record(network, 32 if network.images else 64, "float32", found[network.name])
    names = {name: {one.name for one in operations.values()} for name, operations in found.items()}
    for name in ("DQN Nature", "DQN BatchNorm", "PPO images"):
        assert {"aten::convolution", "aten::convolution_backward", "aten::index_select"} <= names[name], name
    assert "aten::native_batch_norm" in names["DQN BatchNorm"] and "aten::native_batch_norm" not in names["DQN Nature"]
    assert "aten::huber_loss" in names["DQN MLP"] and "aten::tanh" in names["PPO MLP"] and "aten::baddbmm" in names["SAC"]
    for each in names.values():
        assert {"aten::addmm", "aten::mm"} & each or "aten::bmm" in each
        assert not any("empty" in name or name in ("aten::view", "aten::t", "aten::detach") for name in each)


def test_one_example_of_an_operation_is_kept_with_its_arguments_as_they_were_and_its_calls_counted() -> None:
    found: dict[Any, Operation] = {}
    value = torch.ones(3)
    with Recorder(found, "one"):
        value.mul_(2.0)
        value.mul_(2.0)
    with Recorder(found, "other"):
        value.mul_(2.0)
        torch.ones(4).mul_(2.0)
    three, four = (one for one in found.values() if one.name == "aten::mul_")
    assert three.calls == {"one": 2, "other": 1} and four.calls == {"other": 1}
    assert torch.equal(three.arguments[0], torch.ones(3)), "copied before it changed"
    assert three.changes and not three.random


def test_what_one_device_answers_is_compared_with_what_the_cpu_answers_whole() -> None:
    for operation in recorded("DQN MLP", "SAC"):
        outcome = compare(operation, CPU, seconds=0.0)
        assert outcome.verdict == "equal", (operation.name, outcome.reason)
        assert outcome.seconds[0] == outcome.seconds[1] > 0


def test_a_stand_in_that_fails_falls_back_and_miscalculates_fills_the_lists(capsys: pytest.CaptureFixture[str]) -> None:
    def stand_in(operation: Operation) -> Any:
        if operation.name == "aten::huber_loss":
            raise NotImplementedError("The operator 'aten::huber_loss' is not implemented for this device.\nand more")
        if operation.name == "aten::argmax":
            warnings.warn("The operator 'aten::argmax' is not supported and will fall back to run on the CPU.", stacklevel=1)
        answer = operation.on(CPU)()
        return answer * 1.05 if operation.name == "aten::baddbmm" else answer

    report = Report("device")
    with pytest.MonkeyPatch.context() as patch:
        few = [one for one in resident.networks() if one.name == "DQN MLP"]
        patch.setattr(resident, "networks", lambda: few)
        device.measure_operations(report, CPU, 32, lambda one: compare(one, CPU, stand_in, seconds=0.0))
    lists = report.more["operations"]
    assert [(one["name"], one["networks"]) for one in lists["fails"]] == [("aten::huber_loss", ["DQN MLP"])]
    assert "not implemented for this device. and more" in lists["fails"][0]["reason"]
    assert [one["name"] for one in lists["falls back"]] == ["aten::argmax"]
    assert {one["name"] for one in lists["differs"]} == {"aten::baddbmm"}
    assert lists["differs"][0]["reason"] == "relative error 5.0e-02"
    report.print(as_json=False)
    said = capsys.readouterr().out
    assert "operations that fail: aten::huber_loss (NotImplementedError: " in said
    assert "huber_loss  " not in said, "what failed has no time"


def test_warnings_of_a_fallback_are_seen_every_time_and_others_are_not() -> None:
    before = torch.is_warn_always_enabled()
    for _ in range(2):
        with fallbacks() as said:
            assert torch.is_warn_always_enabled(), "torch itself would warn once only"
            warnings.warn("op is not supported and will fall back to run on the CPU\nadvice", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
        assert said == ["op is not supported and will fall back to run on the CPU"]
    assert torch.is_warn_always_enabled() == before


def test_answers_differ_by_more_than_the_rounding_of_their_type() -> None:
    one = torch.randn(1000)
    assert difference(one, one * (1 + 1e-4), 1.0) == "" and difference(one, one * 1.01, 1.0) != ""
    assert difference(one.bfloat16(), (one * 1.01).bfloat16(), 1.0) == "", "bfloat16 tells no finer"
    assert difference(torch.arange(3), torch.tensor([0, 1, 3]), 1.0) == "1 of 3 values differ"
    assert difference(one, one.double(), 1.0) != "" and difference((one, one), (one,), 1.0) == "1 values instead of 2"
    broken = one.clone()
    broken[0] = torch.nan
    assert difference(one, broken, 1.0) == "not finite elsewhere" and difference(broken, broken, 1.0) == ""
    assert difference(torch.zeros(4), torch.full((4,), 1e-7), 1.0) == "", "rounding of values about 1"
    assert difference(torch.zeros(4), torch.full((4,), 1e-7), 1e-3) != ""


def test_random_answers_are_not_compared() -> None:
    found: dict[Any, Operation] = {}
    with Recorder(found, "one"):
        torch.randn_like(torch.ones(8))
    (operation,) = (one for one in found.values() if one.name == "aten::randn_like")
    assert operation.random
    assert compare(operation, CPU, lambda one: one.on(CPU)() + 1, seconds=0.0).verdict == "equal"


def test_adam_is_recorded_as_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    poor = replace(capabilities(CPU), adam="single", precisions=("float32",))
    monkeypatch.setattr(resident, "capabilities", lambda of: poor if of.type == "meta" else capabilities(of))
    few = [one for one in resident.networks() if one.name == "DQN MLP"]
    monkeypatch.setattr(resident, "networks", lambda: few)
    names = {one.name for one in resident.recorded(torch.device("meta"), 32, lambda _: None)}
    assert "aten::_fused_adam_" not in names and "aten::addcdiv_" in names
    assert "aten::_fused_adam_" in {one.name for one in resident.recorded(CPU, 32, lambda _: None)}


def test_times_of_an_update_count_every_call() -> None:
    operation = Operation(torch.ops.aten.add.Tensor, (torch.ones(1), torch.ones(1)), {}, {"a": 3, "b": 1})
    outcome = Outcome(operation, "equal", "", (0.5, 0.25))
    assert operations.per_update(outcome) == (2.0, 1.0) and operations.per_update(outcome, "a") == (1.5, 0.75)


def test_a_tiny_run_on_the_cpu_ends_with_sound_json(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--device", "cpu", "--cases", "matrices", "memory", "--sizes", "64", "--memory-mb", "1", "--seconds", "0.01"]
    assert device.main([*tiny, "--threads", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {(each["case"], each["metric"]): each for each in document["results"]}
    assert found["matrix product 64", "float32"]["unit"] == "TFLOP/s" and found["memory", "copy"]["value"] > 0
    (ratio,) = (each for each in document["ratios"] if each["metric"] == "float32")
    assert ratio["value"] == 1.0


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


def test_mistakes_cost_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert device.main(["--device", "gpu"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("headrace bench device: no device is called 'gpu'") and said.count("\n") == 1
    with pytest.raises(SystemExit):
        device.main(["--sizes", "0"])
    assert device.main(["--device", "cpu", "--about"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)["precisions"]) == sorted(capabilities(CPU).precisions)
