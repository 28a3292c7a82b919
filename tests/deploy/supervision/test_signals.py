import os
import signal
import threading
from collections.abc import Iterator

import pytest

from deploy import signals
from deploy.signals import stop_signals

needs_sighup = pytest.mark.skipif(os.name != "posix", reason="SIGHUP and nohup are of POSIX")


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


@needs_sighup
def test_the_signals_that_ask_a_command_to_stop_reach_it_until_it_is_over(terminal: None) -> None:
    arrived: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals(lambda number, frame: arrived.append(number)):
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
    assert arrived == [signal.SIGHUP, signal.SIGTERM, signal.SIGINT] and signal.getsignal(signal.SIGTERM) == before


@needs_sighup
def test_a_command_under_nohup_survives_its_terminal(nohup: None) -> None:
    with stop_signals(signal.default_int_handler):
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize(
    ("event", "stops"),
    [(0, False), (1, False), (2, True), (5, True), (6, True)],
    ids=["Ctrl-C", "Ctrl-Break", "close", "logoff", "shutdown"],
)
def test_windows_waits_for_the_stop_that_a_closed_console_asks_for(
    event: int, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, waited = threading.Event(), []
    monkeypatch.setattr(signals.time, "sleep", lambda seconds: waited.append((seconds, arrived.wait(seconds))))
    with stop_signals(lambda number, frame: arrived.set()):
        console = threading.Thread(target=lambda: waited.append(signals.on_console_event(event)))
        console.start()
        while console.is_alive():
            console.join(0.01)  # a signal from another thread does not end a wait
    assert waited == ([(signals.GRACE_SECONDS, True), True] if stops else [False])
