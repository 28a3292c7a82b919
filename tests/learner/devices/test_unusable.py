"""An accelerator whose driver or library raises, at any call: it is unusable for that reason, and the next one is taken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from learner.devices import detection, inventory
from learner.devices.capabilities import DeviceError, capabilities
from learner.devices.detection import resolve
from learner.probe import probe

ERRORS = [RuntimeError("unknown error\nin two lines"), OSError(1114, "a DLL failed"), ImportError("no library"), KeyError()]
CARD = SimpleNamespace(gcnArchName="gfx1100:sramecc+")
CALLS = {
    "cuda": ["is_available", "get_arch_list", "get_device_capability", "device_count", "get_device_name"],
    "rocm": ["is_available", "get_arch_list", "get_device_properties", "device_count", "get_device_name"],
    "xpu": ["is_available", "device_count", "get_device_name"],
    "mps": ["is_available", "device_count"],
    "directml": ["import", "is_available", "device_count", "device"],
}
TABLE = [(kind, call) for kind, calls in CALLS.items() for call in calls]


def backends(patch: pytest.MonkeyPatch, kind: str) -> dict[str, list[object]]:
    """A machine on which only this kind works. Returns where each of its calls is found."""
    for other in (torch.cuda, torch.xpu, torch.backends.mps):
        patch.setattr(other, "is_available", lambda: False)
    patch.setattr(torch.version, "hip", "7.2" if kind == "rocm" else None)
    patch.setattr(torch.version, "cuda", "13.0" if kind == "cuda" else None)
    patch.setattr(detection, "directml_obstacles", lambda: "" if kind == "directml" else "torch-directml is not installed")
    where = {"cuda": [torch.cuda], "rocm": [torch.cuda], "xpu": [torch.xpu], "mps": [torch.backends.mps, torch.mps]}.get(kind)
    if where is None:
        module = ModuleType("torch_directml")
        patch.setitem(sys.modules, "torch_directml", module)
        where = [module]
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "device": lambda index: torch.device("privateuseone", index),
        "get_arch_list": lambda: ["gfx1100"] if kind == "rocm" else ["sm_86"],
        "get_device_capability": lambda device=0: (8, 6),
        "get_device_properties": lambda device=0: CARD,
        "get_device_name": lambda device=0: "a card",
        "mem_get_info": lambda device=0: (1, 2),
    }
    for name, answer in answers.items():
        for place in where:
            if hasattr(place, name) or place.__name__ == "torch_directml":  # type: ignore[attr-defined]
                patch.setattr(place, name, answer, raising=False)
    return {name: [place for place in where if hasattr(place, name)] for name in answers}


def raiser(error: Exception) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call


@pytest.mark.parametrize("kind", CALLS)
def test_a_kind_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    backends(monkeypatch, kind)
    name = "cuda" if kind == "rocm" else kind
    assert resolve("auto") == resolve(name) != torch.device("cpu")
    rows = {row["kind"]: row for row in inventory.inventory()["kinds"]}  # type: ignore[attr-defined]
    assert [row for row, found in rows.items() if not found["missing"]] == [kind, "cpu"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("kind", "call"), TABLE)
def test_one_that_raises_is_unusable_for_that_reason_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: str, call: str, error: Exception
) -> None:
    places = backends(monkeypatch, kind)
    if call == "import":
        monkeypatch.setattr(detection, "_try_directml", raiser(error))
    for place in places.get(call, []):
        monkeypatch.setattr(place, call, raiser(error))
    assert resolve("auto") == torch.device("cpu")
    assert probe("auto", "auto", 1)["device"] == "cpu"
    with pytest.raises(DeviceError, match=f"is not available: .*{type(error).__name__}: ") as refused:
        resolve("cuda" if kind == "rocm" else kind)
    assert "\n" not in str(refused.value)
    found = inventory.inventory()
    rows = {row["kind"]: row for row in found["kinds"]}  # type: ignore[attr-defined]
    assert rows[kind]["missing"] and "\n" not in rows[kind]["missing"] and rows["cpu"]["name"] == "CPU"


@pytest.mark.skipif(not hasattr(torch.xpu, "mem_get_info"), reason="torch 2.4 has no figures of it")
def test_an_intel_gpu_that_does_not_tell_its_free_memory_is_used_without_that_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    backends(monkeypatch, "xpu")
    assert capabilities(resolve("xpu")).memory_figures
    monkeypatch.setattr(torch.xpu, "mem_get_info", raiser(RuntimeError("The device doesn't support querying the free memory")))
    assert not capabilities(resolve("xpu")).memory_figures
