"""The abilities of each kind of accelerator, and how torch is set up for it.

Code elsewhere asks for capabilities, never for a device's name.
"""

from __future__ import annotations

import importlib.util
import re
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from learner.devices.errors import DeviceError as DeviceError
from learner.devices.known import CPU_NAME, CPU_PRECISIONS


@dataclass(frozen=True)
class Capabilities:
    """The abilities of a device. The defaults hold for every device, also for kinds that are not listed here."""

    name: str  # for display
    precisions: tuple[str, ...] = ("float32",)  # that it computes in; "auto" means the first
    convolution_precision: str = ""  # what "auto" means for networks with large convolutions, if it differs
    narrow_kernels: bool = True  # kernels of up to 3 columns are large convolutions, too
    adam: Literal["fused", "foreach", "single"] = (
        "single"  # fused: one kernel, which can skip a step; foreach: many tensors per kernel
    )
    lerp: bool = False  # torch.lerp runs on the device
    synchronous: bool = False  # operations are over when their calls return, so the host reads a tensor without waiting
    pinned_memory: bool = False  # copies from page-locked host memory are asynchronous
    current: bool = False  # each thread has a current device of this kind, to which streams, events and graphs belong
    streams: bool = False  # copies overlap with computation, and events report when they are done
    graphs: bool = False  # a whole update can be recorded and launched as one
    compiles: bool = False  # torch.compile supports it
    triton: bool = False  # triton is installed, and its kernels run there
    memory_figures: bool = False  # it reports how much of its memory is free
    memory_cap: bool = False  # its allocator can be limited to a fraction of the memory
    memory_cache: bool = False  # its allocator caches memory, and can return it to the device
    storages: bool = False  # a tensor's storage has an address and a size
    random_state: bool = False  # the state of its random generator can be saved and restored
    tensor_float32: bool = False  # TF32 for matrix products and convolutions, where float32 is asked for
    few_shapes: bool = False  # it searches for the fastest kernels at each new shape, so there should be few
    collectives: str = ""  # its backend of torch.distributed; empty: only one process
    channels_last: bool = False  # convolutions are faster in the channels_last memory format


def capabilities(device: torch.device) -> Capabilities:
    """CUDA and ROCm devices are queried; those of other kinds are known."""
    make = TABLE.get(device.type)
    return make(device) if make else Capabilities(device.type)


def _cuda(device: torch.device) -> Capabilities:
    """NVIDIA's GPUs, and AMD's, which torch also calls cuda."""
    name = torch.cuda.get_device_name(device)
    generation, _ = torch.cuda.get_device_capability(device)
    triton = generation >= 7 and importlib.util.find_spec("triton") is not None
    smaller: tuple[str, ...]  # types than float32, the fastest first
    if torch.version.hip:
        name += f" (ROCm {torch.version.hip})"
        smaller = ("float16", "bfloat16")  # every generation supports float16
        if _amd_multiplies_bfloat16(generation, device):
            smaller = ("bfloat16", "float16")
    elif generation >= 8:
        smaller = ("bfloat16", "float16")
    elif generation == 7:
        smaller = ("float16",)
    else:
        smaller = ()  # older cards compute float16 more slowly than float32
    return Capabilities(
        name,
        ("float32", *smaller),
        smaller[0] if smaller else "",
        adam="fused",
        lerp=True,
        pinned_memory=True,
        current=True,
        streams=True,
        graphs=True,
        compiles=triton,
        triton=triton,
        memory_figures=True,
        memory_cap=True,
        memory_cache=True,
        storages=True,
        random_state=True,
        tensor_float32=not torch.version.hip and generation >= 8,
        few_shapes=True,
        collectives=_collectives("nccl"),  # torch calls RCCL so, too
        channels_last=True,
    )


def _xpu(device: torch.device) -> Capabilities:
    """Intel's GPUs. Older torches lack some of this."""
    return Capabilities(
        torch.xpu.get_device_name(device),
        ("float32", "bfloat16"),
        "bfloat16",
        adam="foreach",
        lerp=True,
        pinned_memory=True,
        current=True,
        compiles=True,
        memory_figures=_tells_memory(device),
        memory_cap=hasattr(torch.xpu, "set_per_process_memory_fraction"),
        memory_cache=True,
        storages=True,
        random_state=True,
        channels_last=True,
    )


def _tells_memory(device: torch.device) -> bool:
    """True if an Intel GPU says how much of its memory is free: some that share the computer's do not."""
    try:
        return bool(torch.xpu.mem_get_info(device))
    except (AttributeError, RuntimeError):
        return False


def _mps(device: torch.device) -> Capabilities:
    """Apple's GPUs. Float32 only: not every torch has autocast for them."""
    return Capabilities("MPS", lerp=True, memory_cache=True, storages=True)


def _directml(device: torch.device) -> Capabilities:
    """GPUs with DirectX 12: no autocast, no fused or foreach kernels, lerp only on the CPU, no access to storages."""
    return Capabilities("DirectML")


def _cpu(device: torch.device) -> Capabilities:
    # Measured (Nature network, batch of 32): fused Adam takes a fifth of the time, channels_last two thirds. bfloat16 halves
    # what is left where the processor has instructions for it, and takes many times as long where it is emulated.
    return Capabilities(
        CPU_NAME,
        CPU_PRECISIONS,
        "bfloat16" if _multiplies_bfloat16() else "",
        narrow_kernels=False,
        adam="fused",
        lerp=True,
        synchronous=True,
        compiles=True,
        storages=True,
        collectives=_collectives("gloo"),
        channels_last=True,
    )


TABLE = {"cuda": _cuda, "xpu": _xpu, "mps": _mps, "privateuseone": _directml, "cpu": _cpu}  # by torch.device.type


def precision(requested: str, device: torch.device, convolutions: bool = False) -> str:
    """The precision that a configured name means: float32, bfloat16 or float16.

    `convolutions`: whether the network has large ones. Raises DeviceError for a precision that the device lacks.
    """
    able = capabilities(device)
    available = able.precisions
    if requested == "auto":
        return (able.convolution_precision if convolutions else "") or available[0]
    if requested not in available:
        raise DeviceError(f"precision {requested} is not available on {device}: use auto, or {' or '.join(available)}")
    return requested


def computed_in(precision: str, device: torch.device) -> str:
    """A precision as it is shown to users."""
    return "float32 (as TF32)" if precision == "float32" and capabilities(device).tensor_float32 else precision


def set_up(device: torch.device, threads: int) -> None:
    """Makes the device this thread's current one; sets compute threads (0 means one), TF32 and cuDNN's benchmark mode for this
    process. Call it before any computation."""
    make_current(device)
    torch.set_num_threads(max(threads, 1))
    with suppress(RuntimeError):  # it can be set only once, and a user's own process may have done so
        torch.set_num_interop_threads(1)  # the learner runs one operation at a time
    if capabilities(device).tensor_float32:
        torch.set_float32_matmul_precision("high")  # for what autocast leaves in float32
    if capabilities(device).few_shapes:
        torch.backends.cudnn.benchmark = True


def make_current(device: torch.device) -> None:
    """Makes the device the current one of this thread, otherwise the first is. Call it first in each thread that computes."""
    if capabilities(device).current:
        backend(device).set_device(device)


def backend(device: torch.device) -> Any:
    """torch's module of a device: torch.cuda for CUDA and ROCm."""
    return getattr(torch, device.type)


def synchronise(device: torch.device) -> None:
    """Waits until the device, this thread's current one of its kind, has done everything that was asked of it."""
    backend(device).synchronize()


def page_lock(memory: np.ndarray, device: torch.device) -> bool:
    """Page-locks mapped memory, so that copies from it to the device are asynchronous. False where that is not possible."""
    if device.type != "cuda":
        return False
    runtime: Any = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0:
        return True
    with suppress(RuntimeError):  # CUDA reports the failure again at the next call
        torch.zeros(1, device=device).cpu()
    return False


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device, on a CPU itself. The host does not wait where copies overlap with computation."""
    if capabilities(device).streams:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def begin_to_fetch(tensor: Tensor) -> Tensor:
    """A copy of a device's tensor that the host may read once it has waited for the device; on a CPU the tensor itself."""
    return tensor.to("cpu", non_blocking=capabilities(tensor.device).streams)


def clear_cache(device: torch.device) -> None:
    """Returns the allocator's cached memory to the device. Waits for the device, so call it rarely."""
    if capabilities(device).memory_cache:
        backend(device).empty_cache()


def random_state(device: torch.device) -> Tensor | None:
    """The state of the device's random generator; None where it cannot be read."""
    return backend(device).get_rng_state(device) if capabilities(device).random_state else None


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Restores a state of random_state() from a device of this kind."""
    backend(device).set_rng_state(state, device)


def fork_random(device: torch.device) -> AbstractContextManager[None]:
    """Restores the random generators of the CPU and the device at the end of the block."""
    if capabilities(device).random_state:
        return torch.random.fork_rng([device], device_type=device.type)
    return torch.random.fork_rng([])


def _multiplies_bfloat16() -> bool:
    """True if this processor has instructions for bfloat16; False where torch does not report it."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def _amd_multiplies_bfloat16(generation: int, device: torch.device) -> bool:
    """True if an AMD GPU has instructions for bfloat16: RDNA 3 and later, CDNA. torch's is_bf16_supported() is always True."""
    architecture = str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", ""))
    return generation >= 11 or re.match(r"gfx9(08|0a|4|5)", architecture) is not None


def _collectives(backend: str) -> str:
    """The backend if this torch has it, else empty."""
    distributed = torch.distributed
    return backend if distributed.is_available() and getattr(distributed, f"is_{backend}_available")() else ""
