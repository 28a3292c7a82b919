"""The build of torch for each machine: a table of machines, by what their drivers and file systems say."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from deploy import install
from learner.devices import builds
from learner.devices.builds import CPU, CUDA, MPS, OLDER_CUDA, ROCM, XPU, Card, Machine, choose, look

SYSTEM32 = r"C:\Windows\System32\nvidia-smi.exe"
# nvidia-smi's answers: by program, to a question for the driver and the compute capability.
NVIDIA, AMD, INTEL_ARC, INTEL_OLD = "10de:2684", "1002:744c", "8086:e20b", "8086:3e92"
MACHINES = [
    # system, what nvidia-smi says, adapters, files, build, part of the note
    ("linux", "580.65.06, 8.9", [NVIDIA], {}, CUDA, ""),
    ("linux", "580.65.06, 12.0", [NVIDIA], {}, CUDA, ""),
    ("linux", "575.57.08, 8.9", [NVIDIA], {}, OLDER_CUDA, ""),
    ("linux", "580.82.07, 6.1", [NVIDIA], {}, OLDER_CUDA, ""),
    ("linux", "580.82.07, 7.0", [NVIDIA], {}, OLDER_CUDA, ""),
    ("linux", "590.10, 7.5", [NVIDIA], {}, CUDA, ""),
    ("linux", "525.60.13, 8.6", [NVIDIA], {}, OLDER_CUDA, ""),
    ("linux", "525.60.11, 8.6", [NVIDIA], {}, CPU, "driver 525.60.11 is too old"),
    ("linux", "470.256.02", [NVIDIA], {}, CPU, "take 525 or later"),
    ("linux", "570.124, 12.0", [NVIDIA], {}, CPU, "take 580 or later"),
    ("linux", "470.256.02, 3.5", [NVIDIA], {}, CPU, "too old for today's torch"),
    ("linux", "580.65.06, 6.1\n580.65.06, 8.9", [NVIDIA], {}, OLDER_CUDA, ""),
    ("linux", "580.65.06, 6.1\n580.65.06, 12.0", [NVIDIA], {}, CUDA, ""),
    ("linux", "580.65.06, [N/A]", [NVIDIA], {}, CUDA, ""),
    ("linux", "550.54.14", [NVIDIA], {}, OLDER_CUDA, ""),
    ("linux", "", [NVIDIA], {}, CPU, "no driver that works"),
    ("linux", "No devices were found", [NVIDIA], {}, CPU, "no driver that works"),
    ("linux", "580.65.06, 8.9", [AMD, NVIDIA], {"dev/kfd": ""}, CUDA, ""),
    ("linux", "", [AMD], {"dev/kfd": ""}, ROCM, ""),
    ("linux", "", [], {"dev/kfd": ""}, ROCM, ""),
    ("linux", "", [AMD], {"dev/kfd": "", "1": "gfx_target_version 0", "2": "gfx_target_version 110000"}, ROCM, ""),
    ("linux", "", [AMD], {"dev/kfd": "", "1": "gfx_target_version 90010"}, ROCM, ""),
    ("linux", "", [AMD], {"dev/kfd": "", "1": "gfx_target_version 100306"}, CPU, "(gfx1036); as gfx1030 it may work"),
    ("linux", "", [AMD], {"dev/kfd": "", "1": "gfx_target_version 80003"}, CPU, "no kernels for this AMD GPU (gfx803)"),
    ("linux", "", [AMD], {}, CPU, "there is no /dev/kfd"),
    ("linux", "", [INTEL_ARC], {}, XPU, ""),
    ("linux", "", [INTEL_OLD], {}, CPU, ""),
    ("linux", "", [], {}, CPU, ""),
    ("win32", "591.44, 8.9", [NVIDIA], {}, CUDA, ""),
    ("win32", "551.86, 8.9", [NVIDIA], {}, OLDER_CUDA, ""),
    ("win32", "581.15, 6.1", [NVIDIA], {}, OLDER_CUDA, ""),
    ("win32", "528.24, 8.9", [NVIDIA], {}, CPU, "take 528 or later"),
    ("win32", "", [AMD], {}, CPU, "windows.md"),
    ("win32", "", [INTEL_ARC], {}, XPU, ""),
    ("win32", "", [INTEL_OLD], {}, CPU, ""),
    ("win32", "", [], {}, CPU, ""),
    ("darwin", "", [], {}, MPS, ""),
]


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.mark.parametrize(("system", "smi", "adapters", "files", "build", "note"), MACHINES)
def test_each_machine_gets_the_build_that_it_can_use(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    system: str,
    smi: str,
    adapters: list[str],
    files: dict[str, str],
    build: str,
    note: str,
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(builds, "_from_registry", lambda: iter(adapters))
    monkeypatch.setattr(builds, "_run", lambda command: smi)
    for number, adapter in enumerate(adapters):
        vendor, device = adapter.split(":")
        for name, text in (("class", "0x030000"), ("vendor", f"0x{vendor}"), ("device", f"0x{device}")):
            put(tmp_path / f"sys/bus/pci/devices/{number}" / name, text)
    for name, text in files.items():
        put(tmp_path / (name if "/" in name else f"sys/class/kfd/kfd/topology/nodes/{name}/properties"), text)
    choice = choose(look(tmp_path))
    assert choice.build == build and note in choice.note and bool(note) == bool(choice.note)


@pytest.mark.parametrize(("system", "place"), [("win32", SYSTEM32), ("linux", "/usr/lib/wsl/lib/nvidia-smi")])
def test_nvidia_smi_is_found_where_only_the_driver_has_put_it(monkeypatch: pytest.MonkeyPatch, system: str, place: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setenv("SystemRoot", r"C:\Windows")
    monkeypatch.setattr(builds, "_run", lambda command: "551.86, 8.9\n" if command[0] == place else "")
    assert list(builds._nvidia_cards()) == [Card((551, 86), (8, 9))]


def test_a_driver_that_does_not_know_the_second_question_is_asked_the_first_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "_run", lambda command: "" if "compute_cap" in command[1] else "450.80.02\n")
    assert list(builds._nvidia_cards()) == [Card((450, 80, 2), (0, 0))]


def test_a_program_that_is_missing_hangs_or_fails_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert builds._run(["no-such-program"]) == ""
    assert builds._run([sys.executable, "-c", "print(1); raise SystemExit(9)"]) == ""
    assert builds._run([sys.executable, "-c", "print(1)"]) == "1\n"


def test_a_name_of_the_user_decides_and_cuda_is_the_one_for_the_driver() -> None:
    old = Machine("linux", (Card((535, 1), (8, 6)),), (NVIDIA,))
    assert [choose(old, name).build for name in ("cuda", CUDA, "cpu", "rocm", "xpu")] == [OLDER_CUDA, CUDA, CPU, ROCM, XPU]
    assert choose(Machine("linux"), "cuda").build == CUDA, "an image for another machine"
    assert "windows.md" in choose(Machine("win32"), "rocm").note


def test_windows_registry_gives_vendor_and_device_and_none_where_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = ModuleType("winreg")
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(sys, "platform", "win32")
    registry.HKEY_LOCAL_MACHINE = 0  # type: ignore[attr-defined]

    def refuse(*_: object) -> None:
        raise FileNotFoundError(2, "there is no such key")

    registry.OpenKey = refuse  # type: ignore[attr-defined]
    assert builds.adapters() == []


def test_the_table_is_about_the_torch_that_is_installed_and_any_python_3_can_read_it() -> None:
    pins = (install.ROOT / install.LIMITS).read_text(encoding="utf-8").splitlines()
    assert f"torch=={builds.TORCH}" in pins
    for module in (install, builds):
        ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"), feature_version=(3, 8))
