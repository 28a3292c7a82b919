"""`headrace bench device --compare`: two machines side by side, and what is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device import __main__ as device

GPU, CARD = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
SHIPPED = Path(device.__file__).parents[1] / "results" / "device.json"


def written(folder: Path, gpu: str, scale: float, **more: Any) -> str:
    """A result whose times are `scale` times as long, in a file."""
    figures = [
        ("matrix product 1,024", "bfloat16", "TFLOP/s", 494.7 / scale),
        ("matrix product 1,024", "CPU float32", "TFLOP/s", 0.2),
        ("memory", "copy", "GB/s", 2_400.0 / scale),
        ("all of dqn image", "CPU", "ms", 20.0),
        ("all of dqn image", "device", "ms", 2.0 * scale),
        ("mm", "device", "µs", 4.0 * scale),
    ]
    results = [dict(zip(("case", "metric", "unit", "value"), each, strict=True)) for each in figures]
    found = {"benchmark": "device", "machine": {"gpu": gpu, "torch": "2.13.0"}, "results": results, "items": 256}
    path = folder / f"{gpu}-{scale}-{len(more)}.json"
    path.write_text(json.dumps(found | more))
    return str(path)


def test_each_case_has_its_ratio_and_what_falls_back_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = {"operations": {"falls back": [{"name": "aten::mm", "reason": "no kernel"}], "fails": [], "differs": []}}
    files = [written(tmp_path, GPU, 1.0, **left), written(tmp_path, CARD, 2.0)]
    assert device.main(["--compare", *files]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{GPU} beside {CARD}\n") and "A: falls back to the CPU: aten::mm (no kernel)" in said
    assert device.main(["--compare", *files, "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {row["ratio"] for row in rows.values()} == {0.5} and len(rows) == 4, "B is half as fast at everything"
    assert rows["mm"]["marks"] == ["A: falls back to the CPU"]


def test_times_of_different_work_get_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert device.main(["--compare", written(tmp_path, GPU, 1.0), written(tmp_path, CARD, 2.0, items=32), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ratios = {row["name"]: row["ratio"] for row in found["rows"]}
    assert ratios["mm"] is None and ratios["memory, copy"] == 0.5
    assert any("--batch-size 256" in line for line in found["about"])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "--compare needs two files, A.json B.json, not 0"),
        ([SHIPPED], "--compare needs two files, A.json B.json, not 1"),
        ([SHIPPED, SHIPPED.with_name("learner.json")], "a result of `headrace bench learner`"),
        ([SHIPPED, SHIPPED.with_name("none.json")], "cannot be read: No such file or directory"),
        ([SHIPPED, Path(__file__)], "is not JSON"),
    ],
)
def test_a_mistake_costs_one_line(files: list[Path], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert device.main(["--compare", *map(str, files)]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and said in output.err
