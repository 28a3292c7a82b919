from __future__ import annotations

import importlib.util
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from learner.devices import capabilities as devices
from learner.devices import detection as finding
from learner.devices.capabilities import (
    TABLE,
    Capabilities,
    DeviceError,
    capabilities,
    computed_in,
    precision,
    set_up,
)
from learner.devices.detection import resolve
from learner.updates.base import Loss
from learner.updates.compile import compile_loss

CPU = torch.device("cpu")


def test_auto_is_a_device_that_works_and_cpu_is_always_there() -> None:
    device = resolve("auto")
    assert float(torch.ones(3, device=device).sum()) == 3.0
    assert resolve("cpu") == CPU


def test_auto_takes_the_first_kind_that_is_not_missing_and_looks_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def missing(kind: str) -> str:
        asked.append(kind)
        return "" if kind == here else "gone"

    monkeypatch.setattr(finding, "missing", missing)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    here = "mps"
    assert resolve("auto") == torch.device("mps", 0)
    assert asked == ["cuda", "xpu", "mps"], "DirectML is not asked for, which would be an import"
    here = "none"
    asked.clear()
    assert resolve("auto") == CPU and asked == ["cuda", "xpu", "mps", "directml"]


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "xpu", "mps", "directml"])
def test_an_absent_device_is_refused_in_one_line_that_says_what_is_missing(name: str) -> None:
    if not finding.missing(name.partition(":")[0]):
        pytest.skip(f"{name} is here")
    with pytest.raises(DeviceError, match=f"device {name} is not available: .+") as refusal:
        resolve(name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "cuda:-1", ""])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(DeviceError, match="use auto, cpu, cuda"):
        resolve(name)


def test_a_card_past_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "missing", lambda kind: "")
    monkeypatch.setattr(finding, "without_kernels", lambda index: "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setitem(TABLE, "cuda", lambda device: Capabilities("a card"))
    assert resolve("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(DeviceError, match="the last one is cuda:1"):
        resolve("cuda:2")


@pytest.mark.parametrize(("native", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_a_cpu_computes_convolutions_in_bfloat16_where_it_has_the_instructions(
    monkeypatch: pytest.MonkeyPatch, native: bool, expected: str
) -> None:
    monkeypatch.setattr(devices, "_multiplies_bfloat16", lambda: native)
    assert precision("auto", CPU, convolutions=True) == expected
    assert precision("auto", CPU) == "float32"
    assert precision("float32", CPU, convolutions=True) == "float32"


def test_the_cpu_computes_in_float32_unless_asked_and_has_no_float16() -> None:
    assert precision("auto", CPU) == "float32"
    assert precision("bfloat16", CPU) == "bfloat16"
    with pytest.raises(DeviceError, match="use auto, or float32 or bfloat16"):
        precision("float16", CPU)


@pytest.mark.parametrize(
    ("generation", "rocm", "expected"),
    [
        ((9, 0), "", "bfloat16"),
        ((8, 6), "", "bfloat16"),
        ((7, 5), "", "float16"),
        ((6, 1), "", "float32"),
        ((9, 0), "gfx906:sramecc+:xnack-", "float16"),
        ((9, 0), "gfx90a:sramecc+:xnack-", "bfloat16"),
        ((9, 4), "gfx942:sramecc+:xnack-", "bfloat16"),
        ((10, 3), "gfx1030", "float16"),
        ((11, 0), "gfx1100", "bfloat16"),
    ],
)
def test_a_gpu_computes_in_what_its_generation_is_fast_at(
    monkeypatch: pytest.MonkeyPatch, generation: tuple[int, int], rocm: str, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=rocm))
    monkeypatch.setattr(torch.version, "hip", "7.2" if rocm else None)
    card = torch.device("cuda", 0)
    assert precision("auto", card, convolutions=True) == expected
    assert precision("auto", card) == "float32", "a network without convolutions is launched, not computed"
    assert capabilities(card).name == ("a card (ROCm 7.2)" if rocm else "a card")
    assert capabilities(card).narrow_kernels and not capabilities(CPU).narrow_kernels


def test_kernels_of_triton_run_where_it_is_installed_on_cards_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, object] = {}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(torch.version, "hip", None)
    answers = []
    for generation, installed in (((9, 0), True), ((9, 0), False), ((6, 1), True)):
        found.clear()
        found.update({"triton": "its spec"} if installed else {})
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, own=generation: own)
        answers.append(capabilities(torch.device("cuda", 0)).triton)
    assert answers == [True, False, False] and not capabilities(torch.device("cpu")).triton


BUILT = ["sm_75", "sm_80", "sm_86", "sm_90", "compute_120"]


@pytest.mark.parametrize(
    ("generation", "built", "fits"),
    [
        ((7, 5), BUILT, True),
        ((8, 9), BUILT, True),  # sm_86's programs run on it
        ((9, 0), BUILT, True),
        ((12, 1), BUILT, True),  # compiled for it at the first use
        ((6, 1), BUILT, False),
        ((7, 0), BUILT, False),
        ((10, 0), BUILT, False),  # no older generation's programs run on it
        ((6, 1), [], True),  # a torch that does not say
    ],
)
def test_a_card_that_this_torch_was_not_built_for_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, generation: tuple[int, int], built: list[str], fits: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: generation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a card")
    monkeypatch.setattr(torch.version, "hip", None)
    if fits:
        assert resolve("cuda:1") == torch.device("cuda", 1) and resolve("auto") == torch.device("cuda", 0)
        return
    with pytest.raises(DeviceError, match=r"has no kernels for a card \(sm_\d+\), only for sm_75.*--device cpu"):
        resolve("cuda:1")
    assert resolve("auto").type != "cuda"


def test_a_card_without_kernels_is_no_obstacle_to_another_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: BUILT)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: ((6, 1), (9, 0))[index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: ("an old card", "a new card")[index])
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setitem(TABLE, "cuda", lambda device: Capabilities("a card"))
    assert resolve("cuda:1") == torch.device("cuda", 1)
    for name in ("cuda", "cuda:0"):
        with pytest.raises(DeviceError, match=f"device {name} is not available: .* for an old card"):
            resolve(name)


@pytest.mark.parametrize(("own", "fits"), [("gfx1100", True), ("gfx90a:sramecc+:xnack-", True), ("gfx803", False)])
def test_an_amd_card_that_this_torch_was_not_built_for_is_refused(monkeypatch: pytest.MonkeyPatch, own: str, fits: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx90a", "gfx1100"])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(gcnArchName=own))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a card")
    monkeypatch.setattr(torch.version, "hip", "7.2")
    assert (finding.missing("cuda") == "") == fits


def test_what_is_computed_as_tf32_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for tf32, shown in ((True, "float32 (as TF32)"), (False, "float32")):
        able = Capabilities("a card", tensor_float32=tf32)
        monkeypatch.setitem(TABLE, "cuda", lambda device, able=able: able)  # type: ignore[misc]
        assert computed_in("float32", torch.device("cuda", 0)) == shown
        assert computed_in("bfloat16", torch.device("cuda", 0)) == "bfloat16"


def test_a_kind_that_is_not_known_has_what_every_one_has() -> None:
    able = capabilities(torch.device("meta"))
    assert able == devices.Capabilities("meta") and able.adam == "single" and able.precisions == ("float32",)


def test_a_process_gets_the_compute_threads_it_asked_for_also_when_set_up_twice() -> None:
    threads = torch.get_num_threads()
    try:
        for wanted in (1, 2):
            set_up(CPU, wanted)
            assert torch.get_num_threads() == wanted
        assert torch.get_num_interop_threads() == 1
    finally:
        torch.set_num_threads(threads)


def test_a_learner_makes_its_device_the_current_one_in_every_thread_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise streams, events and graphs would belong to the first device."""
    made: list[tuple[str, torch.device]] = []

    class Module:
        @staticmethod
        def set_device(device: torch.device) -> None:
            made.append((threading.current_thread().name, device))

    monkeypatch.setitem(TABLE, "cpu", lambda device: Capabilities("two of them", adam="fused", lerp=True, current=True))
    monkeypatch.setattr("learner.devices.capabilities.backend", lambda device: Module)
    device = torch.device("cpu", 1)
    set_up(device, 1)
    assert made == [("MainThread", device)]
    parameter = torch.nn.Parameter(torch.ones(2))

    class Optimiser:
        parameters, buffers = [parameter], list[torch.Tensor]()
        autocast = staticmethod(nullcontext)

    monkeypatch.setattr(torch, "compile", lambda loss, dynamic: loss)
    compile_loss(Optimiser(), lambda items: Loss(parameter.sum(), {}), (None,), lambda: True)  # type: ignore[arg-type]
    assert [name for name, _ in made] == ["MainThread", "compile"]
