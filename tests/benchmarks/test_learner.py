"""`headrace bench learner`: a tiny real run of it, the plan of its cases, and the arithmetic of its figures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from benchmarks.by_hand.dqn import DqnLoop
from benchmarks.by_hand.ppo import PpoLoop
from benchmarks.device import gpu
from benchmarks.device.resident import random_arrays
from benchmarks.learner import __main__ as learner
from benchmarks.learner import growth as learner_actors
from benchmarks.learner import report as learner_report
from benchmarks.learner import roofline
from benchmarks.learner.kernels import busy, union
from benchmarks.learner.plan import BATCHES, About, batches, compared, variants
from benchmarks.learner.runs import figures
from benchmarks.learner.workloads import WORKLOADS, Setting
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import PpoConfig
from learner.feed.batches import to_chunks, to_device
from replay.client.sampler import SampledBatch
from tests.learner.examples import make_update

CPU = torch.device("cpu")
LARGE = About("cuda", "a GPU", ["bfloat16", "float16", "float32"], compiles=True, graphs=True)
SMALL = About("cpu", None, ["float32", "bfloat16"], compiles=True, graphs=False)
TINY = ["--device", "cpu", "--rounds", "1", "--seconds", "1", "--short-seconds", "0.5", "--threads", "1"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_tiny_run_ends_with_sound_json(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ["--cases", "compared", "peers", "--batches", "mlp:32", "ppo-mlp:64"]
    assert learner.main([*TINY, *cases, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"benchmark", "machine", "commit", "results", "peers", "ratios"} <= set(document)
    assert not any("left out" in note for note in document["notes"]), document["notes"]
    found = {(each["case"], each["metric"]): each["value"] for each in document["results"]}
    for case, items in (("mlp 32", 32), ("ppo-mlp 64", None)):
        assert found[case, "updates"] > 0 and found[f"{case}, bare loop", "updates"] > 0
        assert 0 <= found[case, "data wait"] < 100 and 0 < found[case, "update"] <= 100 and found[case, "memory"] > 50
        if items:
            assert found[case, "items"] == pytest.approx(items * found[case, "updates"])
    ratios = {(each["case"], each["peer"]): each["value"] for each in document["ratios"]}
    assert ratios["mlp 32", "bare loop"] == pytest.approx(found["mlp 32", "updates"] / found["mlp 32, bare loop", "updates"])
    others = [("mlp 32", "bare loop"), ("mlp 32", "bare loop, fed"), ("mlp 32", "single-file DQN"), ("ppo-mlp 64", "bare loop")]
    assert sorted(ratios) == others


@pytest.mark.flow
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_the_learner_with_a_profiler_tells_its_rate_and_ends() -> None:
    from benchmarks.learner.runs import serving

    with serving(WORKLOADS["mlp"]) as source:
        told = source.watched(Setting("mlp", 32, device="cpu", graphs=True), 0.5)
    assert told["updates"] > 0 and told["precision"] == "float32" and "device busy" not in told
    assert len(told["warnings"]) == 1 and "are not recorded" in told["warnings"][0], "what was asked for and not done is told"


def test_what_fails_is_told_and_the_rest_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    options = learner.parse([*TINY, "--batches", "mlp:32"])
    bench = learner.Bench(SMALL, options)

    def fail() -> dict[str, Any]:
        raise learner.CaseFailed("out of something")

    bench.try_("mlp 32", "learner", fail)
    bench.try_("mlp 32", "bare loop", lambda: {"updates": 2.0, "precision": "float32"})
    assert bench.left_out == ["mlp 32, learner: out of something"] and bench.precisions == {"mlp 32": "float32"}
    report = learner_report.make_report(bench.found, bench.precisions, SMALL)
    assert [each["case"] for each in report.results] == ["mlp 32, bare loop"] and not report.ratios
    assert "failed: out of something" in capsys.readouterr().err


def test_nothing_is_begun_when_the_time_is_over() -> None:
    bench = learner.Bench(SMALL, learner.parse([*TINY, "--batches", "mlp:32", "--budget", "1e-9"]))
    bench.try_("mlp 32", "learner", lambda: pytest.fail("begun"))
    assert bench.left_out == ["mlp 32, learner"]


def test_batches_are_written_by_workload() -> None:
    assert batches("nature:64,4x512 mlp:256") == {"nature": [(64, 1), (2048, 4)], "mlp": [(256, 1)]}
    for wrong in ("nature:0", "nature:", "natur:64", "nature:4x", "ppo-mlp:2x64"):
        with pytest.raises(ValueError, match=r"batch|workload|accumulated"):
            batches(wrong)
    with pytest.raises(SystemExit):
        learner.parse(["--batches", "nature:x"])
    for words in BATCHES.values():
        assert set(batches(words)) == set(WORKLOADS), "every workload has its usual batches"


def test_the_names_of_all_cases_of_a_device_differ() -> None:
    for about in (LARGE, SMALL):
        first = compared(about, batches("nature:1"), 0, 2)[0]
        found = [*variants(about, about.precisions, first)]
        assert len({one.name for one in found}) == len(found)
        assert {one.precision for one in found} >= set(about.precisions)
        assert any(one.compile for one in found)
        for one in found:
            assert one.learner().batch_size == one.batch
    large = [*variants(LARGE, LARGE.precisions, compared(LARGE, batches("nature:1"), 0, 2)[0])]
    assert {one.batch for one in large} == {256, 512, 1024, 2048, 4096}
    assert any(one.graphs and one.compile for one in large) and not any(
        one.graphs and one.precision == "float16" for one in large
    )
    assert not any(one.graphs for one in found), "a CPU has none"


def test_cores_are_for_images_on_a_cpu_alone() -> None:
    threads = {one.name: one.threads for one in compared(SMALL, batches("nature:64 mlp:32"), 0, 8)}
    assert threads == {"nature 64": 8, "mlp 32": 1}
    assert {one.threads for one in compared(LARGE, batches("nature:64 mlp:32"), 0, 8)} == {1}
    assert {one.threads for one in compared(SMALL, batches("nature:64 mlp:32"), 3, 8)} == {3}


@pytest.mark.parametrize(("name", "batch", "parts"), [("mlp", 32, 1), ("mlp", 32, 4), ("nature", 8, 2)])
def test_the_bare_loop_learns_what_the_learner_learns(name: str, batch: int, parts: int) -> None:
    """From the same weights and batch, both have the same weights after an update."""
    workload = WORKLOADS[name]
    spec, config = workload.spec(), workload.algorithm
    assert isinstance(config, DqnConfig)
    setting = Setting(name, batch, parts, precision="float32", device="cpu")
    arrays = random_arrays(spec, batch)
    arrays["steps"][:] = np.arange(batch) % spec.n_step + 1
    arrays["terminated"][:] = np.arange(batch) % 3 == 0
    arrays["reward"] *= 1e3
    loop = DqnLoop(setting, config, [arrays])
    algorithm = make_update(spec, config, setting.learner())
    with torch.no_grad():
        for theirs, ours in ((loop.network, algorithm.policy), (loop.target, algorithm.target)):
            for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                assert mine.shape == other.shape, "networks of the same shapes"
                mine.copy_(other)
    before = [parameter.clone() for parameter in loop.parameters]
    _, priorities = algorithm.update(to_device(SampledBatch(0, 0, arrays), spec, CPU))
    loop.update()
    for mine, other, was in zip(algorithm.policy.parameters(), loop.parameters, before, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
        assert not torch.equal(other, was)
    assert loop.host.seen == pytest.approx(priorities.numpy(), rel=1e-4)


def test_the_bare_loop_of_ppo_has_the_learners_advantages_and_shapes() -> None:
    workload = WORKLOADS["ppo-mlp"]
    spec, config = workload.spec(), workload.algorithm
    assert isinstance(config, PpoConfig)
    setting = Setting("ppo-mlp", 64, device="cpu", precision="float32")
    arrays = random_arrays(spec, 4)
    arrays["terminated"][:, 10] = 1
    arrays["truncated"][:, 20] = 1
    loop = PpoLoop(setting, config, [arrays])
    algorithm = make_update(spec, config)
    learned = [*algorithm.policy.parameters(), *algorithm.value.parameters()]
    assert sorted(one.shape for one in loop.parameters) == sorted(one.shape for one in learned)
    with torch.no_grad():
        for mine, other in zip(algorithm.policy.parameters(), loop.policy.parameters(), strict=True):
            mine.copy_(other)
        for mine, other in zip(algorithm.value.parameters(), loop.value.parameters(), strict=True):
            mine.copy_(other)
    items, _, _, _ = algorithm.prepare(to_chunks(arrays, spec, CPU), False)
    _, found = loop.prepare(loop.rollouts[0])
    torch.testing.assert_close(found["advantage"], items.advantage)
    torch.testing.assert_close(found["return"], items.return_)
    assert torch.equal(found["index"], items.observation_index)
    loop.update()
    assert loop.updates == config.n_epochs * config.minibatches


def test_shares_are_weighted_by_time() -> None:
    rows = [
        {"time": 10.0, "updates": 5.0, "items": 50.0, "data_wait_fraction": 0.9, "processor_fraction": 1.0},
        {"time": 11.0, "updates": 7.0, "items": 70.0, "data_wait_fraction": 0.4, "processor_fraction": 1.0},
        {"time": 14.0, "updates": 13.0, "items": 130.0, "processor_fraction": 1.0},
    ]
    told = figures(rows)
    assert told["updates"] == pytest.approx(2.0) and told["items"] == pytest.approx(20.0)
    assert told["data wait"] == pytest.approx(10.0) and told["update"] == 0.0 and told["CPU"] == pytest.approx(500.0)
    assert "device" not in told


def test_ratios_are_those_of_rounds_and_gains_those_of_variants() -> None:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {
        ("nature 512", "bare loop"): [{"updates": 10.0}, {"updates": 20.0}, {"updates": 40.0}],
        ("nature 512", "learner"): [{"updates": 9.0}, {"updates": 20.0}],
        ("nature 512, float32", "with profiler"): [{"updates": 10.0}],
        ("nature 512, bfloat16", "with profiler"): [{"updates": 25.0, "device busy": 90.0}],
        ("nature 512, bfloat16, graphs", "with profiler"): [{"updates": 30.0}],
        ("nature 512, bfloat16, compiled", "with profiler"): [{"updates": 50.0}],
        ("1 actors, nature 64", "run"): [{"updates": 1.0, "steps": 100.0}],
        ("4 actors, nature 64", "run"): [{"updates": 1.0, "steps": 300.0}],
    }
    report = learner_report.make_report(found, {"nature 512": "bfloat16"}, LARGE)
    ratios = {(each["case"], each["peer"]): each["value"] for each in report.ratios}
    assert ratios["nature 512", "bare loop"] == pytest.approx(0.95)
    assert ratios["nature 512, bfloat16", "nature 512, float32"] == pytest.approx(2.5)
    assert ratios["nature 512, bfloat16, graphs", "nature 512, bfloat16"] == pytest.approx(1.2)
    assert ratios["nature 512, bfloat16, compiled", "nature 512, bfloat16"] == pytest.approx(2.0)
    values = {(each["case"], each["metric"]): each["value"] for each in report.results}
    assert values["1 actors, nature 64", "efficiency"] == 100 and values["4 actors, nature 64", "efficiency"] == pytest.approx(75)
    assert report.document()["machine"]["gpu"] == "a GPU" and "nature 512: bfloat16" in report.notes


def test_busy_is_the_time_with_a_kernel_whatever_runs_beside_it() -> None:
    assert union([(0, 2), (1, 3), (5, 6)]) == 4 and union([]) == 0
    kernels: list[dict[str, Any]] = [{"cat": "kernel", "ts": begin, "dur": 2.0} for begin in (0.0, 1.0, 5.0, 10.0)]
    other: list[dict[str, Any]] = [
        {"cat": "gpu_memcpy", "ts": 3.0, "dur": 1.0},
        {"cat": "gpu_user_annotation", "ts": 0.0, "dur": 10.0},
        {"cat": "cpu_op", "ts": 0.0, "dur": 10.0},
        {"name": "no category"},
    ]
    told = busy([*kernels, *other])
    assert told["device busy"] == pytest.approx(50.0) and told["device copying"] == pytest.approx(10.0)
    assert told["kernels"] == pytest.approx(3e5)
    assert busy(other) == {}


def test_the_arithmetic_of_the_nature_network_is_what_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = DqnConfig()
    spec = WORKLOADS["nature"].spec()
    algorithm = make_update(spec, config, Setting("nature", 4, device="cpu", precision="float32").learner())
    arrays = random_arrays(spec, 4)
    batch = to_device(SampledBatch(0, 0, arrays), spec, CPU)
    algorithm.update(batch)
    with FlopCounterMode(display=False) as counter:
        algorithm.update(batch)
    work = roofline.nature_update(4, spec.stack, spec.n_step, config.hidden, 8, 4)
    assert work.flops == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert work.host_bytes == arrays["observation/observation"].nbytes
    twice = roofline.nature_update(8, spec.stack, spec.n_step, config.hidden, 8, 4)
    assert twice.flops == 2 * work.flops and work.device_bytes < twice.device_bytes < 2 * work.device_bytes
    most = roofline.bounds(work, 10 * work.flops, 20 * work.device_bytes, 30 * work.host_bytes)
    assert list(most.values()) == pytest.approx([10.0, 20.0, 30.0])


def test_efficiency_is_against_the_fewest_actors() -> None:
    assert learner_actors.efficiencies([100.0, 180.0, 300.0], [1, 2, 4]) == pytest.approx([1.0, 0.9, 0.75])
    assert learner_actors.counts()[0] == 1


def test_a_setting_travels_and_is_what_the_learner_is_told() -> None:
    setting = Setting("ppo-mlp", 256, precision="float32", threads=2)
    assert msgspec.json.decode(msgspec.json.encode(setting), type=Setting) == setting
    assert setting.learner().batch_size == 4 * 256 and setting.learner().publish_epochs == 1
    assert Setting("nature", 2048, 4, compile=True).name == "nature 4 x 512, compiled"


def test_the_plan_for_a_gpu_keeps_within_its_time_and_writes_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, float]] = []

    def measure(name: str, seconds: float, out: Path, more: list[str]) -> bool:
        told.append((name, seconds))
        (out / f"{name}.json").write_text(json.dumps({"machine": {}, "notes": [name], "results": [], "ratios": []}))
        return name != "device"

    monkeypatch.setattr(gpu, "measure", measure)
    assert gpu.main(["--out", str(tmp_path / "new"), "--budget", "540"]) == 1, "one has written nothing"
    names, seconds = zip(*told, strict=True)
    assert names == gpu.FIRST
    assert seconds == pytest.approx((260, 540 * 80 / 280, 540), rel=0.01), "who comes later gets what is left"
    assert "actors\n" in capsys.readouterr().out
    for name, part in gpu.PARTS.items():
        if part.benchmark == "learner":
            assert learner.parse([*part.options, "--device", "cpu", "--budget", "5", "--json"]).cases, name


@pytest.mark.slow
@pytest.mark.flow
@pytest.mark.timeout(180)
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_part_that_outlasts_its_time_is_ended_and_still_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GRACE_SECONDS", 20.0)
    part = gpu.Part(
        "learner", ("--cases", "compared", "--batches", "mlp:32", "--rounds", "1000", "--seconds", "1"), 1, budget=False
    )
    monkeypatch.setitem(gpu.PARTS, "endless", part)
    assert gpu.measure("endless", 1.0, tmp_path, ["--device", "cpu"])
    document = json.loads((tmp_path / "endless.json").read_text())
    assert any("stopped" in note for note in document["notes"])
