"""What is known of the device before torch is imported, which takes two seconds and 160 MB."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from learner.devices import builds

CPU_NAME, CPU_PRECISIONS = "CPU", ("float32", "bfloat16")
KEPT_BY_DRIVERS = ("dev/nvidia*", "dev/kfd", "dev/dxg")
GPUS = re.compile(r"1002:|10de:")  # display adapters of AMD and NVIDIA, by PCI vendor


def is_cpu(name: str, root: Path = Path("/")) -> bool:
    """True if the configured name certainly means the CPU; where it is False torch must be asked.

    auto means it on a machine that has no GPU, or none that the installed torch was built for. `root`: where Linux's file system
    begins.
    """
    if name != "auto":
        return name == "cpu"
    if sys.platform == "darwin" or "torch_directml" in sys.modules or importlib.util.find_spec("torch_directml") is not None:
        return False
    if any(path for pattern in KEPT_BY_DRIVERS for path in root.glob(pattern)):
        return False
    adapters = builds.adapters(root)
    if any(map(GPUS.match, adapters)):  # torch says why it takes none of them
        return False
    return not (any(adapter.startswith("8086:") for adapter in adapters) and built_for_xpu())


def built_for_xpu() -> bool:
    """True unless torch's own file says that it was built without Intel's GPUs."""
    found = importlib.util.find_spec("torch")  # imports nothing
    try:
        text = (Path(str(found.origin)).parent / "version.py").read_text(encoding="utf-8") if found else ""
    except OSError:
        return True
    return re.search(r"(?m)^xpu\b.*= None$", text) is None
