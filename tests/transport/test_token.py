"""The account's token."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from transport.files.documents import Damaged
from transport.files.token import VARIABLE, own_token, same, token_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_the_token_is_made_once_for_this_account_alone() -> None:
    found = set[str]()
    threads = [threading.Thread(target=lambda: found.add(own_token())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1 and own_token() in found and len(own_token()) == 32
    assert list(token_file().parent.iterdir()) == [token_file()]
    if os.name == "posix":
        assert token_file().stat().st_mode & 0o777 == 0o600


def test_a_token_of_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "given-by-the-user-16")
    assert own_token() == "given-by-the-user-16" and not token_file().exists()


@pytest.mark.parametrize("text", ["", "short", "with a space in the middle", "ü" * 20, "x" * 257, "line\nfeed-in-the-middle"])
def test_a_token_that_is_none_is_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    token_file().parent.mkdir()
    token_file().write_text(text)
    with pytest.raises(Damaged, match="16 to 256 visible ASCII characters"):
        own_token()
    monkeypatch.setenv(VARIABLE, text or "x")
    with pytest.raises(Damaged, match=VARIABLE):
        own_token()


def test_tokens_are_compared_whatever_was_given() -> None:
    assert same("abc", "abc") and not same("abd", "abc") and not same(None, "abc") and not same(7, "abc") and not same("ü", "abc")
