"""Lets `torch.cuda` answer for another device, so that a script written for CUDA takes that branch on it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from learner.devices.capabilities import backend, capabilities, clear_cache
from transport.system import free_memory, total_memory


@contextmanager
def answering(device: torch.device) -> Iterator[None]:
    """Within the block `torch.cuda` describes `device` as the only one there is, and `torch.autocast("cuda")` and gradient
    scalers do what it supports. Changes nothing for a CUDA or ROCm device. It holds for the whole process."""
    with ExitStack() as stack:
        if device.type != "cuda":
            import torch._dynamo  # Adam imports it, and then it refuses a torch.cuda that is not torch's own

            for name, value in _functions(device).items():
                stack.enter_context(mock.patch.object(torch.cuda, name, value))
            autocast, scaler = _autocast(device), functools.partial(torch.amp.GradScaler, enabled=False)
            for module in (torch, torch.amp):
                stack.enter_context(mock.patch.object(module, "autocast", autocast))
            stack.enter_context(mock.patch.object(torch.amp, "GradScaler", lambda *given, **options: scaler()))
            stack.enter_context(mock.patch.object(torch.cuda.amp, "GradScaler", lambda *given, **options: scaler()))
            old_way = functools.partial(autocast, "cuda")
            stack.enter_context(mock.patch.object(torch.cuda.amp, "autocast", old_way))
            stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None))
        yield


def _functions(device: torch.device) -> dict[str, Any]:
    """Functions of `torch.cuda` by name, for `device`."""
    able = capabilities(device)
    random: Any = backend(device) if device.type in ("xpu", "mps") else torch  # whose state seed() sets

    def nothing(*given: object, **options: object) -> None:
        pass

    def zero(*given: object, **options: object) -> int:
        return 0

    def seed(number: int) -> None:  # torch.manual_seed calls it, too
        torch.default_generator.manual_seed(int(number))
        if device.type in ("xpu", "mps"):
            backend(device).manual_seed(int(number))

    def synchronize(*given: object) -> None:
        module: Any = backend(device) if device.type in ("cpu", "xpu", "mps") else None
        if module is not None:
            module.synchronize()

    def free(*given: object) -> tuple[int, int]:
        if able.memory_figures:
            return backend(device).mem_get_info(device)  # type: ignore[no-any-return]
        return free_memory(), total_memory()

    properties = SimpleNamespace(
        name=able.name, total_memory=free()[1], major=0, minor=0, multi_processor_count=1, gcnArchName="", warp_size=32
    )
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": nothing,
        "device_count": lambda: 1,
        "current_device": zero,
        "set_device": nothing,
        "device": lambda *given: nullcontext(),
        "get_device_name": lambda *given: able.name,
        "get_device_capability": lambda *given: (0, 0),
        "get_device_properties": lambda *given: properties,
        "get_arch_list": lambda: [],
        "is_bf16_supported": lambda *given, **options: "bfloat16" in able.precisions,
        "synchronize": synchronize,
        "empty_cache": lambda: clear_cache(device),
        "ipc_collect": nothing,
        "manual_seed": seed,
        "manual_seed_all": seed,
        "get_rng_state": lambda *given: random.get_rng_state(),
        "get_rng_state_all": lambda: [random.get_rng_state()],
        "set_rng_state": lambda state, *given: random.set_rng_state(state),
        "set_rng_state_all": lambda states: random.set_rng_state(states[0]),
        "mem_get_info": free,
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), zero),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "set_per_process_memory_fraction"), nothing),
        "Stream": Stream,
        "Event": functools.partial(Event, synchronize),
        "stream": lambda stream: nullcontext(stream),
        "current_stream": lambda *given: Stream(),
        "default_stream": lambda *given: Stream(),
    }


class Stream:
    """Work is done in the order of its calls, so there is nothing to wait for."""

    def __init__(self, *given: object, **options: object) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, other: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = Event(lambda: None) if event is None else event
        event.record()
        return event

    def query(self) -> bool:
        return True


class Event:
    """A point in time, by the host's clock, once the device has done what was asked before."""

    def __init__(self, synchronize: Callable[[], None], *given: object, **options: object) -> None:
        self._synchronize = synchronize
        self._seconds = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._synchronize()
        self._seconds = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds to `end`."""
        return 1000 * (end._seconds - self._seconds)

    def synchronize(self) -> None: ...

    def wait(self, stream: Stream | None = None) -> None: ...

    def query(self) -> bool:
        return True


def _autocast(device: torch.device) -> type[torch.autocast]:
    """torch.autocast, where cuda means `device`: in the precision that is asked for if it has that, else without."""
    able = capabilities(device)

    class Autocast(torch.autocast):
        def __init__(self, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, **options: Any) -> None:
            if device_type == "cuda":
                wanted = str(dtype or torch.float16).removeprefix("torch.")
                known = device.type in ("cpu", "xpu", "mps")
                device_type, enabled = device.type if known else "cpu", enabled and known and wanted in able.precisions
                dtype = dtype if enabled else None
            super().__init__(device_type, dtype, enabled, **options)

    return Autocast
