import os
import signal
from collections.abc import Iterator

import pytest

from deploy.supervision.signals import stop_signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture
def nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def terminal() -> Iterator[None]:
    """As without nohup, by which the tests themselves may have been started."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_the_signals_that_ask_a_command_to_stop_reach_it_until_it_is_over(terminal: None) -> None:
    arrived: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals(lambda number, frame: arrived.append(number)):
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
    assert arrived == [signal.SIGHUP, signal.SIGTERM, signal.SIGINT] and signal.getsignal(signal.SIGTERM) == before


def test_a_command_under_nohup_survives_its_terminal(nohup: None) -> None:
    with stop_signals(signal.default_int_handler):
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
