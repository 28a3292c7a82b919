"""The compiled device; tests are skipped, with a reason, where it cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.labs.gpu import build


@pytest.fixture(scope="session")
def device() -> Path:
    if reason := build.obstacle():
        pytest.skip(reason)
    return build.library()
