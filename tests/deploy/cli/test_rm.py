from pathlib import Path

import pytest

from deploy import runs
from deploy.cli import main as cli
from deploy.cli.runs import rm


@pytest.fixture(autouse=True)
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        run = runs.run_dir(name)
        run.create()
        run.config.write_text("format = 2\n")


def left() -> list[str]:
    return sorted(path.name for path in Path("runs").iterdir() if path.name != ".locks")


def test_runs_are_removed_without_a_question_where_yes_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rm", "first", "--yes"]) == 0 and left() == ["second"]
    assert "removed " in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "names"), [("y", []), ("YES", []), ("", ["first", "second"]), ("no", ["first", "second"])])
def test_it_asks_once_for_all(answer: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(rm.sys.stdin, "isatty", lambda: True)

    def ask(text: str) -> str:
        asked.append(text)
        return answer

    monkeypatch.setattr("builtins.input", ask)
    assert cli.main(["rm", "first", "second"]) == 0 and left() == names
    assert len(asked) == 1 and "remove first, second with all" in asked[0]


def test_ctrl_d_at_the_question_removes_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(text: str) -> str:
        raise EOFError

    monkeypatch.setattr(rm.sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", ask)
    assert cli.main(["rm", "first"]) == 0 and left() == ["first", "second"]
    assert capsys.readouterr().out.endswith("nothing was removed\n")


def test_without_a_terminal_it_wants_yes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rm.sys.stdin, "isatty", lambda: False)
    assert cli.main(["rm", "first"]) == 2 and left() == ["first", "second"]
    assert "--yes removes without asking" in capsys.readouterr().err


def test_a_run_that_is_up_is_refused_and_nothing_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    with runs.locked(runs.run_dir("second")):
        assert cli.main(["rm", "first", "second", "--yes"]) == 3
    error = capsys.readouterr().err
    assert (
        left() == ["first", "second"]
        and "run second is up" in error
        and "headrace down second" in error
        and error.count("\n") == 1
    )


def test_a_run_that_is_not_there_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rm", "secnd", "--yes"]) == 2
    assert "did you mean second?" in capsys.readouterr().err and left() == ["first", "second"]
