"""`headrace scale`: what it says, and its exit status, for each answer of the supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.cli import main as cli
from deploy.cli.browser.web import Buttons
from deploy.cli.runs import scale
from tests.deploy.views.web.made_up import made_up
from transport.messages.control import Scale, Scaling, Stopping
from transport.messages.fields import Message
from transport.messages.replay import Refused
from transport.run_dir import RunDir


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (Scaling(2, 3), cli.DONE, "run mine goes from 2 to 3 actors"),
        (Scaling(3, 3), cli.DONE, "run mine has 3 actors already; abandoned ones are started again"),
        (Refused("this key does not authorise it"), cli.REFUSED, "this key does not authorise it"),
        (Stopping(), cli.REFUSED, "run mine is stopping"),
        (None, cli.FAILED, "the supervisor of run mine does not answer"),
    ],
)
def test_the_answer_is_one_line_for_a_command_and_for_the_page(
    answer: Message | None,
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    made_up(tmp_path / "runs" / "mine", seconds=20)
    asked: list[tuple[str, Message]] = []

    def ask(run: RunDir, message: Message) -> Message | None:
        asked.append((run.name, message))
        return answer

    monkeypatch.setattr(scale, "ask_supervisor", ask)
    monkeypatch.setattr(scale.runs, "is_up", lambda run: True)
    assert cli.main(["scale", "3", "mine"]) == status
    out, error = capsys.readouterr()
    assert (out if status == cli.DONE else error.removeprefix("headrace: ")).startswith(said) and (out + error).count("\n") == 1
    assert Buttons().scale(RunDir(tmp_path / "runs" / "mine"), 3).startswith(said)
    assert asked == [("mine", Scale(3))] * 2
