"""A user's callbacks have a process of their own: they are told what happens, and harm nothing whatever they do."""

import os
import time
from pathlib import Path

import pytest

from deploy.config.run import DeployConfig
from deploy.errors import ConfigError
from deploy.reporting.base import Point
from deploy.reporting.sinks import callbacks, feeds
from deploy.reporting.sinks.feeds import Sinks
from tests.harness.waiting import gone, wait_until

HERE = "tests.extension.callbacks"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run waits until a sink has written all, however slow the machine is."""
    monkeypatch.setattr(feeds, "CLOSE_SECONDS", 60.0)
    monkeypatch.setattr(feeds, "PROCESS_CLOSE_SECONDS", 60.0)


def opened(run: Path, said: list[str], *names: str) -> Sinks:
    deploy = DeployConfig(sinks=(), callbacks=tuple(f"{HERE}:{name}" for name in names))
    return Sinks(deploy, run, said.append, lambda label, line: said.append(f"{label} | {line}"))


def point(steps: int, **values: float) -> Point:
    return Point(steps, 12.5, {"time/fps": 10.0} | {name.replace("_", "/", 1): value for name, value in values.items()})


def told(run: Path) -> list[str]:
    return (run / "told.txt").read_text().splitlines() if (run / "told.txt").exists() else []


def test_they_are_told_of_points_evaluations_and_new_checkpoints(tmp_path: Path) -> None:
    said: list[str] = []
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "epoch-1.safetensors").write_bytes(b"of the run before it was resumed")
    made = opened(tmp_path, said, "Recording")
    made.write(point(100))
    wait_until(lambda: len(told(tmp_path)) == 1, what="the first point is there")
    (checkpoints / "best.safetensors").write_bytes(b"weights")
    (checkpoints / ".latest.safetensors.1.partial").write_bytes(b"half of them")
    made.write(point(200, eval_mean_reward=-1.0))
    made.close()
    lines = [line.rpartition(" ") for line in told(tmp_path)]
    # the look for checkpoints that follows the first point may come before the file or after it
    assert sorted(line for line, _, _ in lines) == [
        "checkpoint best.safetensors",
        "evaluation 200 {'eval/mean_reward': -1.0}",
        "metrics 100 1",
        "metrics 200 2",
    ]
    assert [line for line, _, _ in lines if not line.startswith("checkpoint")] == [
        "metrics 100 1",
        "metrics 200 2",
        "evaluation 200 {'eval/mean_reward': -1.0}",
    ]
    (pid,) = {int(number) for _, _, number in lines}
    assert pid != os.getpid() and gone(pid) and not said


def test_what_they_print_and_raise_is_in_the_log_and_the_next_call_follows(tmp_path: Path) -> None:
    said: list[str] = []
    made = opened(tmp_path, said, "Bare")
    made.write(point(100))
    made.write(point(200))
    wait_until(lambda: said, what="the first call")  # a start may take longer than an end is waited for
    made.close()
    assert said[0] == "callback | 100 steps, input ''" and said[-1] == "callback | 200 steps, input ''"
    assert "callback | ValueError: no route to the chat room" in said and "callback | Traceback (most recent call last):" in said


def test_one_that_hangs_is_ended_with_the_run_and_the_others_miss_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "CLOSE_SECONDS", 1.0)
    monkeypatch.setattr(feeds, "PROCESS_CLOSE_SECONDS", 1.0)
    said: list[str] = []
    made = opened(tmp_path, said, "Hanging", "Recording")
    began = time.monotonic()
    for steps in range(2000):  # more than the pipe takes and than may wait
        made.write(Point(steps, 1.0, {f"train/{name}": 0.5 for name in range(100)}))
    assert time.monotonic() - began < 60, "the supervisor waited for it"
    wait_until(lambda: (tmp_path / "hanging.pid").exists() and len(told(tmp_path)) >= 100, what="both have begun")
    made.close()
    pid = int((tmp_path / "hanging.pid").read_text())
    wait_until(lambda: gone(pid), what="it has ended")
    assert f"callbacks {HERE}:Hanging is ended: 1 s after the run it had not written all its points" in said
    assert any(line.startswith(f"callbacks {HERE}:Hanging is too slow") for line in said)


def test_one_that_returns_false_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(callbacks, "stop", lambda run, reason: asked.append(f"{run.path.name}: {reason}"))
    sink = callbacks.CallbackSink(tmp_path / "night", callbacks.CallbackConfig(f"{HERE}:Satisfied"))
    sink.write(point(100))
    sink.write(point(200, eval_mean_reward=470.0))
    assert not asked
    sink.write(point(300, eval_mean_reward=480.0))
    assert asked == ["night: Satisfied.on_evaluation returned False"]


def test_a_process_that_dies_is_off_with_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    made = opened(tmp_path, said, "Dying")
    made.write(point(100))
    wait_until(lambda: said[:1] == ["callback | the last words"], what="it has died")
    wait_until(lambda: len(said) == 2, what="that is noticed")
    made.write(point(200))
    made.close()
    assert said[1] == f"callbacks {HERE}:Dying is off for the rest of this run: the last words"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tests.extension.callback:Recording", "there is no module tests.extension.callback"),
        (f"{HERE}:Recordin", "did you mean Recording"),
        (f"{HERE}:Misspelt", "has on_checkpoints, which is never called; did you mean on_checkpoint"),
        (f"{HERE}:Nothing", "has none of the methods on_metrics, on_evaluation, on_checkpoint"),
        ("Recording", "write package.module:Name for your own"),
    ],
)
def test_a_mistake_is_one_line_before_the_launch(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        feeds.check(DeployConfig(sinks=(), callbacks=(name,)))
    assert "\n" not in str(error.value)


def test_their_module_may_print_any_bytes_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noisy.py").write_text("import os\nos.write(2, b'\\xff\\n')\nclass Told:\n    def on_metrics(self, point): ...\n")
    monkeypatch.chdir(tmp_path)
    feeds.check(DeployConfig(sinks=(), callbacks=("noisy:Told",)))
