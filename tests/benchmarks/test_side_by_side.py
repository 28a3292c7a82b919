"""`headrace bench device --compare`: two machines side by side, what is wrong with a file, and the page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.device import __main__ as device
from benchmarks.device import operations
from benchmarks.device.operations import Operation, Outcome, Recorder
from benchmarks.device.page import page
from benchmarks.device.peak import PEAKS, Peak, peak, share
from benchmarks.device.side_by_side import CompareError, Comparison, compare, read, table

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


def compared(folder: Path, a: dict[str, Any], b: dict[str, Any]) -> Comparison:
    return compare(read(written(folder, "a.json", a)), read(written(folder, "b.json", b)))


def test_times_ratio_and_share_of_peak_stand_side_by_side(tmp_path: Path) -> None:
    comparison = compared(tmp_path, document(GPU), document(CARD, 4.0))
    rows = {row.name: row for row in comparison.rows}
    assert list(rows) == ["DQN Nature", "mm", "relu_", "matrix product 1,024, bfloat16", "copy"], "the CPU beside it has no row"
    assert (rows["mm"].a, rows["mm"].b, rows["mm"].ratio, rows["mm"].unit) == (4.0, 16.0, 0.25, "µs")
    assert rows["mm"].share_a == pytest.approx(0.25), "494.7 MFLOP take 1 µs at 494.7 TFLOP/s"
    assert rows["relu_"].share_a == pytest.approx(0.5), "4.8 MB take 1 µs at 4.8 TB/s"
    assert rows["mm"].share_b == pytest.approx(494.7e6 / 156e12 / 16e-6)
    product, copy = rows["matrix product 1,024, bfloat16"], rows["copy"]
    assert product.a == pytest.approx(2 * 1024**3 / 494.7e12 * 1e3) and product.unit == "ms"
    assert product.ratio == pytest.approx(0.25) and product.share_a == pytest.approx(0.5)
    assert copy.ratio == pytest.approx(0.25) and copy.share_a == pytest.approx(0.5), "rates are compared the other way round"
    assert comparison.title == f"{GPU} beside {CARD}" and not comparison.warnings
    said = table(comparison)
    assert "A: peak: float32 67, TF32 494.7" in said and "H200 data sheet" in said
    (line,) = (line for line in said.splitlines() if line.startswith("mm "))
    assert line.split() == ["mm", "4", "µs", "16", "µs", "0.250", "25.0", "%", "19.8", "%"]


def test_a_processor_and_a_card_that_is_not_listed_have_no_peak(tmp_path: Path) -> None:
    comparison = compared(tmp_path, document(None), document("NVIDIA GeForce RTX 4090 Laptop GPU"))
    assert {(row.share_a, row.share_b) for row in comparison.rows} == {(None, None)}
    assert comparison.title.startswith("AMD EPYC, 2 cores beside ")
    assert "the peak of AMD EPYC, 2 cores is not known" in table(comparison)
    on_cpu = compared(tmp_path, document(GPU, device="cpu"), document(GPU, device="cuda:0"))
    assert on_cpu.title == f"AMD EPYC, 2 cores beside {GPU}", "the CPU of a machine that also has a card"
    assert on_cpu.rows[1].share_a is None and on_cpu.rows[1].share_b is not None


def test_results_that_do_not_say_how_much_work_there_was_have_no_share(tmp_path: Path) -> None:
    old = document(GPU)
    del old["work"], old["items"]
    comparison = compared(tmp_path, old, document(GPU))
    rows = {row.name: row for row in comparison.rows}
    assert rows["mm"].share_a is None and rows["mm"].share_b is not None and rows["mm"].ratio == 1.0
    assert rows["copy"].share_a == rows["copy"].share_b


def test_what_falls_back_fails_or_is_there_once_is_marked(tmp_path: Path) -> None:
    b = document(CARD)
    b["results"].append(figure("argmax", "device", "µs", 3.0))
    b["operations"]["falls back"] = [{"name": "aten::mm", "reason": "not supported", "networks": ["SAC"]}]
    b["operations"]["fails"] = [{"name": "aten::huber_loss", "reason": "NotImplementedError", "networks": []}]
    a = document(GPU)
    del a["operations"]
    comparison = compared(tmp_path, a, b)
    marks = {row.name: row.marks for row in comparison.rows}
    assert marks["mm"] == ["B: falls back to the CPU"] and marks["relu_"] == []
    assert marks["argmax"] == ["only in B"]
    assert marks["huber_loss"] == ["B: fails"], "it has no time, and a row all the same"
    assert "A: operations were not measured" in comparison.left
    assert "B: falls back to the CPU: aten::mm (not supported)" in comparison.left
    assert "B: differs from the CPU's: none" in comparison.left


def test_updates_of_different_sizes_get_no_ratio(tmp_path: Path) -> None:
    small = document(None, items=32)
    comparison = compared(tmp_path, document(GPU), small)
    assert {row.ratio for row in comparison.rows if row.section in ("updates", "operations")} == {None}
    assert all(row.ratio for row in comparison.rows if row.section in ("matrices", "memory"))
    assert "256 items, B's 32" in table(comparison) and "--batch-size 256" in page(comparison)
    del small["items"]
    small["notes"] = ["device cpu", "564 operations by shape and type, recorded from updates of 32 items"]
    assert compared(tmp_path, document(GPU), small).warnings, "older files say it in a note"


class Page(HTMLParser):
    """Tags with their attributes, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_from_elsewhere_and_names_both_machines(tmp_path: Path) -> None:
    comparison = compared(tmp_path, document(GPU), document("<script>alert(1)</script> & card"))
    text = page(comparison)
    found = Page()
    found.feed(text)
    names = [tag for tag, _ in found.tags]
    assert not {"script", "link", "img", "iframe", "object"} & set(names)
    assert not any(attribute in ("src", "href") or attribute.startswith("on") for _, given in found.tags for attribute in given)
    assert "url(" not in text and "@import" not in text
    assert "<title>NVIDIA H200 beside &lt;script&gt;" in text and "& card" in found.text
    assert "color-scheme: light dark" in text and "prefers-color-scheme: dark" in text
    assert names.count("table") == 4 and all(given.get("scope") for tag, given in found.tags if tag == "th")
    for row in comparison.rows:
        assert row.name in found.text


def test_the_command_prints_the_table_and_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(written(tmp_path, "a.json", document(GPU))), str(written(tmp_path, "b.json", document(CARD)))]
    out = tmp_path / "page.html"
    assert device.main(["--compare", *files, "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{GPU} beside {CARD}\n")
    assert out.read_text().startswith("<!doctype html>")
    assert device.main(["--compare", *files, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["a"], said["b"]) == (GPU, CARD) and said["rows"][1]["ratio"] == 1.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "is a result of no benchmark"),
        (b'{"benchmark": "learner\\u001b[31m"}', "is a result of `headrace bench learner`:"),
        (b'{"benchmark": "device"}', "is not as `headrace bench device --json` writes it"),
        (b'{"benchmark": "device", "machine": {}, "results": [{"case": 1}]}', "is not as `headrace bench device --json`"),
    ],
    ids=["missing", "empty", "no text", "deep", "a list", "another benchmark's", "nothing measured", "a wrong type"],
)
def test_a_bad_file_costs_one_line(content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = written(tmp_path, "good.json", document(GPU)), tmp_path / "bad.json"
    if content is not None:
        bad.write_bytes(content)
    for files in ((good, bad), (bad, good)):
        assert device.main(["--compare", *map(str, files)]) == 2
        output = capsys.readouterr()
        assert output.out == "" and output.err.count("\n") == 1 and output.err[:-1].isprintable()
        assert output.err.startswith(f"headrace bench device: {bad} ") and said in output.err


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


def test_a_figure_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    broken = document(GPU)
    broken["results"] += [figure("exp", "device", "µs", float("nan")), figure("abs", "device", "µs", 0.0)]
    broken["work"]["mm"] = {"flops": {"TF32": float("nan")}, "bytes": 1.0}
    rows = {row.name: row for row in compared(tmp_path, broken, document(CARD)).rows}
    assert "exp" not in rows and "abs" not in rows and rows["mm"].share_a is None


def test_the_shipped_result_can_be_read() -> None:
    path = Path(device.__file__).parents[1] / "results" / "device.json"
    comparison = compare(read(path), read(path))
    assert {row.ratio for row in comparison.rows} == {1.0} and len(comparison.rows) > 50
    with pytest.raises(CompareError, match="bench learner"):
        read(path.with_name("learner.json"))


def test_cards_are_known_by_their_whole_name() -> None:
    assert peak("NVIDIA H200") == peak("NVIDIA H200 (ROCm 6.2)") != peak("NVIDIA H100 PCIe")
    for other in ("NVIDIA H200 NVL", "NVIDIA A100", "AMD EPYC", "", "NVIDIA GeForce RTX 4090 D"):
        assert peak(other) is None, other
    assert peak("AMD Instinct MI300X OAM (ROCm 6.2.41133)") is not None
    assert all(each.source and each.gigabytes > 0 and min(each.tflops.values()) > 0 for each in PEAKS.values())
    of = Peak({"float32": 1.0}, 1_000.0, "made up")
    assert share(1.0, {"float32": 5e11}, 1e11, of) == 0.5 and share(1.0, {"float32": 1e11}, 5e11, of) == 0.5
    assert share(1.0, {"bfloat16": 1.0}, 1.0, of) is None and share(1.0, {}, 0.0, of) is None


def test_the_work_of_an_operation_is_counted() -> None:
    found: dict[Any, Operation] = {}
    a, b, rows = torch.ones(8, 16), torch.ones(16, 4), torch.ones(1000, 3)
    with Recorder(found, "one"):
        a @ b
        a.bfloat16() @ b.bfloat16()
        a.add_(1.0)
        rows.index_select(0, torch.tensor([5, 6]))
        a + torch.ones(1, 16).expand(8, 16)
        a.fill_(2.0)
    work = {(one.name.removeprefix("aten::"), one.work.precision): one.work for one in found.values()}
    assert work["mm", "float32"] == (2 * 8 * 16 * 4, "float32", 4 * (8 * 16 + 16 * 4 + 8 * 4))
    assert work["mm", "bfloat16"] == (2 * 8 * 16 * 4, "bfloat16", 2 * (8 * 16 + 16 * 4 + 8 * 4))
    assert work["add_", ""].bytes == 2 * 4 * 128 and work["fill_", ""].bytes == 4 * 128
    assert work["index_select", ""].bytes == 2 * 4 * 2 * 3 + 8 * 2, "the rows that are not chosen are not read"
    assert work["add", ""].bytes == 2 * 4 * 128 + 4 * 16


def test_the_work_of_an_update_counts_every_call_that_has_a_time() -> None:
    found: dict[Any, Operation] = {}
    with Recorder(found, "one"):
        torch.ones(8, 16) @ torch.ones(16, 4)
    (product,) = (one for one in found.values() if one.name == "aten::mm")
    product.calls = {"one": 3, "other": 1}
    outcomes = [Outcome(product, "equal", "", (1.0, 1.0)), Outcome(product, "fails")]
    size = product.work.bytes
    assert operations.total_work(outcomes, False, "one") == {"flops": {"float32": 3 * 1024}, "bytes": 3 * size}
    assert operations.total_work(outcomes, True) == {"flops": {"TF32": 4 * 1024}, "bytes": 4 * size}
