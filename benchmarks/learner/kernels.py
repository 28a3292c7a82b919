"""How busy a device is, from the profiler: the time with at least one kernel running, over that from the first to the last."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

Span = tuple[float, float]  # begin, end
WARM_UP_UPDATES = 5
COPIES = ("gpu_memcpy", "gpu_memset")


def union(spans: Sequence[Span]) -> float:
    """The time that is covered by at least one of them."""
    covered, end = 0.0, float("-inf")
    for begin, until in sorted(spans):
        covered += max(until - max(begin, end), 0.0)
        end = max(end, until)
    return covered


def busy(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of the events of a Chrome trace: percent of the time with a kernel running, and with a copy; kernels per second.

    The time is that from the begin of the first kernel to the begin of the last. Empty where no kernels were recorded.
    """
    kernels = [(event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "kernel"]
    copies = [(event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") in COPIES]
    if len(kernels) < 2:
        return {}
    first, last = min(kernels)[0], max(kernels)[0]

    def share(spans: list[Span]) -> float:
        cut = [(max(begin, first), min(end, last)) for begin, end in spans if begin < last and end > first]
        return 100 * union(cut) / (last - first)

    return {"device busy": share(kernels), "device copying": share(copies), "kernels": 1e6 * (len(kernels) - 1) / (last - first)}


class Profile:
    """Records a device's kernels during some updates. Where the device is the CPU, nothing."""

    def __init__(self, device: torch.device, updates: int) -> None:
        self._updates = updates if device.type == "cuda" else 0
        self._profiler: Any = None

    def start(self) -> None:
        """From the next update on."""
        if not self._updates:
            return
        schedule = torch.profiler.schedule(wait=0, warmup=WARM_UP_UPDATES, active=self._updates, repeat=1)
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], schedule=schedule)
        self._left = WARM_UP_UPDATES + self._updates
        self._profiler.start()

    def step(self) -> bool:
        """An update has been done. Whether that was the last."""
        if self._profiler is None:
            return True
        self._profiler.step()
        self._left -= 1
        return bool(self._left == 0)

    def figures(self) -> dict[str, float]:
        """See busy()."""
        if self._profiler is None:
            return {}
        self._profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(path))
            return busy(json.loads(path.read_text(errors="replace"))["traceEvents"])
