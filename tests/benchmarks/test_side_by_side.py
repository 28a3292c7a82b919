"""`headrace bench device --compare`: two machines side by side, what is wrong with a file, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device import __main__ as device
from benchmarks.device.side_by_side import CompareError, compare, read

GPU, CARD = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"


def figure(case: str, metric: str, unit: str, value: float) -> dict[str, Any]:
    return {"case": case, "metric": metric, "unit": unit, "value": value, "runs": [value]}


def document(gpu: str | None, scale: float = 1.0, **more: Any) -> dict[str, Any]:
    """A result whose times are `scale` times as long."""
    work = {"mm": {"flops": {"TF32": 494.7e6}, "bytes": 100.0}, "relu_": {"flops": {}, "bytes": 4.8e6}}
    return {
        "benchmark": "device",
        "machine": {"cpu": "AMD EPYC", "cores": 2, "gpu": gpu, "python": "3.11", "torch": "2.13.0"},
        "commit": None,
        "notes": ["device 0", "2 operations by shape and type, recorded from updates of 256 items"],
        "results": [
            figure("matrix product 1,024", "bfloat16", "TFLOP/s", 494.7 / scale),
            figure("matrix product 1,024", "CPU float32", "TFLOP/s", 0.2),
            figure("memory", "copy", "GB/s", 2_400.0 / scale),
            figure("all of DQN Nature", "CPU", "ms", 20.0),
            figure("all of DQN Nature", "device", "ms", 2.0 * scale),
            figure("mm", "device", "µs", 4.0 * scale),
            figure("relu_", "device", "µs", 2.0 * scale),
        ],
        "peers": [],
        "ratios": [],
        "operations": {"falls back": [], "fails": [], "differs": []},
        "items": 256,
        "work": work,
        **more,
    }


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def test_the_command_prints_the_table_and_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(written(tmp_path, "a.json", document(GPU))), str(written(tmp_path, "b.json", document(CARD)))]
    out = tmp_path / "page.html"
    assert device.main(["--compare", *files, "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{GPU} beside {CARD}\n")
    assert out.read_text().startswith("<!doctype html>")
    assert device.main(["--compare", *files, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["a"], said["b"]) == (GPU, CARD) and said["rows"][1]["ratio"] == 1.0


def test_other_mistakes_cost_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(written(tmp_path, "good.json", document(GPU)))
    nowhere = str(tmp_path / "missing" / "page.html")
    mistakes = {
        ("--compare",): "--compare needs two files, A.json B.json, not 0",
        ("--compare", good): "--compare needs two files, A.json B.json, not 1",
        ("--compare", good, good, good): "--compare needs two files, A.json B.json, not 3",
        ("--out", "page.html"): "--out writes the page of --compare A.json B.json",
        ("--compare", good, good, "--out", nowhere): "cannot be written: No such file or directory",
    }
    for arguments, said in mistakes.items():
        assert device.main([*arguments]) == 2
        output = capsys.readouterr()
        assert output.out == "" and output.err.count("\n") == 1 and said in output.err


def test_the_shipped_result_can_be_read() -> None:
    path = Path(device.__file__).parents[1] / "results" / "device.json"
    comparison = compare(read(path), read(path))
    assert {row.ratio for row in comparison.rows} == {1.0} and len(comparison.rows) > 50
    with pytest.raises(CompareError, match="bench learner"):
        read(path.with_name("learner.json"))
