"""`headrace pause`, `unpause`, `checkpoint`, `evaluate-now`: how long they wait, what they say, and their exit status."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.cli import main as cli
from deploy.cli import steering
from tests.deploy.views.web.made_up import made_up
from transport.messages.control import Order, OrderOutcome
from transport.messages.replay import Refused

COMMANDS = {"pause": "pause", "unpause": "unpause", "checkpoint": "checkpoint", "evaluate-now": "evaluate"}
WAITING = OrderOutcome("waiting", "the learner has not answered yet")
DONE = OrderOutcome("done", "wrote epoch-3")


class Supervisor:
    """Answers an order with one thing after the other, the last one for ever; each takes a quarter of a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: OrderOutcome | Refused | None) -> None:
        self.now, self.orders, self.left = 0.0, list[Order](), list(answers)
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._pass)
        monkeypatch.setattr(steering, "time", clock)
        monkeypatch.setattr(steering, "Client", lambda *given, **more: self)
        monkeypatch.setattr(steering.runs, "is_up", lambda run: True)
        monkeypatch.setattr("transport.run_dir.RunDir.endpoint", lambda run, name: "ipc:///nowhere")

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def send(self, order: Order) -> bool:
        self.orders.append(order)
        return True

    def receive(self, timeout_seconds: float) -> tuple[Any, list[bytes]] | None:
        self._pass(timeout_seconds)
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return None if answer is None else (answer, [])

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made_up(tmp_path / "runs" / "mine", seconds=20)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_an_order_is_repeated_under_one_number_until_it_is_done(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor = Supervisor(monkeypatch, None, WAITING, WAITING, DONE)
    assert cli.main([command, "mine"]) == cli.DONE
    assert capsys.readouterr() == ("wrote epoch-3\n", "")
    assert len(supervisor.orders) == 4 and len(set(supervisor.orders)) == 1
    assert supervisor.orders[0].what == COMMANDS[command]


@pytest.mark.parametrize(
    ("answers", "status", "said"),
    [
        ([WAITING, OrderOutcome("failed", "No space left")], cli.FAILED, "No space left"),
        ([OrderOutcome("refused", "run mine is stopping")], cli.REFUSED, "run mine is stopping"),
        ([Refused("this key does not authorise it")], cli.REFUSED, "does not authorise"),
        ([None], cli.FAILED, "the supervisor of run mine does not answer"),
        ([WAITING, None], cli.FAILED, "the supervisor of run mine does not answer"),
    ],
)
def test_what_went_wrong_is_one_line(
    answers: list[Any], status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor = Supervisor(monkeypatch, *answers)
    assert cli.main(["checkpoint"]) == status
    out, error = capsys.readouterr()
    assert out == "" and said in error and error.count("\n") == 1
    assert supervisor.now < 10


def test_a_long_wait_is_told_now_and_then_and_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    supervisor = Supervisor(monkeypatch, WAITING)
    assert cli.main(["checkpoint"]) == cli.FAILED
    lines = capsys.readouterr().err.splitlines()
    assert steering.LONGEST_SECONDS <= supervisor.now < steering.LONGEST_SECONDS + 2
    assert len(lines) == steering.LONGEST_SECONDS / steering.PROGRESS_SECONDS and "the order stands" in lines[-1]
    assert all("the learner has not answered yet" in line for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_is_not_up_gets_no_orders(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "mine"]) == cli.USAGE
    assert capsys.readouterr().err == "headrace: run mine is not up; start it with `headrace up --run mine`\n"
