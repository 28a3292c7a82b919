"""What is known of the device before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from learner.devices import known
from learner.devices.detection import resolve

CARDS = {"NVIDIA": "0x10de", "AMD": "0x1002", "Intel": "0x8086", "Matrox": "0x102b"}


def machine(root: Path, *vendors: str, files: tuple[str, ...] = ()) -> Path:
    """A file system with these display adapters."""
    for number, vendor in enumerate(vendors):
        device = root / f"sys/bus/pci/devices/{number}"
        device.mkdir(parents=True)
        for name, text in (("class", "0x030000"), ("vendor", CARDS[vendor]), ("device", "0x1234")):
            (device / name).write_text(text + "\n")
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's file system")
@pytest.mark.parametrize(
    ("vendors", "files", "xpu", "expected"),
    [
        ((), (), False, True),
        (("Matrox",), (), True, True),
        (("Intel",), (), False, True),
        (("Intel",), (), True, False),
        (("NVIDIA",), (), False, False),
        (("Matrox", "AMD"), (), False, False),
        ((), ("dev/nvidia0",), False, False),  # a container that shows no PCI devices
        ((), ("dev/kfd",), False, False),
        ((), ("dev/dxg",), False, False),  # WSL2
        ((), ("proc/driver/nvidia/gpus/0000:01:00.0",), False, False),
    ],
)
def test_auto_is_the_cpu_without_asking_torch_only_where_no_accelerator_can_be(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vendors: tuple[str, ...],
    files: tuple[str, ...],
    xpu: bool,
    expected: bool,
) -> None:
    monkeypatch.setattr(known, "built_for_xpu", lambda: xpu)
    assert known.is_cpu("auto", machine(tmp_path, *vendors, files=files)) == expected


def test_a_device_that_is_named_needs_torch_unless_it_is_the_cpu(tmp_path: Path) -> None:
    assert known.is_cpu("cpu", machine(tmp_path, "NVIDIA"))
    assert not any(known.is_cpu(name) for name in ("cuda", "cuda:1", "mps", "xpu", "directml", "toaster"))


def test_what_is_known_of_this_machine_is_what_torch_says() -> None:
    assert not known.is_cpu("auto") or resolve("auto").type == "cpu"


def test_what_torch_was_built_for_is_read_without_importing_it() -> None:
    code = "import sys; from learner.devices.known import built_for_xpu; print(built_for_xpu(), 'torch' in sys.modules)"
    import torch

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(getattr(torch.version, "xpu", None) is not None), "False"]
