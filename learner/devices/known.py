"""What is known of the device before torch is imported, which takes two seconds and 160 MB."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import NamedTuple

from learner.devices import builds, installing

CPU_NAME, CPU_PRECISIONS = "CPU", ("float32", "bfloat16")
AMD, NVIDIA = "AMD", "NVIDIA"
VENDORS, INTEL = {"1002": AMD, "10de": NVIDIA}, "8086"  # by PCI vendor id
PLATFORMS = {NVIDIA: ("CUDA", "cu"), AMD: ("ROCm", "rocm")}  # as people call what torch is built for, and as builds.py does
MADE_BY_DRIVERS = ("dev/nvidia*", "dev/kfd", "dev/dxg")


class Installed(NamedTuple):
    """The torch that is installed."""

    version: str
    platforms: set[str]  # that it was built for, as torch.version calls them: cuda, hip, xpu


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None  # imports nothing


def installed() -> Installed | None:
    """Read from torch's own file; None where there is none."""
    found = importlib.util.find_spec("torch")  # imports nothing
    try:
        text = (Path(str(found.origin)).parent / "version.py").read_text(encoding="utf-8") if found else ""
    except OSError:
        return None
    values = dict(re.findall(r"(?m)^(\w+)\b[^=\n]*= *(.+?) *$", text))
    if "cuda" not in values:
        return None
    return Installed(
        values["__version__"].strip("'\""), {name for name in ("cuda", "hip", "xpu") if values.get(name, "None") != "None"}
    )


def is_cpu(name: str, root: Path = Path("/")) -> bool:
    """True if the configured name certainly means the CPU; where it is False torch must be asked.

    auto means it where there is no torch, where the installed one was built for no accelerator, or the machine has none of those.
    `root`: where Linux's file system begins.
    """
    if name != "auto":
        return name == "cpu"
    if not has_torch():
        return True
    torch = installed()
    directml = "torch_directml" in sys.modules or importlib.util.find_spec("torch_directml") is not None
    if torch is None or directml or sys.platform == "darwin":
        return False
    adapters = builds.adapters(root)
    if {"cuda", "hip"} & torch.platforms and (gpus(root) or any(list(root.glob(name)) for name in MADE_BY_DRIVERS)):
        return False
    return not ("xpu" in torch.platforms and any(adapter.startswith(INTEL) for adapter in adapters))


def unused_gpu() -> str:
    """Why a torch that was built for the CPU alone uses no GPU of this machine, and what would help; empty without a GPU."""
    torch, found = installed(), gpus()
    if torch is None or torch.platforms or not found:
        return ""
    maker = AMD if found == {AMD} else NVIDIA
    return without_platform(maker, torch.version, builds.CPU)


def gpus(root: Path = Path("/")) -> set[str]:
    """The vendors, AMD or NVIDIA, of the GPUs that the operating system lists. `root`: where Linux's file system begins."""
    return {VENDORS[found[:4]] for found in builds.adapters(root) if found[:4] in VENDORS}


def without_platform(maker: str, version: str, built: str) -> str:
    """Why this torch uses no GPU of the maker: it was `built`, as builds.py names it, for other ones."""
    platform, prefix = PLATFORMS[maker]
    return f"there is an {maker} GPU, but this torch ({version}) has no {platform}: {better_build(built, prefix)}"


def better_build(built: str, prefix: str = "") -> str:
    """The command that installs the build of torch for this machine, where it is another than `built` and its name has the
    prefix; otherwise what would have to change before one can be used, or nothing."""
    choice = builds.choose(builds.look())
    if choice.build in (builds.CPU, built) or not choice.build.startswith(prefix):
        return choice.note
    return installing.torch(choice.build)
