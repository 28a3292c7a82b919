"""For all tests: what hypothesis draws, the table of rehearsed faults, and which tests need the machine for themselves."""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported, as torch's below

import numpy as np
import pytest
from hypothesis import settings

from tests.chaos.rows import length

pytest_plugins = ("tests.chaos.report",)
# `make test` is to say the same of the same code each time; longer rehearsals look for what nobody has thought of.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("searching", deadline=None)
settings.load_profile("steady" if length() == "short" else "searching")


HERE = Path(__file__).parent
ALONE = ("chaos", "flow", "headrace")  # folders that may have such tests; the Makefile names them, too


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder not in ALONE and item.get_closest_marker("alone"):
            raise pytest.UsageError(f"{item.nodeid} is marked alone: `make test` looks for such tests in {', '.join(ALONE)} only")


def pytest_collection_finish() -> None:
    gc.freeze()  # imported modules stay alive: the garbage collector need not scan them again and again


@pytest.fixture(scope="session", autouse=True)
def own_home() -> Iterator[None]:
    """The folders of pytest are too deep for sockets, so runs have theirs in the user's cache: one for the tests. Another holds
    the marks of the runs that this account has made."""
    with tempfile.TemporaryDirectory(prefix="hr", ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        patch.setenv("XDG_STATE_HOME", f"{folder}/state")
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # rich would take every file for a terminal
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def seeds() -> None:
    """What a test draws without a seed of its own does not depend on the tests before it; a longer rehearsal searches."""
    if length() != "short":
        return
    random.seed(1)
    np.random.seed(1)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """torch computes in one thread: tensors are small, and on a busy machine the threads of one operation wait for each other,
    a hundred times as long as they compute."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
