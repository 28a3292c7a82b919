"""The device of a configured name; and for the accelerators that torch cannot use here the reason, and what would help.

torch_directml is imported only where everything else that it needs is there, because the import is slow.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path

import torch

from learner.devices import builds, installing
from learner.devices.capabilities import capabilities
from learner.devices.errors import DeviceError
from learner.devices.known import AMD, INTEL, NVIDIA, better_build, gpus, without_platform

KINDS = ("cuda", "xpu", "mps", "directml")  # in the order of preference of auto; then the CPU
D3D12 = "libd3d12.so"  # DirectX 12 on Linux: only WSL2 has it


def resolve(name: str) -> torch.device:
    """The device of a configured name: auto, cpu, cuda, cuda:N, xpu, xpu:N, mps, directml or directml:N.

    ROCm devices are called cuda, as torch calls them. auto takes the first that is available of cuda, xpu, mps, directml, cpu.
    Raises DeviceError.
    """
    if name == "auto":
        return _first_that_works()
    kind, colon, index = name.partition(":")
    if kind not in ("cpu", *KINDS) or (colon and not index.isdecimal()):
        raise DeviceError(f"no device is called {name!r}: use auto, cpu, cuda (ROCm's too), cuda:N, xpu, mps or directml")
    if kind == "cpu":
        return torch.device("cpu")
    try:
        device = _open(kind, int(index or 0))
        capabilities(device)
    except DeviceError as error:
        raise DeviceError(f"device {name} is not available: {error}") from None
    except Exception as error:  # drivers raise what they like
        raise DeviceError(f"device {name} is not available: {failure(error)}") from error
    return device


def _first_that_works() -> torch.device:
    """Asks in the order of KINDS and stops at the first that answers: to ask DirectML means a slow import."""
    for kind in KINDS:
        with suppress(DeviceError):
            return resolve(kind)
    return torch.device("cpu")


def _open(kind: str, index: int) -> torch.device:
    """The accelerator of that kind and number. Raises DeviceError, or anything that its library raises."""
    seen = kind == "cuda" and torch.cuda.is_available()  # then what counts is below: whether there are kernels for this very card
    if reason := "" if seen else missing(kind):
        raise DeviceError(reason)
    if kind == "directml":
        import torch_directml as module  # type: ignore[import-not-found]  # a legacy package that few machines have
    else:
        module = getattr(torch, kind)
    count = module.device_count()
    if index >= count:
        raise DeviceError(f"the last one is {kind}:{count - 1}" if count else f"torch counts no {kind} device")
    if kind == "cuda" and (reason := without_kernels(index)):
        raise DeviceError(reason)
    return module.device(index) if kind == "directml" else torch.device(kind, index)


def missing(kind: str) -> str:
    """Why cuda, xpu, mps or directml cannot be used, in one line; empty if it can.

    ROCm devices are called cuda, as torch calls them; where the machine has an AMD GPU, the reason for cuda is ROCm's. Drivers
    and torch's libraries for them raise what they like when they are asked: that is a reason, too.
    """
    try:
        return _reason(kind)
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> str:
    """An error that an accelerator raised when it was asked, in one line."""
    return f"it cannot be used: {type(error).__name__}: {' '.join(str(error).split()) or 'without a reason'}"


def _reason(kind: str) -> str:
    if kind == "cuda":
        if torch.cuda.is_available():
            return without_kernels(0)
        return missing_rocm() if AMD in gpus() and NVIDIA not in gpus() else missing_cuda()
    if kind == "xpu":
        return "" if torch.xpu.is_available() else "torch finds no Intel GPU" if built_for() == builds.XPU else missing_xpu()
    if kind == "mps":
        return "" if torch.backends.mps.is_available() else "torch finds no Apple GPU"
    return directml_obstacles() or _try_directml()


def without_kernels(index: int) -> str:
    """Why this torch cannot compute on CUDA or ROCm device `index`, which it sees: it was built for other cards. Empty if it can.

    Programs for sm_XY run on cards of the same X and at least Y; those for compute_XY are compiled for any later card.
    """
    built = torch.cuda.get_arch_list()
    if torch.version.hip:
        own = str(torch.cuda.get_device_properties(index).gcnArchName).partition(":")[0]
        fits = own in {name.partition(":")[0] for name in built}
    else:
        generation, minor = torch.cuda.get_device_capability(index)
        own, numbers = f"sm_{generation}{minor}", re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(built))
        fits = any(
            (int(major), int(least)) <= (generation, minor) and (kind == "compute" or int(major) == generation)
            for kind, major, least in numbers
        )
    if fits or not built:
        return ""
    card, names = torch.cuda.get_device_name(index), ", ".join(built)
    only = f"this torch ({torch.__version__}) has no kernels for {card} ({own}), only for {names}"
    return f"{only}: {better_build(built_for()) or 'use --device cpu'}"


def missing_xpu() -> str:
    """Why a torch without XPU uses no Intel GPU."""
    intel = any(adapter.startswith(INTEL) for adapter in builds.adapters())
    way = f": {installing.torch(builds.XPU)}, for Arc and Core Ultra" if intel else ""
    return f"this torch ({torch.__version__}) has no XPU{way}"


def missing_cuda() -> str:
    """Why no NVIDIA GPU can be used; empty if one can."""
    built, here = torch.version.cuda is not None, NVIDIA in gpus()
    if built and torch.cuda.is_available():
        return ""
    if here and built:
        why = better_build(built_for()) or "run nvidia-smi to see whether its driver works"
        return f"there is an NVIDIA GPU, but torch ({torch.__version__}) cannot use it: {why}"
    if here:
        return without_platform(NVIDIA, torch.__version__, built_for())
    return "no NVIDIA GPU is seen" + ("" if built else f", and this torch ({torch.__version__}) has no CUDA")


def missing_rocm() -> str:
    """Why no AMD GPU can be used; empty if one can."""
    built, here = torch.version.hip is not None, AMD in gpus()
    if built and torch.cuda.is_available():
        return ""
    if here and built:
        linux = "" if sys.platform == "win32" else " (rocminfo), and whether you are in the groups render and video"
        return f"there is an AMD GPU, but torch cannot use it: see whether its driver works{linux}"
    if here:
        return without_platform(AMD, torch.__version__, built_for())
    return "no AMD GPU is seen" + ("" if built else f", and this torch ({torch.__version__}) has no ROCm")


def directml_obstacles() -> str:
    """Why DirectML cannot be used, as far as that is known without importing it; empty if nothing is known."""
    installed = importlib.util.find_spec("torch_directml") is not None
    obstacles = [] if installed else ["torch-directml is not installed"]
    if sys.platform != "win32" and not has_d3d12():
        obstacles.append(f"{D3D12} is missing, so this is neither Windows nor WSL2")
    if sys.version_info >= (3, 13):
        obstacles.append(f"there is none for Python above 3.12, and this is {platform.python_version()}")
    if installed and not re.match(r"2\.4\.", torch.__version__):
        obstacles.append(f"it works only with torch 2.4.1, and this is {torch.__version__}")
    if not obstacles:
        return ""
    if installed:
        return f"torch-directml is installed, but {'; '.join(obstacles)}"
    if len(obstacles) > 1:
        return "; ".join(obstacles)
    return f"{obstacles[0]}: {installing.headrace('directml')}, in an environment of its own"


def directml_advice() -> str:
    """A better choice than DirectML; empty where torch already has a GPU, or nothing is better."""
    windows = sys.platform == "win32" or has_d3d12()
    if not missing("cuda") or not (windows or AMD in gpus()):
        return ""
    better = "docs/start/windows.md" if windows else better_build(built_for(), "rocm")
    return f"DirectML is no longer developed and computes in float32 only; for an AMD GPU ROCm is better: {better}"


def kernels() -> str:
    """The platforms that this torch was built for, to be shown: CUDA 13.0, for sm_75, sm_80."""
    named = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip, "XPU": getattr(torch.version, "xpu", None)}
    built = " and ".join(f"{name} {version}" for name, version in named.items() if version)
    try:
        cards = ", ".join(torch.cuda.get_arch_list())  # empty where no card is seen
    except Exception:  # a driver may raise anything; the row of its kind says so
        cards = ""
    return (built or {builds.MPS: "Apple's GPUs"}.get(built_for(), "the CPU")) + (f", for {cards}" if cards else "")


def built_for() -> str:
    """The build that this torch is, as builds.py names them: cu126, rocm7.2, xpu, mps, cpu …"""
    if torch.version.cuda:
        return "cu" + torch.version.cuda.replace(".", "")
    if torch.version.hip:
        return "rocm" + ".".join(torch.version.hip.split(".")[:2])
    if getattr(torch.version, "xpu", None):
        return builds.XPU
    return builds.MPS if sys.platform == "darwin" else builds.CPU


def next_command() -> str:
    """The command that installs the build of torch for this machine's GPU; empty where there is none, or it is installed."""
    choice = builds.choose(builds.look())
    return "" if choice.build in (builds.CPU, built_for()) else installing.torch(choice.build)


def has_d3d12() -> bool:
    """True if DirectX 12's library is where WSL2 mounts it, or on LD_LIBRARY_PATH."""
    folders = ["/usr/lib/wsl/lib", *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return any((Path(folder) / D3D12).exists() for folder in folders if folder)


def _try_directml() -> str:
    """Imports torch_directml. Why it cannot be used; empty if it can."""
    import torch_directml  # type: ignore[import-not-found]  # whatever it raises is told by missing()

    return "" if torch_directml.is_available() else "torch-directml is installed, but finds no adapter with DirectX 12"
