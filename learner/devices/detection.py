"""Which accelerators torch can use here, and why not the others, in words that say what would help.

No answer costs an import that can be had without one: torch_directml is imported only where nothing else speaks against it.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

AMD, NVIDIA = "AMD", "NVIDIA"
VENDORS = {"1002": AMD, "10de": NVIDIA}  # of PCI
ADAPTERS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"  # Windows' key of display adapters
D3D12 = "libd3d12.so"  # DirectX 12 on Linux: WSL2 has it, nothing else does
ROCM_ON_WINDOWS = "PyTorch with ROCm runs on Windows, on Radeons from the RX 5700 on: see RELEASES.md of github.com/ROCm/TheRock"


def missing(kind: str) -> str:
    """Why cuda, xpu, mps or directml cannot be used, in one line; empty if it can.

    ROCm's devices are called cuda, as torch calls them; the reason for cuda is that of the GPU which is here.
    """
    if kind == "cuda":
        if torch.cuda.is_available():
            return ""
        return missing_rocm() if AMD in gpus() and NVIDIA not in gpus() else missing_cuda()
    if kind == "xpu":
        return "" if torch.xpu.is_available() else "torch finds no Intel GPU, or was built without XPU"
    if kind == "mps":
        return "" if torch.backends.mps.is_available() else "torch finds no Apple GPU"
    return directml_obstacles() or _try_directml()


def missing_cuda() -> str:
    """Why no NVIDIA GPU can be used; empty if one can."""
    built, here = torch.version.cuda is not None, NVIDIA in gpus()
    if built and torch.cuda.is_available():
        return ""
    if here and built:
        return "there is an NVIDIA GPU, but torch cannot use it: nvidia-smi tells whether its driver works"
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
    """What speaks against DirectML that can be told without importing it; empty if nothing does."""
    installed = importlib.util.find_spec("torch_directml") is not None
    found = [] if installed else ["torch-directml is not installed"]
    if sys.platform != "win32" and not _has_d3d12():
        found.append(f"{D3D12} is missing, so this is neither Windows nor WSL2")
    if sys.version_info >= (3, 13):
        found.append(f"there is none for Python above 3.12, and this is {platform.python_version()}")
    if installed and not re.match(r"2\.4\.", torch.__version__):
        found.append(f"it works with torch 2.4.1 alone, and this is {torch.__version__}")
    if not found:
        return ""
    if installed:
        return f"torch-directml is installed, but {'; '.join(found)}"
    return f"{found[0]}: pip install 'headrace[directml]', in an environment of its own" if len(found) == 1 else "; ".join(found)


def directml_advice() -> str:
    """What is better than DirectML, unless torch has a GPU already."""
    if torch.cuda.is_available():
        return ""
    better = ROCM_ON_WINDOWS if AMD not in gpus() or sys.platform == "win32" or _has_d3d12() else "make install TORCH=rocm"
    return f"DirectML is no longer developed and computes in float32 only; for an AMD GPU ROCm is the better road: {better}"


def gpus(root: Path = Path("/")) -> set[str]:
    """The makers, AMD or NVIDIA, of the GPUs that the system knows of, whatever torch makes of them. `root` is Linux's."""
    identifiers = _of_registry() if sys.platform == "win32" else _of_linux(root)
    return {VENDORS[found] for found in identifiers if found in VENDORS}


def _of_linux(root: Path) -> Iterator[str]:
    """Identifiers of the vendors of display adapters, and of whatever else has a driver for graphics."""
    for device in (*root.glob("sys/class/drm/card*/device"), *root.glob("sys/bus/pci/devices/*")):
        if "drm" in device.parts or _read(device / "class").startswith("0x03"):
            yield _read(device / "vendor").removeprefix("0x")
    if any(root.glob("proc/driver/nvidia/gpus/*")) or (root / "usr/lib/wsl/lib/nvidia-smi").exists():
        yield "10de"


def _of_registry() -> Iterator[str]:
    """The same, of Windows: its adapters' keys hold PCI\\VEN_1002&DEV_… ."""
    if sys.platform != "win32":
        return
    import winreg

    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, ADAPTERS) as adapters:
        for number in range(winreg.QueryInfoKey(adapters)[0]):
            try:
                with winreg.OpenKey(adapters, winreg.EnumKey(adapters, number)) as adapter:
                    told = str(winreg.QueryValueEx(adapter, "MatchingDeviceId")[0])
            except OSError:  # a key that is no adapter, or not for everybody
                continue
            if found := re.search(r"ven_([0-9a-f]{4})", told.lower()):
                yield found[1]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""


def _has_d3d12() -> bool:
    """Whether DirectX 12's library for Linux is where WSL2 mounts it, or where the loader was told to look."""
    folders = ["/usr/lib/wsl/lib", *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    return any((Path(folder) / D3D12).exists() for folder in folders if folder)


def _try_directml() -> str:
    """Imports torch_directml, which nothing speaks against. Why it cannot be used after all; empty if it can."""
    try:
        import torch_directml  # type: ignore[import-not-found]
    except (ImportError, OSError) as error:  # OSError: a library that it loads
        return f"torch-directml is installed, but cannot be imported ({str(error).splitlines()[0]})"
    return "" if torch_directml.is_available() else "torch-directml is installed, but finds no adapter with DirectX 12"
