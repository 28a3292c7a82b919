"""The token of these tests."""

from __future__ import annotations

import pytest

from tests.actors.envs.remote.programs import TOKEN
from transport.files.token import VARIABLE


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
