"""Which build of torch suits a machine: by this table deploy/install.py chooses, and `headrace doctor` advises.

Standard library only, and no syntax newer than Python 3.8: the installer runs this file before anything is installed.

uv has a choice of its own (`--torch-backend=auto`), which is taken for other torches than the one of constraints.txt. For that
one this table knows more: uv asks no card for its age, sees an AMD card only where ROCm is installed, and takes every Intel
display for one that XPU can use.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

TORCH = "2.13.0"  # of constraints.txt: the version that this table is about
NEWEST = "newest"  # as a version
INDEX = "https://download.pytorch.org/whl/"  # then the name of a build
CPU, OLDER_CUDA, CUDA, ROCM, XPU, MPS = "cpu", "cu126", "cu130", "rocm7.2", "xpu", "mps"  # what it is built for
NAMES = {"auto": "", "cuda": "", "rocm": ROCM, **{build: build for build in (CPU, OLDER_CUDA, CUDA, XPU)}}  # for --torch
# The oldest drivers (NVIDIA's CUDA release notes), and the cards: compute capability from … to below (PyTorch's RELEASE.md).
DRIVERS = {OLDER_CUDA: {"linux": (525, 60, 13), "win32": (528, 33)}, CUDA: {"linux": (580,), "win32": (580,)}}
OLDEST_CARD, TURING, BLACKWELL = (5, 0), (7, 5), (10, 0)  # cu126: Maxwell to Hopper; cu130: from Turing on
AMD_CARDS = "900 906 908 90a 942 950 1030 1100 1101 1102 1150 1151 1200 1201".split()  # that the ROCm build has kernels for
INTEL_CARDS = r"8086:(56|e2|0bd)"  # Arc A and B, Flex, Max
ADAPTERS = (
    r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"  # registry key of Windows' display adapters
)
AMD_ON_WINDOWS = (
    "for AMD GPUs PyTorch has no build for Windows; AMD has its own, or take DirectML in an environment of its own: "
    "docs/start/windows.md says how"
)


class Card(NamedTuple):
    """An NVIDIA GPU: its driver, and its compute capability; (0, 0) where the driver is too old to tell."""

    driver: tuple[int, ...]
    capability: tuple[int, ...]


class Machine(NamedTuple):
    system: str  # as sys.platform
    cards: tuple[Card, ...] = ()  # of NVIDIA, with a driver that answers
    adapters: tuple[str, ...] = ()  # as adapters() lists them
    kfd: bool = False  # whether /dev/kfd is there, by which ROCm reaches AMD GPUs
    amd: tuple[str, ...] = ()  # their architectures, 1100, as far as the kernel tells

    def has(self, vendor: str) -> bool:
        return any(adapter.startswith(vendor) for adapter in self.adapters)


class Choice(NamedTuple):
    build: str
    note: str = ""  # what would have to change for a GPU of this machine to be used


def choose(machine: Machine, name: str = "auto") -> Choice:
    """The build for a machine, by a name of NAMES; `cuda` is the one for its driver and cards."""
    if machine.system == "darwin":
        return Choice(MPS)
    if NAMES[name]:
        return Choice(NAMES[name], AMD_ON_WINDOWS if NAMES[name] == ROCM and machine.system == "win32" else "")
    if machine.cards or name == "cuda":
        return _for_nvidia(machine) if machine.cards else Choice(CUDA)
    if machine.kfd or machine.has("1002:"):
        found = _for_amd(machine)
    elif re.search(INTEL_CARDS, " ".join(machine.adapters)):
        found = Choice(XPU)
    else:
        found = Choice(CPU)
    if found.build == CPU and machine.has("10de:"):
        return Choice(CPU, "the NVIDIA GPU has no driver that works: install one (nvidia-smi shows it), then install again")
    return found


def _for_nvidia(machine: Machine) -> Choice:
    driver = machine.cards[0].driver
    shown = ".".join(map(str, driver))
    known = [card.capability for card in machine.cards if card.capability > (0, 0)]
    if known and max(known) < OLDEST_CARD:
        return Choice(CPU, "this NVIDIA GPU is too old for today's torch, which begins with compute capability 5.0")
    old_card = bool(known) and min(known) < TURING and max(known) < BLACKWELL
    new_card = bool(known) and max(known) >= BLACKWELL
    for build in [CUDA] * (not old_card) + [OLDER_CUDA] * (not new_card):
        if driver >= DRIVERS[build].get(machine.system, DRIVERS[build]["linux"]):
            return Choice(build)
    least = DRIVERS[CUDA if new_card else OLDER_CUDA].get(machine.system, (525,))[0]
    return Choice(CPU, f"NVIDIA's driver {shown} is too old for this torch and card: take {least} or later, then install again")


def _for_amd(machine: Machine) -> Choice:
    if machine.system == "win32":
        return Choice(CPU, AMD_ON_WINDOWS)
    if not machine.kfd:
        return Choice(CPU, "the AMD GPU has no driver for computing: there is no /dev/kfd, which the kernel's amdgpu makes")
    if machine.amd and not set(machine.amd) & set(AMD_CARDS):
        others = ", ".join(f"gfx{name}" for name in machine.amd)
        near = any(name.startswith("103") for name in machine.amd)
        like = "; as gfx1030 it may work: HSA_OVERRIDE_GFX_VERSION=10.3.0, with --torch rocm" if near else ""
        return Choice(CPU, f"PyTorch's ROCm build has no kernels for this AMD GPU ({others}){like}")
    return Choice(ROCM)


def sources(build: str, version: str) -> list[tuple[str, list[str]]]:
    """The ways to install a torch build, to be tried in turn: (label, arguments of `pip install`). The version may be NEWEST."""
    label, exact = f"torch {version} for {build}", requirement(version)
    linux, index = sys.platform.startswith("linux"), ["--extra-index-url", INDEX + build]
    tagged = exact if version == NEWEST else f"{exact}+{build}"  # without its name an index may have another build
    plain = (f"torch {version}, as the package index has it", [exact])
    if build == MPS or (build == CPU and not linux):
        return [plain]
    if build == CUDA and linux and platform.machine() == "x86_64" and version == TORCH:  # what PyPI has
        return [(f"{label}, several GB", [f"{exact},!={version}+cpu"])]
    if build != CPU:
        return [(f"{label}, several GB, from {index[1]}", [tagged, *index])]
    return [(label, [tagged])][: version != NEWEST] + [(f"{label}, from {index[1]}", [tagged, *index]), plain]


def requirement(version: str) -> str:
    return "torch" if version == NEWEST else f"torch=={version}"


def look(root: Path = Path("/")) -> Machine:
    """This machine. `root`: where Linux's file system begins."""
    kfd = (root / "dev/kfd").exists()
    return Machine(sys.platform, tuple(_nvidia_cards()), tuple(adapters(root)), kfd, tuple(_amd_cards(root)))


def adapters(root: Path = Path("/")) -> list[str]:
    """The display adapters that the operating system lists, by PCI vendor and device, 1002:73bf; of some the vendor alone."""
    return sorted(set(_from_registry() if sys.platform == "win32" else _from_linux(root)))


def _nvidia_cards() -> Iterator[Card]:
    """The cards that nvidia-smi lists, wherever the driver has put it; drivers of before 2021 do not tell their capability."""
    windows = os.environ.get("SystemRoot", r"C:\Windows") + r"\System32\nvidia-smi.exe"
    for program in ["nvidia-smi", windows if sys.platform == "win32" else "/usr/lib/wsl/lib/nvidia-smi"]:
        for fields in ("driver_version,compute_cap", "driver_version"):
            told = _run([program, f"--query-gpu={fields}", "--format=csv,noheader"])
            lines = re.findall(r"(?m)^\s*(\d+(?:\.\d+)+)(?:\s*,\s*(\d+\.\d+)?.*)?$", told)
            if lines:
                yield from (Card(_numbers(driver), _numbers(capability) or (0, 0)) for driver, capability in lines)
                return


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _run(command: list[str]) -> str:
    program = shutil.which(command[0])
    try:
        done = subprocess.run([program or command[0], *command[1:]], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _amd_cards(root: Path) -> Iterator[str]:
    """Architectures by the kernel: 110000 is gfx1100, 90010 gfx90a; 0 is the processor."""
    for file in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")):
        for number in re.findall(r"(?m)^gfx_target_version (\d{5,})$", _read(file)):
            yield f"{int(number) // 10000}{int(number) // 100 % 100:x}{int(number) % 100:x}"


def _from_linux(root: Path) -> Iterator[str]:
    """PCI ids of display adapters, and of all devices with a graphics driver."""
    for device in [*root.glob("sys/class/drm/card*/device"), *root.glob("sys/bus/pci/devices/*")]:
        if "drm" in device.parts or _read(device / "class").startswith("0x03"):
            yield f"{_read(device / 'vendor')[2:]}:{_read(device / 'device')[2:]}"
    if any(root.glob("proc/driver/nvidia/gpus/*")) or (root / "usr/lib/wsl/lib/nvidia-smi").exists():
        yield "10de:"


def _from_registry() -> Iterator[str]:
    """The same from Windows' registry, where an adapter's key holds PCI\\VEN_1002&DEV_73BF… ."""
    winreg: Any = import_module("winreg")  # its types are known on Windows alone
    with suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, ADAPTERS) as keys:
        for number in range(winreg.QueryInfoKey(keys)[0]):
            try:
                with winreg.OpenKey(keys, winreg.EnumKey(keys, number)) as adapter:
                    device_id = str(winreg.QueryValueEx(adapter, "MatchingDeviceId")[0]).lower()
            except OSError:  # not an adapter's key, or not readable
                continue
            for vendor, device in re.findall(r"ven_([0-9a-f]{4})(?:&dev_([0-9a-f]{4}))?", device_id):
                yield f"{vendor}:{device}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().lower()
    except OSError:
        return ""
