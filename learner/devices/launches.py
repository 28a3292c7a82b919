"""What share of a step's time its kernels take, on a device whose kernels the host launches one by one.

Events at both ends of a step also count the gaps in which the device waits for the next launch: by them a small network keeps a
large device busy all the time. So once in a while the device is stalled until the host has launched the whole step. Then the
kernels run without gaps, and the events are as far apart as the kernels take.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

ResultT = TypeVar("ResultT")

EVERY, SOON = 200, 20  # steps from one measurement to the next, and after one whose stall was too short
KEPT = 8  # measurements that the share is a mean of
FIRST_MS, MOST_MS = 0.5, 70.0  # of a stall
KNOWN_CYCLES = 2**16  # of the stall that tells how fast the device's clock is: 0.03 ms at 2 GHz, 0.7 at the 100 MHz of AMD's


class _Measured(NamedTuple):
    begun: Any  # event: the stall is over
    ended: Any  # event: so is the step
    launching: float  # seconds of the host


class LaunchMeter:
    """Runs steps, measures some of them, and reports `kernel_share`: the seconds of kernels in a second of updates.

    The share is 1 where the device is slower than the host, and below 1 where it waits for launches. Nothing is reported of steps
    that wait for the device themselves, or that the host launches for longer than the longest stall.
    """

    def __init__(self, device: torch.device, streams: Any, gauge: Callable[[str, float], None]) -> None:
        """`streams` is torch's module of the device (torch.cuda): Event, current_stream(), _sleep()."""
        self._device, self._streams, self._gauge = device, streams, gauge
        self._stall_ms, self._cycles_per_ms = FIRST_MS, 0.0  # 0: not known yet
        self._known: tuple[Any, Any] | None = None  # events around a stall of KNOWN_CYCLES
        self._until = EVERY  # steps until the next measurement
        self._measured: _Measured | None = None  # whose step may still be running
        self._figures: deque[tuple[float, float]] = deque(maxlen=KEPT)  # seconds of kernels, seconds of the host

    def __call__(self, step: Callable[[], ResultT]) -> ResultT:
        self._until -= 1
        if self._measured is not None and self._measured.ended.query():
            self._report(self._measured)
            self._measured = None
        if self._until > 0 or self._measured is not None or self._stall_ms > MOST_MS or not self._knows_its_clock():
            return step()
        stream = self._streams.current_stream(self._device)
        begun, ended = (self._streams.Event(enable_timing=True) for _ in range(2))
        self._streams._sleep(int(self._stall_ms * self._cycles_per_ms))
        begun.record(stream)
        started = time.perf_counter()
        result = step()
        launching = time.perf_counter() - started
        if begun.query():  # the device was faster than the launches, so there may have been gaps
            self._stall_ms, self._until = 2 * self._stall_ms, SOON
        else:
            ended.record(stream)
            self._measured, self._until = _Measured(begun, ended, launching), EVERY
        return result

    def _knows_its_clock(self) -> bool:
        """Whether it is known how many cycles a millisecond has; the first call asks for it. The host does not wait."""
        if self._cycles_per_ms:
            return True
        if self._known is None:
            stream = self._streams.current_stream(self._device)
            begun, ended = self._known = tuple(self._streams.Event(enable_timing=True) for _ in range(2))
            self._streams._sleep(1)  # the first may take longer, as it brings the kernel to the device
            begun.record(stream)
            self._streams._sleep(KNOWN_CYCLES)
            ended.record(stream)
        elif self._known[1].query():
            self._cycles_per_ms = KNOWN_CYCLES / max(self._known[0].elapsed_time(self._known[1]), 1e-3)
        self._until = SOON
        return False

    def _report(self, measured: _Measured) -> None:
        self._figures.append((measured.begun.elapsed_time(measured.ended) / 1000, measured.launching))
        kernels = sum(seconds for seconds, _ in self._figures)
        self._gauge("kernel_share", kernels / sum(max(seconds, launching) for seconds, launching in self._figures))
