"""What each kind of accelerator can do, and how torch is set up for it.

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

from learner.devices import detection
from learner.devices.errors import DeviceError as DeviceError

KINDS = ("cuda", "xpu", "mps", "directml")  # in the order in which auto wants them; then the CPU


@dataclass(frozen=True)
class Capabilities:
    """What a device can do, at the least as a rule: a kind that is not known has what every one has."""

    name: str  # for people
    precisions: tuple[str, ...] = ("float32",)  # what it computes in; the first is what "auto" means
    convolution_precision: str = ""  # where a type pays for networks with large convolutions only: what "auto" means for those
    adam: Literal["fused", "foreach", "single"] = "single"  # one kernel, which can skip a step by itself; many tensors a kernel
    lerp: bool = False  # it can go from one tensor to another by a share in one operation
    pinned_memory: bool = False  # page-locked host memory makes copies to it asynchronous
    streams: bool = False  # copies run beside the computing, and events tell when they are done
    graphs: bool = False  # a whole update is recorded once and launched as one
    compiles: bool = False  # torch.compile knows it
    memory_figures: bool = False  # it tells how much of its memory is free
    memory_cap: bool = False  # its allocator can be told to fail beyond a share of the memory
    memory_cache: bool = False  # its allocator keeps memory in reserve, which it can be told to give back
    storages: bool = False  # a tensor's memory has an address and a size
    random_state: bool = False  # it has a generator of its own, whose state can be kept
    tensor_float32: bool = False  # products of float32 may be had in fewer bits, and convolutions by the kernel found fastest
    collectives: str = ""  # torch.distributed's backend for it; empty: one process only
    channels_last: bool = False  # convolutions prefer their channels innermost


def capabilities(device: torch.device) -> Capabilities:
    """Says what a device can do. Only CUDA (ROCm too) is asked; what the others lack is known."""
    known = TABLE.get(device.type)
    return known(device) if known else Capabilities(device.type)


def _cuda(device: torch.device) -> Capabilities:
    """NVIDIA's and, under the same name, AMD's."""
    name = torch.cuda.get_device_name(device)
    generation, _ = torch.cuda.get_device_capability(device)
    precisions: tuple[str, ...]
    if torch.version.hip:
        name += f" (ROCm {torch.version.hip})"
        precisions = ("float16", "bfloat16", "float32")  # every generation has float16
        if _amd_multiplies_bfloat16(generation, device):
            precisions = ("bfloat16", "float16", "float32")
    elif generation >= 8:
        precisions = ("bfloat16", "float16", "float32")
    elif generation == 7:
        precisions = ("float16", "float32")
    else:
        precisions = ("float32",)  # older cards compute float16 more slowly than float32
    return Capabilities(
        name,
        precisions,
        adam="fused",
        lerp=True,
        pinned_memory=True,
        streams=True,
        graphs=True,
        compiles=generation >= 7 and importlib.util.find_spec("triton") is not None,
        memory_figures=True,
        memory_cap=True,
        memory_cache=True,
        storages=True,
        random_state=True,
        tensor_float32=True,
        collectives=_collectives("nccl"),  # RCCL is called so, too
        channels_last=True,
    )


def _xpu(device: torch.device) -> Capabilities:
    """Intel's. Some of it came with later torches."""
    return Capabilities(
        torch.xpu.get_device_name(device),
        ("bfloat16", "float32"),
        adam="foreach",
        lerp=True,
        pinned_memory=True,
        compiles=True,
        memory_figures=hasattr(torch.xpu, "mem_get_info"),
        memory_cap=hasattr(torch.xpu, "set_per_process_memory_fraction"),
        memory_cache=True,
        storages=True,
        random_state=True,
        channels_last=True,
    )


def _mps(device: torch.device) -> Capabilities:
    """Apple's. Not all torches have autocast for it."""
    return Capabilities("MPS", lerp=True, memory_cache=True, storages=True)


def _directml(device: torch.device) -> Capabilities:
    """DirectX 12's: no autocast, no kernels for many tensors at once, no lerp but the CPU's, tensors whose memory nobody sees."""
    return Capabilities("DirectML")


def _cpu(device: torch.device) -> Capabilities:
    # Measured: fused Adam takes a fifth of the time, channels innermost two thirds (Nature network, batch of 32). bfloat16
    # takes half of what is left where the processor multiplies it, and many times as long where it is emulated.
    return Capabilities(
        "CPU",
        ("float32", "bfloat16"),
        "bfloat16" if _multiplies_bfloat16() else "",
        adam="fused",
        lerp=True,
        compiles=True,
        storages=True,
        collectives=_collectives("gloo"),
        channels_last=True,
    )


TABLE = {"cuda": _cuda, "xpu": _xpu, "mps": _mps, "privateuseone": _directml, "cpu": _cpu}  # by torch's name of the type


def resolve(name: str) -> torch.device:
    """Turns a configured name into a device: auto, cpu, cuda, cuda:N, xpu, xpu:N, mps, directml or directml:N.

    ROCm's devices are called cuda, as torch calls them. auto takes the first that works of cuda, xpu, mps, directml, cpu.
    Raises DeviceError.
    """
    if name == "auto":  # looks no further than it has to: to look for the last one may mean an import
        name = next((kind for kind in KINDS if not detection.missing(kind)), "cpu")
    kind, colon, index = name.partition(":")
    if kind not in ("cpu", *KINDS) or (colon and not index.isdecimal()):
        raise DeviceError(f"no device is called {name!r}: use auto, cpu, cuda (ROCm's too), cuda:N, xpu, mps or directml")
    if kind == "cpu":
        return torch.device("cpu")
    reason = detection.missing(kind)
    if reason:
        raise DeviceError(f"device {name} is not here: {reason}")
    if kind == "directml":
        import torch_directml as module  # type: ignore[import-not-found]  # a legacy package of few machines
    else:
        module = getattr(torch, kind)
    count = module.device_count()
    if int(index or 0) >= count:
        raise DeviceError(f"device {name} is not here: the last one is {kind}:{count - 1}")
    return module.device(int(index or 0)) if kind == "directml" else torch.device(kind, int(index or 0))


def precision(requested: str, device: torch.device, convolutions: bool = False) -> str:
    """Chooses float32, bfloat16 or float16 for a network with or without large convolutions.

    Raises DeviceError for one that the device lacks.
    """
    able = capabilities(device)
    available = able.precisions
    if requested == "auto":
        return (able.convolution_precision if convolutions else "") or available[0]
    if requested not in available:
        raise DeviceError(f"precision {requested} is not to be had on {device}: use auto, or {' or '.join(available)}")
    return requested


def set_up(device: torch.device, threads: int) -> None:
    """Sets torch up for this process: compute threads (0 means one), TF32 and cuDNN's choice of kernels.

    Call before any work.
    """
    torch.set_num_threads(max(threads, 1))
    if torch.get_num_interop_threads() != 1:  # torch lets it be set but once
        torch.set_num_interop_threads(1)  # one stream of operations: more threads would only wait
    if capabilities(device).tensor_float32:
        torch.set_float32_matmul_precision("high")  # TF32, for what autocast leaves in float32
        torch.backends.cudnn.benchmark = True  # shapes never change, so the search is paid once


def backend(device: torch.device) -> Any:
    """torch's own module of a device: torch.cuda for CUDA and ROCm."""
    return getattr(torch, device.type)


def page_lock(memory: np.ndarray, device: torch.device) -> bool:
    """Locks memory that is mapped already, so that copies from it to the device are asynchronous; whether that worked."""
    if device.type != "cuda":
        return False
    if int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0:
        return True
    with suppress(RuntimeError):  # CUDA reports the failure once more, at the next call
        torch.zeros(1, device=device).cpu()
    return False


def clear_cache(device: torch.device) -> None:
    """Gives memory that torch keeps in reserve back to the device. Waits for it: now and then, not every update."""
    if capabilities(device).memory_cache:
        backend(device).empty_cache()


def random_state(device: torch.device) -> Tensor | None:
    """The state of the device's own generator; None where there is none, or it cannot be had."""
    return backend(device).get_rng_state(device) if capabilities(device).random_state else None


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Puts back what random_state() gave on a device of this kind."""
    backend(device).set_rng_state(state, device)


def fork_random(device: torch.device) -> AbstractContextManager[None]:
    """Within, random numbers may be drawn: the generators of the CPU and the device are put back afterwards."""
    if capabilities(device).random_state:
        return torch.random.fork_rng([device], device_type=device.type)
    return torch.random.fork_rng([])


def _multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for bfloat16; torches that cannot tell count as none."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def _amd_multiplies_bfloat16(generation: int, device: torch.device) -> bool:
    """Whether an AMD GPU has instructions for bfloat16: RDNA 3 and up, CDNA. torch's own is_bf16_supported says yes to all."""
    architecture = str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", ""))
    return generation >= 11 or re.match(r"gfx9(08|0a|4|5)", architecture) is not None


def _collectives(backend: str) -> str:
    """The backend where this torch has it, else nothing."""
    distributed = torch.distributed
    return backend if distributed.is_available() and getattr(distributed, f"is_{backend}_available")() else ""
