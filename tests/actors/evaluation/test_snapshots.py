"""Policies that training has saved, evaluated one after the other; those of another library act in a process of their own."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from actors.evaluation.lines import add_line, mend, read_lines
from actors.evaluation.pipe import receive, send, serve
from actors.evaluation.snapshots import SnapshotRequest, run

ACT = """
import sys
import numpy as np
from actors.evaluation.pipe import serve
def load(path):
    with open(path) as file:
        force = float(file.read())
    return lambda seen: np.full((len(seen), 1), force, np.float32)
serve(load, sys.stdin.buffer, sys.stdout.buffer)
"""


def test_a_message_brings_its_array() -> None:
    pipe = io.BytesIO()
    send(pipe, {"a": 1}, np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2])
    send(pipe, {"load": "x"})
    pipe.seek(0)
    message = receive(pipe)
    assert message is not None and message[0] == {"a": 1}
    np.testing.assert_array_equal(message[1], [[0, 2], [3, 5]])
    assert receive(pipe) == ({"load": "x"}, None)
    assert receive(pipe) is None


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_message_that_was_cut_off_is_the_end(cut: int) -> None:
    pipe = io.BytesIO()
    send(pipe, {}, np.zeros(8))
    assert receive(io.BytesIO(pipe.getvalue()[:-cut])) is None


def test_a_policy_acts_until_the_other_side_ends() -> None:
    requests, answers = io.BytesIO(), io.BytesIO()
    send(requests, {"load": "3"})
    send(requests, {}, np.zeros((2, 4)))
    requests.seek(0)
    serve(lambda path: lambda seen: np.full(len(seen), int(path)), requests, answers)
    answers.seek(0)
    message = receive(answers)
    assert message is not None and message[1] is not None and message[1].tolist() == [3, 3]


def test_a_line_that_was_not_written_whole_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert list(read_lines(path)) == []
    add_line(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": 2')
    assert list(read_lines(path)) == [{"a": 1}]
    mend(path)
    add_line(path, {"a": 3})
    assert list(read_lines(path)) == [{"a": 1}, {"a": 3}]


def test_a_number_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        add_line(tmp_path / "lines.jsonl", {"a": float("nan")})


def test_actions_of_another_library_reach_the_environment_as_they_are(tmp_path: Path) -> None:
    """A Pendulum that is pushed with all its force swings another way than one that is left alone; each is the same each time."""
    for number, force in enumerate((2.0, 0.0, 2.0), 1):
        (tmp_path / f"policy-{number}").write_text(str(force))
        add_line(tmp_path / "snapshots.jsonl", {"file": f"policy-{number}", "seconds": number, "steps": 0})
    run(SnapshotRequest(str(tmp_path), 2, env={"id": "Pendulum-v1"}, act=(sys.executable, "-c", ACT)))
    pushed, alone, again = (line["episodes"]["return"] for line in read_lines(tmp_path / "evaluations.jsonl"))
    assert pushed == again != alone and len(pushed) == 2
    cost = 0.001 * 2.0**2 * 200  # of the force itself, whatever it does
    assert all(value < -cost for value in pushed)


def test_a_library_that_ends_early_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "policy-1").write_text("0")
    add_line(tmp_path / "snapshots.jsonl", {"file": "policy-1", "seconds": 1, "steps": 0})
    with pytest.raises(OSError):
        run(SnapshotRequest(str(tmp_path), 1, env={"id": "Pendulum-v1"}, act=(sys.executable, "-c", "")))
    assert list(read_lines(tmp_path / "evaluations.jsonl")) == []
