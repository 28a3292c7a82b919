"""What is known of the device before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from learner.devices import builds, detection, known
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


CASES: list[tuple[tuple[str, ...], tuple[str, ...], set[str], bool]] = [
    ((), (), {"cuda", "xpu"}, True),
    (("Matrox",), (), {"cuda", "hip", "xpu"}, True),
    (("Intel",), (), {"cuda"}, True),
    (("Intel",), (), {"xpu"}, False),
    (("NVIDIA",), (), {"cuda"}, False),
    (("NVIDIA", "AMD", "Intel"), ("dev/nvidia0", "dev/kfd"), set(), True),  # it was built for the CPU alone
    (("Matrox", "AMD"), (), {"hip"}, False),
    ((), ("dev/nvidia0",), {"cuda"}, False),  # a container that shows no PCI devices
    ((), ("dev/kfd",), {"hip"}, False),
    ((), ("dev/dxg",), {"cuda"}, False),  # WSL2
    ((), ("proc/driver/nvidia/gpus/0000:01:00.0",), {"cuda"}, False),
]


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's file system")
@pytest.mark.parametrize(("vendors", "files", "platforms", "expected"), CASES)
def test_auto_is_the_cpu_without_asking_torch_only_where_no_accelerator_can_be(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vendors: tuple[str, ...],
    files: tuple[str, ...],
    platforms: set[str],
    expected: bool,
) -> None:
    monkeypatch.setattr(known, "installed", lambda: known.Installed("2.13.0", platforms))
    assert known.is_cpu("auto", machine(tmp_path, *vendors, files=files)) == expected


def test_without_torch_s_own_word_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "installed", lambda: None)
    assert not known.is_cpu("auto") and known.is_cpu("cpu")


def test_a_device_that_is_named_needs_torch_unless_it_is_the_cpu(tmp_path: Path) -> None:
    assert known.is_cpu("cpu", machine(tmp_path, "NVIDIA"))
    assert not any(known.is_cpu(name) for name in ("cuda", "cuda:1", "mps", "xpu", "directml", "toaster"))


def test_what_is_known_of_this_machine_is_what_torch_says() -> None:
    assert not known.is_cpu("auto") or resolve("auto").type == "cpu"


@pytest.mark.parametrize("vendors", [(), ("10de",), ("1002",), ("10de", "1002"), ("8086",)])
def test_why_a_gpu_is_not_used_is_told_in_torch_s_own_words(monkeypatch: pytest.MonkeyPatch, vendors: tuple[str, ...]) -> None:
    if torch.version.cuda or torch.version.hip or getattr(torch.version, "xpu", None):
        pytest.skip("this torch was built for an accelerator")
    monkeypatch.setattr(builds, "adapters", lambda root=None: [f"{vendor}:1234" for vendor in vendors])
    expected = detection.missing("cuda") if detection.gpus() else ""
    assert known.unused_gpu() == expected and bool(expected) == (vendors not in ((), ("8086",)))


def test_what_torch_was_built_for_is_read_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; from learner.devices.known import installed; print(installed(), 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    platforms = {name for name in ("cuda", "hip", "xpu") if getattr(torch.version, name, None)}
    assert found.stdout.split("\n")[0] == f"{known.Installed(torch.__version__, platforms)} False"
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    monkeypatch.setattr(
        known.importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "torch/__init__.py"))
    )
    assert known.installed() is None
    (tmp_path / "torch/version.py").write_text(
        "__version__ = '2.4.1+rocm6'\ndebug = False\ncuda: Optional[str] = None\nhip = '6.0'\n"
    )
    assert known.installed() == ("2.4.1+rocm6", {"hip"})
    (tmp_path / "torch/version.py").write_text("nothing")
    assert known.installed() is None
