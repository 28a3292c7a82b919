"""Stacks rows of observations by index; and chooses who does it for images: torch, or the kernel of stack_kernel.py.

The kernel also dequantises. It is used only where it was tried at the start, gave torch's values bit for bit, and was faster.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from learner.devices.capabilities import backend, capabilities
from learner.networks.base import Body
from learner.networks.inputs import Kernel, KernelStacks, Plain
from transport.experience import ExperienceSpec

MOST_ITEMS = 1_024  # of the trial
WARM, ROUNDS, REPEATS = 3, 5, 20


def take_rows(window: Tensor, index: Tensor) -> Tensor:
    """Picks rows of each item's window: [B, W, *shape] by [B, K] -> [B, K, *shape]."""
    items, width = window.shape[:2]
    start = torch.arange(0, items * width, width, device=index.device)
    flat = (index + start[:, None]).reshape(-1)  # index_select copies whole rows: 15 times as fast as indexing by a pair
    return window.reshape(items * width, *window.shape[2:]).index_select(0, flat).reshape(*index.shape, *window.shape[2:])


def stack_windows(windows: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """Windows {name: [B, W, *shape]} by index [B, stack] into each -> {name: [B, stack, *shape]}."""
    return {name: take_rows(window, index) for name, window in windows.items()}


def stack_rows(rows: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """Rows {name: [R, *shape]} by index [..., stack] -> {name: [..., stack, *shape]}. It copies: stack few items at a time."""
    flat = index.reshape(-1)
    return {name: column.index_select(0, flat).reshape(*index.shape, *column.shape[1:]) for name, column in rows.items()}


def choose(
    modules: Iterable[nn.Module],
    spec: ExperienceSpec,
    items: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
    load: Callable[[], Kernel] | None = None,
    seconds: Callable[[Callable[[], object]], float] | None = None,
) -> str:
    """Tries the kernel on dummy observations of `items` items, and lets all bodies of these modules use it if it serves.

    Returns a line for the log; empty where there is nothing to choose: no images, or no kernels for this device. `load` imports
    the kernel, `seconds` measures what a call takes.
    """
    bodies = [body for module in modules for body in module.modules() if isinstance(body, Body) and body.inputs.images]
    if not bodies or not capabilities(device).triton:
        return ""
    body, (rows, index, plain) = bodies[0], _example(bodies[0], spec, min(items, MOST_ITEMS), device)
    with torch.no_grad(), autocast(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton warns of its own defaults
        dtype = body.inputs.image_dtype(device)
        what, otherwise = f"frame stacks in {str(dtype).removeprefix('torch.')}", "torch makes them"

        def by_torch() -> Mapping[str, Tensor]:
            return body.read_images(plain(rows, index))

        try:
            kernel = KernelStacks((load or _load)(), body.inputs, device, dtype, body.memory_format)

            def by_kernel() -> Mapping[str, Tensor]:
                return kernel(rows, index)

            if not _equal(by_torch(), by_kernel(), body.memory_format):
                return f"{what}: the kernel's values are not torch's; {otherwise}"
            measure = seconds or (lambda action: _seconds(action, device))
            slow, fast = measure(by_torch), measure(by_kernel)
        except Exception as error:  # of Triton, of its compilers, of the device: nothing of it may stop a run
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            return f"{what}: the kernel fails ({reason}); {otherwise}"
    if fast < slow:
        for each in bodies:
            each.inputs.kernel = kernel
        otherwise = "the kernel makes them"
    return f"{what}: {1e6 * slow:,.0f} µs by torch, {1e6 * fast:,.0f} µs by one kernel; {otherwise}"


def _load() -> Kernel:
    from learner.networks.stack_kernel import stack

    return stack


def _example(body: Body, spec: ExperienceSpec, items: int, device: torch.device) -> tuple[dict[str, Tensor], Tensor, Plain]:
    """Images and an index as the update of such a spec has them, and how torch stacks them. Draws from a generator of its own."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(below: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randint(0, below, shape, dtype=dtype, device=device, generator=generator)

    windows = spec.unit == "transitions"
    each = spec.stack + spec.n_step
    leading = (items, each) if windows else (items * each,)
    rows = {field.name: draw(256, (*leading, *field.shape), torch.uint8) for field in body.inputs.images}
    return rows, draw(leading[-1], (items, spec.stack), torch.int64), stack_windows if windows else stack_rows


def _equal(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], memory_format: torch.memory_format) -> bool:
    return all(
        torch.equal(value, found[name])
        and value.dtype == found[name].dtype
        and found[name].is_contiguous(memory_format=memory_format)
        for name, value in expected.items()
    )


def _seconds(action: Callable[[], object], device: torch.device) -> float:
    """Seconds per call with a full device queue: the minimum over some rounds."""
    wait = backend(device).synchronize
    for _ in range(WARM):
        action()
    found = []
    for _ in range(ROUNDS):
        wait()
        begun = time.perf_counter()
        for _ in range(REPEATS):
            action()
        wait()
        found.append((time.perf_counter() - begun) / REPEATS)
    return min(found)
