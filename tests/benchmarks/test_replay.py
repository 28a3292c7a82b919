"""`headrace bench replay`: what its processes send, what its checker finds, what it prints."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.recording import load_frames
from benchmarks.replay import __main__ as replay
from benchmarks.replay.roles import compare
from benchmarks.replay.sources import chunks_by_slices, first_rows, load_circle, save_circle
from benchmarks.replay.wire import make_spec
from replay.config import ReplayConfig
from replay.table.layout import layout
from replay.table.ring import Ring
from transport.experience import Columns

N_STEP = 3


def drawn(tmp_path: Path, source: object, n_step: int = N_STEP, batch_size: int = 256) -> Columns:
    """A batch out of a table that holds chunks of a source."""
    spec = make_spec("frames", n_step, "none")
    save_circle(tmp_path / "recording", load_frames(), spec.rows(spec.chunk_length))
    recording, columns = load_circle(tmp_path / "recording")
    table = Ring(spec, ReplayConfig(capacity=4096, min_size=1), seed=0)
    for chunk in islice(source(spec, recording, columns, first_rows(recording, 1, 2)), 24):  # type: ignore[operator]
        table.insert(chunk)
    arrangement = layout(spec, batch_size)
    batch = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
    table.sample(batch)
    return batch


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("observation/observation", "an observation"),
        ("action", "an action"),
        ("steps", "an item ends"),
        ("next_index", "a next observation"),
    ],
)
def test_the_checker_finds_what_was_not_written(tmp_path: Path, name: str, what: str) -> None:
    batch = drawn(tmp_path, chunks_by_slices)
    batch[name][:] = (batch[name] + 1) % 4
    with pytest.raises(AssertionError, match=what):
        compare(make_spec("frames", N_STEP, "none"), load_frames(), batch)


@pytest.mark.flow
@pytest.mark.slow
def test_a_short_run_ends_with_a_sound_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay.main(["--seconds", "1", "--runs", "1", "--cases", "vectors", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() >= {"benchmark", "machine", "commit", "results", "peers", "ratios"}
    value = {(each["case"], each["metric"]): each["value"] for each in document["results"]}
    mix = "vectors, together at 1.43 : 1"
    assert value["vectors, one writer alone", "inserts"] > 0 and value["vectors, one sampler alone", "samples"] > 0
    assert {"acknowledged p99", "batch p99", "server CPU per insert", "all CPU per sample", "on the wire"} <= {
        metric for case, metric in value if case == mix
    }
    assert 0 < value[mix, "of its budget"] < 1
    assert ["vectors, bare gather"] == [each["peer"] for each in document["ratios"]]
    assert any("items compared with the recording, all equal" in note for note in document["notes"])
