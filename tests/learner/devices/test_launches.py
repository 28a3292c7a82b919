"""The share of kernels in a step, with a stand-in for a device that has a clock of its own and computes what was launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from learner.config import LearnerConfig
from learner.devices import launches
from learner.devices.capabilities import capabilities
from learner.devices.launches import EVERY, FIRST_MS, KNOWN_CYCLES, MOST_MS, LaunchMeter
from learner.throughput_line import describe
from learner.updates import optimiser as optim
from learner.updates.base import Loss
from learner.updates.runtime import LearnerRuntime, NoProcess
from tests.learner.examples import CPU

CARD = torch.device("cuda", 1)
CLOCKS = [2e9, 100e6]  # Hz, of NVIDIA's cards and of what AMD's count
HOST, KERNEL = 10e-6, 2e-6  # seconds that a launch takes, and a kernel
KERNELS = 200  # of a step


class Device:
    """Stands for torch.cuda: kernels run in order, each when it has been launched and the one before has ended."""

    def __init__(self, device: torch.device = CARD, clock: float = CLOCKS[0]) -> None:
        self.device, self.now, self.free = device, 0.0, 0.0  # the host's time, and that at which all kernels have ended
        self.clock = clock
        self.stalls: list[float] = []  # seconds

    def launch(self, host: float, kernel: float) -> None:
        self.now += host
        self.free = max(self.free, self.now) + kernel

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    def _sleep(self, cycles: int) -> None:
        self.stalls.append(cycles / self.clock)
        self.launch(HOST, cycles / self.clock)

    def current_stream(self, device: torch.device | None = None) -> Any:
        assert device == self.device, "the stream of another device"
        return self

    def Event(self, enable_timing: bool = False) -> Any:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device

    def record(self, stream: Any) -> None:
        self.at = self._device.free

    def query(self) -> bool:
        return self.at <= self._device.now

    def elapsed_time(self, other: Event) -> float:
        assert self.query() and other.query(), "a time that is not known yet"
        return 1000 * (other.at - self.at)


@pytest.fixture(params=CLOCKS)
def device(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Device:
    made = Device(clock=request.param)
    monkeypatch.setattr(launches.time, "perf_counter", lambda: made.now)
    return made


def shares(device: Device, host: float, kernel: float, steps: int = 12 * EVERY, synchronises: bool = False) -> list[float]:
    """What is reported of steps of KERNELS kernels."""
    reported: list[float] = []
    meter = LaunchMeter(CARD, device, lambda name, value: reported.append(value))

    def step() -> None:
        for _ in range(KERNELS):
            device.launch(host, kernel)
        if synchronises:
            device.synchronize()

    before = device.now
    for _ in range(steps):
        meter(step)
        device.now = max(device.now, device.free - KERNELS * kernel)  # the loop lets the host be one update ahead
    stalls = 2 * MOST_MS / 1000  # all that can be in vain, in a whole run
    each = KERNELS * (host + kernel if synchronises else max(host, kernel))
    assert device.now - before < 1.02 * steps * each + stalls, "measuring costs next to nothing"
    return reported


def test_of_a_device_that_waits_for_launches_the_share_of_kernels_is_measured(device: Device) -> None:
    found = shares(device, HOST, KERNEL)
    assert found[-1] == pytest.approx(KERNEL / HOST, rel=0.02)
    assert len(set(device.stalls)) > 1, "stalls grow until the host has launched a step within one"


def test_a_device_that_is_slower_than_the_launches_is_busy_all_the_time(device: Device) -> None:
    assert shares(device, HOST, 5 * HOST)[-1] == 1.0


def test_steps_that_wait_for_the_device_are_not_measured_and_soon_not_stalled_either(device: Device) -> None:
    assert shares(device, HOST, KERNEL, synchronises=True) == []
    assert max(device.stalls) <= MOST_MS / 1000 and len(device.stalls) < 12


def test_stalls_are_as_long_whatever_the_clock_counts(device: Device) -> None:
    shares(device, HOST, KERNEL)
    one, known, first, *others = device.stalls
    assert one == 1 / device.clock and known == KNOWN_CYCLES / device.clock < 1e-3
    assert first == pytest.approx(FIRST_MS / 1000, rel=0.3), "it is measured from the host's launch on, and a little shorter"
    assert others and max(others) < 10 * KERNELS * HOST, "no longer than the launches of a step need"


def test_the_line_counts_kernels_and_no_gaps() -> None:
    record = {"updates": 1.0, "device_fraction": 0.98, "update_fraction": 0.5}
    assert "device busy 98%" in describe(record, {})
    assert "device busy 20%" in describe(record | {"kernel_share": 0.2}, {})


def test_the_steps_of_an_optimiser_are_measured_where_the_device_can_be_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(CPU)
    monkeypatch.setattr(optim, "capabilities", lambda _: replace(capabilities(CPU), stalls=True))
    monkeypatch.setattr(optim, "backend", lambda _: device)
    monkeypatch.setattr(launches, "EVERY", 2)
    monkeypatch.setattr(launches, "SOON", 2)
    monkeypatch.setattr(launches.time, "perf_counter", lambda: device.now)
    process, linear = NoProcess(), torch.nn.Linear(1, 1)

    def loss(items: torch.Tensor) -> Loss:
        device.launch(4 * HOST, HOST)
        return Loss(linear(items).mean(), {})

    optimiser = LearnerRuntime(LearnerConfig(batch_size=4), CPU, process=process).optimiser("main", linear)
    for _ in range(10):
        optimiser.step(loss, torch.ones(4, 1))
        device.now += 1e-3
    assert device.stalls and process.metrics.value("kernel_share") == pytest.approx(0.25)
