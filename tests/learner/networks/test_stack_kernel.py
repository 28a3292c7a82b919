"""The Triton kernel: on a GPU, or without one under Triton's interpreter; and whether it compiles for cards that are not here.

pip install triton
TRITON_INTERPRET=1 python -m pytest -q -p no:cacheprovider --noconftest tests/learner/networks/test_stack_kernel.py
python -m pytest -q -p no:cacheprovider --noconftest tests/learner/networks/test_stack_kernel.py -k compiles
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from learner.algorithms.dqn.config import DqnConfig
from learner.config import LearnerConfig
from learner.devices import capabilities as devices
from learner.networks.inputs import KernelStacks
from learner.networks.stacks import choose, stack_rows, stack_windows
from learner.updates.trees import mapped
from tests.learner.examples import CPU, image, make_batch, make_observation, make_spec, make_update, vector
from transport.experience import Column, observed

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed: `pip install triton` (999 MB)", allow_module_level=True)

TRITON = tuple(map(int, importlib.metadata.version("triton").split(".")[:2]))
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = CPU if INTERPRETED else torch.device("cuda", 0)
runs = pytest.mark.skipif(
    not INTERPRETED and not torch.cuda.is_available(),
    reason="there is no GPU: TRITON_INTERPRET=1 runs Triton's interpreter",
)
NVIDIA = [("cuda", generation, 32) for generation in (75, 80, 90, 120)]  # Turing, Ampere, Hopper, Blackwell
AMD = [("hip", "gfx90a", 64), ("hip", "gfx942", 64), ("hip", "gfx1100", 32), ("hip", "gfx1201", 32)]  # MI200, MI300, RDNA 3 and 4
TYPES = [torch.float32, torch.bfloat16, torch.float16]
FORMATS = [torch.contiguous_format, torch.channels_last]
FIELDS = {
    "grey": image(shape=(9, 7)),
    "colour": image(shape=(3, 5, 4)),
    "one pixel": image(shape=(1, 1, 1)),
    "unscaled": observed("image", (2, 6, 6), "|u1"),
    "shifted": observed("image", (6, 6), "|u1", 0.02, -2.5),
}


def body(field: Column, stack: int, memory_format: torch.memory_format, dtype: torch.dtype) -> Any:
    """A network's body on the device, and the images that the kernel makes for it."""
    spec = make_spec(field, vector(), stack=stack, n_step=3)
    made = make_update(spec, DqnConfig(hidden=8), LearnerConfig(device="cpu", precision="float32")).policy.body
    made.to(DEVICE, memory_format=memory_format)
    from learner.networks.stack_kernel import stack as kernel

    return made, KernelStacks(kernel, made.inputs, DEVICE, dtype, memory_format)


def taking(*seconds: float) -> Callable[[Callable[[], object]], float]:
    """A clock: the seconds of one measurement after the other."""
    left = list(seconds)
    return lambda action: left.pop(0)


@runs
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", FIELDS)
def test_the_kernel_gives_torchs_values_bit_for_bit(name: str, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    for stack in (1, 3, 4):
        made, kernel = body(FIELDS[name], stack, memory_format, dtype)
        windows = {key: rows.to(DEVICE) for key, rows in make_observation([FIELDS[name]], (5, stack + 3)).items()}
        index = torch.randint(stack + 3, (5, stack), device=DEVICE)
        with torch.autocast(DEVICE.type, dtype=dtype, enabled=dtype != torch.float32):
            expected = made.read_images(stack_windows(windows, index))["image"]
        assert expected.dtype == dtype
        rows = {key: value.flatten(0, 1) for key, value in windows.items()}
        flat = index + (stack + 3) * torch.arange(5, device=DEVICE)[:, None]
        for found in (kernel(windows, index)["image"], kernel(rows, flat)["image"]):
            assert torch.equal(found, expected) and found.dtype == dtype
            assert found.is_contiguous(memory_format=memory_format)


@runs
def test_every_stored_value_and_the_edges_of_a_large_image_are_right() -> None:
    made, kernel = body(image(shape=(84, 84)), 4, torch.channels_last, torch.bfloat16)
    windows = torch.arange(2 * 7 * 84 * 84, device=DEVICE).remainder(251).to(torch.uint8).reshape(2, 7, 84, 84)
    windows[:, :, 0, :] = 255 - torch.arange(84, device=DEVICE, dtype=torch.uint8)
    windows[:, :, -1, :] = torch.arange(84, device=DEVICE, dtype=torch.uint8)
    index = torch.tensor([[0, 0, 0, 1], [3, 4, 5, 6]], device=DEVICE)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        expected = made.read_images(stack_windows({"image": windows}, index))["image"]
    assert torch.equal(kernel({"image": windows}, index)["image"], expected)


@runs
def test_a_window_that_is_no_whole_piece_of_memory_is_read_right() -> None:
    made, kernel = body(image(shape=(9, 7)), 2, torch.contiguous_format, torch.float32)
    wide = make_observation([image(shape=(9, 7))], (10, 6))["image"].to(DEVICE)
    windows, index = wide[1::2, 1:], torch.randint(5, (5, 4), device=DEVICE)[:, ::2]
    expected = made.read_images(stack_windows({"image": windows}, index))["image"]
    assert torch.equal(kernel({"image": windows}, index)["image"], expected)
    rows = wide.flatten(0, 1)[3:]
    assert torch.equal(kernel({"image": rows}, index)["image"], made.read_images(stack_rows({"image": rows}, index))["image"])


@runs
def test_updates_by_the_kernel_are_those_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    able = replace(devices.capabilities(DEVICE), triton=True)
    monkeypatch.setitem(devices.TABLE, DEVICE.type, lambda device: able)
    spec = make_spec(image(shape=(2, 8, 8)), vector(), stack=2, n_step=2)
    weights = []
    for fast in (1.0, 0.1):  # seconds: what torch takes is 0.5
        torch.manual_seed(0)
        update = make_update(
            spec, DqnConfig(hidden=16, n_step=2), LearnerConfig(precision="float32", batch_size=12), device=DEVICE
        )
        modules, autocast = update.modules.values(), update.optimiser.autocast
        said = choose(modules, spec, 12, DEVICE, autocast, seconds=taking(0.5, fast))
        assert said.endswith("the kernel makes them" if fast < 0.5 else "torch makes them"), said
        for _ in range(2):
            update.update(mapped(lambda value: value.to(DEVICE), make_batch(spec, 12)))
        weights.append(update.policy.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.skipif(TRITON < (3, 3), reason="this Triton neither knows Blackwell nor links for AMD by itself")
@pytest.mark.slow
@pytest.mark.parametrize("target", NVIDIA + AMD, ids=str)
@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp16"])
def test_the_kernel_compiles_for_cards_that_are_not_here(target: tuple[Any, ...], kind: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from learner.networks.stack_kernel import _stack

    constants = {
        "STACK": 4,
        "CHANNELS": 1,
        "PIXELS": 7056,
        "PIXEL_STRIDE": 4,
        "CHANNEL_STRIDE": 1,
        "TILE_PIXELS": 512,
        "TILE_CHANNELS": 4,
    }
    given = {"rows": "*u8", "index": "*i64", "table": f"*{kind}", "out": f"*{kind}", "window_rows": "i32"}
    source = ASTSource(_stack, given | dict.fromkeys(constants, "constexpr"), constants)
    assert triton.compile(source, target=GPUTarget(*target)).asm
