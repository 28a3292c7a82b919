"""Which accelerators torch can use here, and for the others why not, and what would help.

torch_directml is imported only where everything else that it needs is there, because the import is slow.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

AMD, NVIDIA = "AMD", "NVIDIA"
VENDORS = {"1002": AMD, "10de": NVIDIA}  # by PCI vendor id
ADAPTERS = (
    r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"  # registry key of Windows' display adapters
)
D3D12 = "libd3d12.so"  # DirectX 12 on Linux: only WSL2 has it
ROCM_ON_WINDOWS = "PyTorch with ROCm runs on Windows, on Radeons from the RX 5700 on: see RELEASES.md of github.com/ROCm/TheRock"


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
    """What an accelerator raised when it was asked, in one line."""
    return f"it cannot be used: {type(error).__name__}: {' '.join(str(error).split()) or 'without a reason'}"


def _reason(kind: str) -> str:
    if kind == "cuda":
        if torch.cuda.is_available():
            return without_kernels(0)
        return missing_rocm() if AMD in gpus() and NVIDIA not in gpus() else missing_cuda()
    if kind == "xpu":
        return "" if torch.xpu.is_available() else "torch finds no Intel GPU, or was built without XPU"
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
    return f"{only}: install one that has, or use --device cpu"


def missing_cuda() -> str:
    """Why no NVIDIA GPU can be used; empty if one can."""
    built, here = torch.version.cuda is not None, NVIDIA in gpus()
    if built and torch.cuda.is_available():
        return ""
    if here and built:
        return "there is an NVIDIA GPU, but torch cannot use it: run nvidia-smi to see whether its driver works"
    if here:
        return f"there is an NVIDIA GPU, but this torch ({torch.__version__}) has no CUDA: make install TORCH=cuda"
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
        way = ROCM_ON_WINDOWS if sys.platform == "win32" else "make install TORCH=rocm"
        return f"there is an AMD GPU, but this torch ({torch.__version__}) has no ROCm: {way}"
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
    return f"{obstacles[0]}: pip install 'headrace[directml]', in an environment of its own"


def directml_advice() -> str:
    """What to use instead of DirectML; empty where torch already has a GPU."""
    if not missing("cuda"):
        return ""
    better = ROCM_ON_WINDOWS if AMD not in gpus() or sys.platform == "win32" or has_d3d12() else "make install TORCH=rocm"
    return f"DirectML is no longer developed and computes in float32 only; for an AMD GPU ROCm is better: {better}"


def gpus(root: Path = Path("/")) -> set[str]:
    """The vendors, AMD or NVIDIA, of the GPUs that the operating system lists. `root`: where Linux's file system begins."""
    identifiers = _from_registry() if sys.platform == "win32" else _from_linux(root)
    return {VENDORS[found] for found in identifiers if found in VENDORS}


def _from_linux(root: Path) -> Iterator[str]:
    """PCI vendor ids of display adapters, and of all devices with a graphics driver."""
    for device in (*root.glob("sys/class/drm/card*/device"), *root.glob("sys/bus/pci/devices/*")):
        if "drm" in device.parts or _read(device / "class").startswith("0x03"):
            yield _read(device / "vendor").removeprefix("0x")
    if any(root.glob("proc/driver/nvidia/gpus/*")) or (root / "usr/lib/wsl/lib/nvidia-smi").exists():
        yield "10de"


def _from_registry() -> Iterator[str]:
    """The same from Windows' registry, where an adapter's key holds PCI\\VEN_1002&DEV_… ."""
    if sys.platform != "win32":
        return
    winreg: Any = import_module("winreg")  # its types are known on Windows alone

    with suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, ADAPTERS) as adapters:
        for number in range(winreg.QueryInfoKey(adapters)[0]):
            try:
                with winreg.OpenKey(adapters, winreg.EnumKey(adapters, number)) as adapter:
                    device_id = str(winreg.QueryValueEx(adapter, "MatchingDeviceId")[0])
            except OSError:  # not an adapter's key, or not readable
                continue
            if match := re.search(r"ven_([0-9a-f]{4})", device_id.lower()):
                yield match[1]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""


def has_d3d12() -> bool:
    """Whether DirectX 12's library is where WSL2 mounts it, or on LD_LIBRARY_PATH."""
    folders = ["/usr/lib/wsl/lib", *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return any((Path(folder) / D3D12).exists() for folder in folders if folder)


def _try_directml() -> str:
    """Imports torch_directml. Why it cannot be used; empty if it can."""
    import torch_directml  # type: ignore[import-not-found]  # whatever it raises is told by missing()

    return "" if torch_directml.is_available() else "torch-directml is installed, but finds no adapter with DirectX 12"
