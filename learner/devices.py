"""What accelerator is here, what it can do, and how torch is set up for it. `python -m learner.devices NAME` says it in JSON.

Code elsewhere asks for capabilities, never for a device's name.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch


class DeviceError(ValueError):
    """A device or precision that is not to be had here; the message says what is missing."""


@dataclass(frozen=True)
class Capabilities:
    """What a device can do. Nothing else in the learner asks for a device's name."""

    name: str  # for people
    precisions: tuple[str, ...] = ("float32",)  # what it computes in; the first is what "auto" means
    convolution_precision: str = ""  # where a type pays for networks with large convolutions only: what "auto" means for those
    adam: Literal["fused", "foreach", "single"] = "single"  # one kernel, which can skip a step by itself; many tensors a kernel
    pinned_memory: bool = False  # page-locked host memory makes copies to it asynchronous
    streams: bool = False  # copies run beside the computing, and events tell when they are done
    graphs: bool = False  # a whole update is recorded once and launched as one
    compiles: bool = False  # torch.compile knows it
    memory_figures: bool = False  # it tells how much of its memory is free
    collectives: str = ""  # torch.distributed's backend for it; empty: one process only
    channels_last: bool = False  # convolutions prefer their channels innermost


def resolve(name: str) -> torch.device:
    """Turns a configured name into a device: auto, cpu, cuda, cuda:N, xpu, xpu:N, mps or directml.

    ROCm's devices are called cuda, as torch calls them. auto takes the first that works of cuda, xpu, mps, directml, cpu.
    Raises DeviceError.
    """
    if name == "auto":
        reasons = {kind: _missing(kind) for kind in ("cuda", "xpu", "mps", "directml")}
        name = next((kind for kind, reason in reasons.items() if not reason), "cpu")
    kind, colon, index = name.partition(":")
    if kind not in ("cpu", "cuda", "xpu", "mps", "directml") or (colon and not index.isdecimal()):
        raise DeviceError(f"no device is called {name!r}: use auto, cpu, cuda, cuda:N, xpu, mps or directml")
    if kind == "cpu":
        return torch.device("cpu")
    reason = _missing(kind)
    if reason:
        raise DeviceError(f"device {name} is not here: {reason}")
    if kind == "directml":
        import torch_directml  # type: ignore[import-not-found]  # a legacy package of few machines: only when it is wanted

        return torch_directml.device(int(index or 0))
    count = 1 if kind == "mps" else getattr(torch, kind).device_count()
    if int(index or 0) >= count:
        raise DeviceError(f"device {name} is not here: the last one is {kind}:{count - 1}")
    return torch.device(kind, int(index or 0))


def capabilities(device: torch.device) -> Capabilities:
    """Says what a device can do. Only CUDA (ROCm too) is asked; what the others lack is known."""
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        precisions: tuple[str, ...]
        if torch.version.hip:
            precisions = ("float16", "bfloat16", "float32")  # every generation has float16, only newer ones bfloat16
        elif major >= 8:
            precisions = ("bfloat16", "float16", "float32")
        elif major == 7:
            precisions = ("float16", "float32")
        else:
            precisions = ("float32",)  # older cards compute float16 more slowly than float32
        return Capabilities(
            torch.cuda.get_device_name(device),
            precisions,
            adam="fused",
            pinned_memory=True,
            streams=True,
            graphs=True,
            compiles=True,
            memory_figures=True,
            collectives="nccl",
            channels_last=True,
        )
    if device.type == "xpu":
        return Capabilities(
            torch.xpu.get_device_name(device),
            ("bfloat16", "float32"),
            adam="foreach",
            pinned_memory=True,
            compiles=True,
            memory_figures=True,
            channels_last=True,
        )
    if device.type == "cpu":
        # Measured: fused Adam takes a fifth of the time, channels innermost two thirds (Nature network, batch of 32). bfloat16
        # takes half of what is left where the processor multiplies it, and many times as long where it is emulated.
        return Capabilities(
            "CPU",
            ("float32", "bfloat16"),
            "bfloat16" if _multiplies_bfloat16() else "",
            adam="fused",
            compiles=True,
            collectives="gloo",
            channels_last=True,
        )
    # MPS has no autocast in all torch versions; DirectML has neither autocast nor multi-tensor kernels in any.
    return Capabilities("MPS" if device.type == "mps" else "DirectML")


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
    """Sets torch up for this process: compute threads, TF32 and cuDNN's choice of kernels. Call before any work."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # torch lets it be set but once
        torch.set_num_interop_threads(1)  # one stream of operations: more threads would only wait
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, for what autocast leaves in float32
        torch.backends.cudnn.benchmark = True  # shapes never change, so the search is paid once


def backend(device: torch.device) -> Any:
    """torch's own module of a device: torch.cuda for CUDA and ROCm."""
    return getattr(torch, device.type)


def page_lock(memory: np.ndarray, device: torch.device) -> bool:
    """Locks memory that is mapped already, for copies to the device that nobody waits for; says whether that went well."""
    if device.type != "cuda":
        return False
    if int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0:
        return True
    with suppress(RuntimeError):  # CUDA reports what failed a second time, to whoever comes next
        torch.zeros(1, device=device).cpu()
    return False


def clear_cache(device: torch.device) -> None:
    """Gives memory that torch keeps in reserve back to the device. Waits for it: now and then, not every update."""
    if device.type in ("cuda", "xpu", "mps"):
        getattr(torch, device.type).empty_cache()


def _multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for bfloat16; torches that cannot tell count as none."""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def _missing(kind: str) -> str:
    """Why a kind of device cannot be used; empty if it can."""
    if kind == "cuda":
        if torch.cuda.is_available():
            return ""
        if torch.version.cuda is None and torch.version.hip is None:
            return f"this torch ({torch.__version__}) was built without CUDA or ROCm, install one with it"
        return "torch finds no usable GPU, check the driver"
    if kind == "xpu":
        return "" if torch.xpu.is_available() else "torch finds no Intel GPU, or was built without XPU"
    if kind == "mps":
        return "" if torch.backends.mps.is_available() else "torch finds no Apple GPU"
    try:
        import torch_directml
    except (ImportError, OSError) as error:  # OSError: installed where the system has no DirectX
        return f"torch-directml cannot be imported ({str(error).splitlines()[0]})"
    return "" if torch_directml.is_available() else "torch-directml finds no DirectX 12 GPU"


def survey() -> list[dict[str, str]]:
    """Every kind of device: its `name` and best `precision` where it is there, else why it is `missing`."""
    found = []
    for kind in ("cuda", "directml", "xpu", "mps", "cpu"):
        missing = "" if kind == "cpu" else _missing(kind)
        about = {"kind": kind, "name": "", "precision": "", "missing": missing}
        if not missing:
            device = resolve(kind)
            about |= {"name": capabilities(device).name, "precision": precision("auto", device)}
            if (other := precision("auto", device, convolutions=True)) != about["precision"]:
                about["precision"] += f" ({other} for convolutions)"
        found.append(about)
    return found


def main(arguments: list[str]) -> int:
    """Prints one JSON line about the device of that name (0, or 2 and the error), or with --survey about all kinds."""
    if arguments == ["--survey"]:
        print(json.dumps(survey()))
        return 0
    try:
        device = resolve(arguments[0] if arguments else "auto")
        found = {"device": str(device), "name": capabilities(device).name}
    except DeviceError as error:
        print(json.dumps({"error": str(error)}))
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
