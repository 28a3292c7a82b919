"""Why an accelerator is not available: in each case the reason that is true, and what would help."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from learner.devices import builds, detection, inventory
from learner.devices.builds import AMD_ON_WINDOWS, Card
from learner.devices.capabilities import DeviceError
from learner.devices.detection import directml_advice, directml_obstacles, missing, resolve
from learner.devices.known import AMD, NVIDIA, VENDORS, gpus


class Machine:
    """What a test says of the machine; to begin with, a Windows with a DirectML that could be imported and no GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.set(platform="win32", python=(3, 12, 1), torch="2.4.1+cpu", installed=True, d3d12=False)
        self.build(cuda=None, hip=None)
        self.has()

    def set(
        self,
        platform: str | None = None,
        python: tuple[int, int, int] | None = None,
        torch: str | None = None,
        installed: bool | None = None,
        d3d12: bool | None = None,
    ) -> None:
        if platform:
            self._patch.setattr(detection.sys, "platform", platform)
        if python:
            self._patch.setattr(detection.sys, "version_info", python)
            self._patch.setattr(detection.platform, "python_version", lambda: ".".join(map(str, python)))
        if torch:
            self._patch.setattr(detection.torch, "__version__", torch)
        if installed is not None:
            self._patch.setattr(detection.importlib.util, "find_spec", lambda name: object() if installed else None)
        if d3d12 is not None:
            self._patch.setattr(detection, "has_d3d12", lambda: d3d12)

    def build(self, cuda: str | None, hip: str | None, works: bool = False) -> None:
        self._patch.setattr(torch.version, "cuda", cuda)
        self._patch.setattr(torch.version, "hip", hip)
        self._patch.setattr(torch.cuda, "is_available", lambda: works)
        self._patch.setattr(detection, "without_kernels", lambda index: "")

    def has(self, *makers: str) -> None:
        """Of GPUs; of NVIDIA one whose driver works, of AMD one that the kernel knows of."""
        ids = [vendor for vendor, name in VENDORS.items() if name in makers]
        cards = (Card((580, 65), (8, 9)),) if NVIDIA in makers else ()
        self._patch.setattr(builds, "adapters", lambda root=None: [f"{vendor}:1" for vendor in ids])
        here = builds.Machine(sys.platform, cards, tuple(builds.adapters()), kfd=AMD in makers)
        self._patch.setattr(builds, "look", lambda: here._replace(system=sys.platform))

    def imports(self, available: bool, error: Exception | None = None) -> None:
        """What becomes of `import torch_directml`."""
        module = ModuleType("torch_directml")
        module.is_available = lambda: available  # type: ignore[attr-defined]
        module.device_count = lambda: 1  # type: ignore[attr-defined]
        module.device = lambda index: torch.device("privateuseone", index)  # type: ignore[attr-defined]
        self._patch.setitem(sys.modules, "torch_directml", module)
        if error:
            self._patch.setitem(sys.modules, "torch_directml", None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_directml_is_not_imported_while_anything_speaks_against_it(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "_try_directml", lambda: pytest.fail("imported"))
    machine.set(installed=False)
    assert missing("directml").startswith("torch-directml is not installed: ") and '[directml]"' in missing("directml")
    machine.set(installed=True, python=(3, 13, 2))
    assert "above 3.12, and this is 3.13.2" in missing("directml")
    machine.set(python=(3, 12, 0), torch="2.13.0")
    assert missing("directml") == "torch-directml is installed, but it works only with torch 2.4.1, and this is 2.13.0"
    machine.set(platform="linux", torch="2.4.1")
    assert missing("directml") == ("torch-directml is installed, but libd3d12.so is missing, so this is neither Windows nor WSL2")
    machine.set(installed=False, python=(3, 13, 2))
    for part in ("not installed", "libd3d12.so is missing", "above 3.12"):
        assert part in missing("directml"), "everything that would have to change is said at once"
    assert "\n" not in missing("directml")


@pytest.mark.skipif(sys.platform != "linux", reason="WSL2 is a Linux")
def test_wsl2_is_no_obstacle(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.set(platform="linux", d3d12=True)
    assert directml_obstacles() == ""
    monkeypatch.undo()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    before = detection.has_d3d12()
    (tmp_path / "libd3d12.so").touch()
    assert detection.has_d3d12() and not before


def test_a_directml_that_imports_needs_an_adapter_too(machine: Machine) -> None:
    machine.imports(available=False)
    assert missing("directml") == "torch-directml is installed, but finds no adapter with DirectX 12"
    machine.imports(available=True)
    assert missing("directml") == ""
    machine.imports(available=True, error=OSError())
    assert missing("directml").startswith("it cannot be used: ModuleNotFoundError: ")


def test_directml_is_taken_where_nothing_else_is_there_and_told_by_its_index(machine: Machine) -> None:
    machine.imports(available=True)
    if any(not missing(kind) for kind in ("xpu", "mps")):
        pytest.skip("there is another accelerator")
    assert resolve("auto") == resolve("directml") == torch.device("privateuseone", 0)
    with pytest.raises(DeviceError, match="the last one is directml:0"):
        resolve("directml:1")


def test_a_gpu_that_this_torch_cannot_use_is_named_with_what_would_help(machine: Machine) -> None:
    machine.set(platform="linux", torch="2.13.0+cpu")
    machine.has(NVIDIA)
    assert missing("cuda").startswith("there is an NVIDIA GPU, but this torch (2.13.0+cpu) has no CUDA: ")
    assert missing("cuda").endswith("pip install torch==2.13.0+cu130 --extra-index-url https://download.pytorch.org/whl/cu130")
    machine.build(cuda="13.0", hip=None)
    assert "nvidia-smi" in missing("cuda"), "the right build is there: it is not advised again"
    machine.build(cuda="12.6", hip=None)
    assert "torch==2.13.0+cu130" in missing("cuda")
    machine.has()
    assert missing("cuda") == "no NVIDIA GPU is seen"
    machine.has(AMD)
    assert missing("cuda") == detection.missing_rocm() and "torch==2.13.0+rocm7.2" in missing("cuda")
    machine.build(cuda=None, hip="7.2")
    assert "rocminfo" in missing("cuda")
    machine.set(platform="win32")
    machine.build(cuda=None, hip=None)
    assert AMD_ON_WINDOWS in missing("cuda")


def test_a_rocm_torch_has_cuda_for_a_device_and_no_cuda(machine: Machine) -> None:
    machine.has(AMD)
    machine.build(cuda=None, hip="7.2", works=True)
    assert missing("cuda") == detection.missing_rocm() == "" and detection.missing_cuda() != ""


def test_rocm_is_advised_before_directml_unless_torch_has_a_gpu(machine: Machine) -> None:
    assert directml_advice().endswith("windows.md"), "on Windows, whatever the GPU"
    machine.set(platform="linux")
    assert directml_advice() == "", "there is nothing to advise"
    machine.has(AMD)
    assert "torch==2.13.0+rocm7.2" in directml_advice()
    machine.set(d3d12=True)
    assert directml_advice().endswith("windows.md"), "on WSL2"
    machine.build(cuda=None, hip="7.2", works=True)
    assert directml_advice() == "", "it is there already"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_gpus_are_found_without_torch_whatever_drives_them(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("Windows has a registry for that")
    assert gpus(tmp_path) == set()
    put(tmp_path / "sys/bus/pci/devices/0/vendor", "0x10de")
    put(tmp_path / "sys/bus/pci/devices/0/class", "0x040300")  # its sound
    put(tmp_path / "sys/bus/pci/devices/1/vendor", "0x8086")
    put(tmp_path / "sys/bus/pci/devices/1/class", "0x030000")
    assert gpus(tmp_path) == set(), "a network card or a sound card is no GPU, and Intel's say nothing here"
    put(tmp_path / "sys/bus/pci/devices/0/class", "0x030200")
    assert gpus(tmp_path) == {NVIDIA}
    put(tmp_path / "sys/class/drm/card1/device/vendor", "0x1002")
    assert gpus(tmp_path) == {NVIDIA, AMD}


@pytest.mark.parametrize("path", ["proc/driver/nvidia/gpus/0000:00:05.0/information", "usr/lib/wsl/lib/nvidia-smi"])
def test_a_gpu_that_only_its_driver_knows_of_is_found(tmp_path: Path, path: str) -> None:
    put(tmp_path / path, "")
    assert gpus(tmp_path) == ({NVIDIA} if sys.platform != "win32" else gpus())


class Key:
    """An open key of a registry."""

    def __init__(self, value: str | None) -> None:
        self.value = value

    def __enter__(self) -> Key:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_windows_adapters_are_read_from_its_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"0000": "PCI\\VEN_1002&DEV_73BF", "0001": "ROOT\\BasicDisplay", "Properties": None}

    def open_key(parent: object, name: str) -> Key:
        if name in keys and keys[name] is None:
            raise PermissionError(name)
        return Key(keys.get(name, "the adapters"))

    registry = ModuleType("winreg")
    registry.HKEY_LOCAL_MACHINE = object()  # type: ignore[attr-defined]
    registry.OpenKey = open_key  # type: ignore[attr-defined]
    registry.QueryInfoKey = lambda key: (len(keys), 0, 0)  # type: ignore[attr-defined]
    registry.EnumKey = lambda key, number: list(keys)[number]  # type: ignore[attr-defined]
    registry.QueryValueEx = lambda key, name: (key.value, 1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(detection.sys, "platform", "win32")
    assert gpus() == {AMD}


def test_the_inventory_has_a_row_for_every_kind_and_says_what_auto_means(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.imports(available=True)
    monkeypatch.setattr(detection.sys, "platform", "linux")
    found = inventory.inventory()
    rows = {row["kind"]: row for row in found["kinds"]}  # type: ignore[attr-defined]
    assert list(rows) == ["cuda", "rocm", "xpu", "mps", "directml", "cpu"]
    assert rows["cuda"]["missing"] and not rows["cuda"]["name"]
    cpu = rows["cpu"]
    assert cpu["missing"] == "" and "float32" in cpu["precision"] and "fused optimiser" in cpu["can"] and not cpu["memory"]
    assert "no pinned memory" in cpu["can"]
    assert found["auto"] == str(resolve("auto"))


def test_a_card_that_this_torch_has_no_kernels_for_is_listed_with_that_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.set(platform="linux")
    machine.has(NVIDIA)
    machine.build(cuda="13.2", hip=None, works=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(detection, "without_kernels", lambda index: f"no kernels for card {index}")
    rows = {row["kind"]: row for row in inventory.inventory()["kinds"]}  # type: ignore[attr-defined]
    assert rows["cuda"]["missing"] == "no kernels for card 0" and not rows["cuda"]["name"]


def test_directml_is_listed_without_an_import_beside_another_accelerator(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "_try_directml", lambda: pytest.fail("imported"))
    assert "not tried" in inventory.missing("directml", torch.device("cuda", 0))
    machine.set(installed=False)
    assert "not installed" in inventory.missing("directml", torch.device("cuda", 0))


def test_a_device_with_nothing_says_so_in_words() -> None:
    from learner.devices.capabilities import Capabilities

    lacks = "pinned memory, copies beside computing, graphs, torch.compile, several processes"
    assert inventory.abilities(Capabilities("bare")) == f"plain optimiser; no {lacks}"
