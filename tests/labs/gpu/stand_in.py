"""Gives torch the stand-in for a CUDA device, as soon as a process imports torch.

Import this module before torch, with the path of build.library() in HEADRACE_GPU_STAND_IN. Without it nothing happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

VARIABLE = "HEADRACE_GPU_STAND_IN"
ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch.so")  # of torch
NAME, GENERATION = "stand-in for a GPU", (9, 0)
TOTAL_BYTES, FREE_BYTES = 80 << 30, 60 << 30
CLOCK_HZ = 1e9
T = TypeVar("T")
LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


class Card:
    """The device, once torch is imported."""

    def __init__(self, path: str, libraries: Path) -> None:
        for name in LIBRARIES:
            ctypes.CDLL(str(libraries / name), ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(path)
        self._library.card_install()
        self._listener = LISTENER(self._told)
        self._library.card_listen(self._listener)
        self._waits: Counter[str] = Counter()
        self._warns = False

    def waits_of(self, call: Callable[[], T]) -> tuple[T, dict[str, int]]:
        """What a call returns, and what it made the host wait for, and where."""
        self._waits.clear()
        return call(), dict(self._waits)

    def lock_pages(self, address: int, size: int) -> None:
        self._library.card_lock_pages(ctypes.c_void_p(address), ctypes.c_size_t(size))

    def arrive(self) -> None:
        """All copies to the host are over."""
        self._library.card_arrive()

    def synchronise(self, *given: object) -> None:
        self._told(b"synchronise")
        self.arrive()

    def warn_of_waits(self, mode: int) -> None:
        """torch.cuda.set_sync_debug_mode."""
        self._warns = mode > 0

    def _told(self, operation: bytes) -> None:
        if self._warns:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        self._waits[f"{operation.decode()}: {_where()}"] += 1


def _where() -> str:
    """The newest two lines of the project's own on the stack."""
    own = [frame for frame in traceback.extract_stack() if frame.filename.startswith(str(ROOT / "learner"))]
    return " < ".join(f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno}" for frame in own[:-3:-1]) or "torch"


card: Card | None = None  # where torch has been imported


class _Event:
    """Everything is over when its call returns, but for copies to the host."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timing, self._at = enable_timing, 0.0

    def record(self, stream: object = None) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        _card().arrive()
        return True

    def synchronize(self) -> None:
        _card().synchronise()

    def wait(self, stream: object = None) -> None: ...

    def elapsed_time(self, other: _Event) -> float:
        assert self._timing and other._timing, "both events need enable_timing"
        return 1000 * (other._at - self._at)


class _Stream:
    def __init__(self, device: object = None, priority: int = 0) -> None: ...

    def wait_event(self, event: _Event) -> None: ...

    def wait_stream(self, stream: _Stream) -> None: ...

    def synchronize(self) -> None:
        _card().synchronise()


def _card() -> Card:
    assert card is not None
    return card


def _sleep(cycles: int) -> None:
    time.sleep(cycles / CLOCK_HZ)


def _patch(torch: Any) -> None:
    """What torch.cuda says, where a torch that was built for the CPU says that there is nothing."""
    properties = SimpleNamespace(name=NAME, major=9, minor=0, total_memory=TOTAL_BYTES, multi_processor_count=100)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *given, **options: True,
        "is_current_stream_capturing": lambda: False,
        "_is_compiled": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "_sleep": _sleep,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda *given: NAME,
        "get_device_capability": lambda *given: GENERATION,
        "get_device_properties": lambda *given: properties,
        "get_arch_list": lambda: ["sm_90"],
        "synchronize": _card().synchronise,
        "set_sync_debug_mode": _card().warn_of_waits,
        "empty_cache": lambda: None,
        "mem_get_info": lambda *given: (FREE_BYTES, TOTAL_BYTES),
        "set_per_process_memory_fraction": lambda *given: None,
        "get_rng_state": lambda *given: torch.get_rng_state(),  # both devices draw from one sequence
        "set_rng_state": lambda state, *given: torch.set_rng_state(state),
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "Stream": _Stream,
        "Event": _Event,
        "current_stream": lambda *given: _Stream(),
        "default_stream": lambda *given: _Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "cudart": lambda: SimpleNamespace(cudaHostRegister=_register),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch._C._cuda_getCurrentRawStream = lambda index: 0
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    _mend(torch)


def _register(address: int, size: int, flags: int) -> int:
    _card().lock_pages(address, size)
    return 0


def _mend(torch: Any) -> None:
    """What the CPU's kernels cannot do for another device: copies of whole storages, and recurrent layers."""
    deepcopy, lstm, gru = torch.Tensor.__deepcopy__, torch._VF.lstm, torch._VF.gru
    linear = torch.nn.functional.linear

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        if self.device.type != "cuda" or isinstance(self, torch.nn.Parameter):
            return deepcopy(self, memo)
        return memo.setdefault(id(self), self.detach().clone())

    def own_lstm(rows: Any, state: Any, weights: Any, *options: Any) -> Any:
        if rows.device.type != "cuda":
            return lstm(rows, state, weights, *options)
        hidden, cell, outputs = state[0][0], state[1][0], []
        for row in rows.unbind(0):
            gates = linear(row, weights[0], weights[2]) + linear(hidden, weights[1], weights[3])
            enter, forget, new, out = gates.chunk(4, 1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = out.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs), hidden[None], cell[None]

    def own_gru(rows: Any, state: Any, weights: Any, *options: Any) -> Any:
        if rows.device.type != "cuda":
            return gru(rows, state, weights, *options)
        hidden, outputs = state[0], []
        for row in rows.unbind(0):
            given = linear(row, weights[0], weights[2]).chunk(3, 1)
            kept = linear(hidden, weights[1], weights[3]).chunk(3, 1)
            reset, update = (given[0] + kept[0]).sigmoid(), (given[1] + kept[1]).sigmoid()
            new = (given[2] + reset * kept[2]).tanh()
            hidden = (1 - update) * new + update * hidden
            outputs.append(hidden)
        return torch.stack(outputs), hidden[None]

    torch.Tensor.__deepcopy__, torch._VF.lstm, torch._VF.gru = copied, own_lstm, own_gru


class _Finder:
    """Finds torch once, and adds the device to it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.machinery.PathFinder.find_spec("torch", path)
        if spec is None or spec.loader is None or spec.origin is None:
            return None
        execute, libraries = spec.loader.exec_module, Path(spec.origin).parent / "lib"

        def with_device(module: ModuleType) -> None:
            global card
            card = Card(os.environ[VARIABLE], libraries)
            execute(module)
            _patch(module)

        spec.loader.exec_module = with_device  # type: ignore[method-assign]
        return spec


if os.environ.get(VARIABLE) and "torch" not in sys.modules:
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
