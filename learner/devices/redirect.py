"""Runs scripts written for CUDA on another device: `python -m learner.devices.redirect [--device NAME] SCRIPT [ARGS…]`.

Within `redirected(device)` every mention of cuda means `device`: `.cuda()`, `.to("cuda:1")`, `.to(0)`, `device="cuda"`,
`torch.device("cuda")`, `torch.set_default_device("cuda")`, for modules as for tensors, and `torch.load` of what was saved from a
GPU or with such a map_location. `Tensor.is_cuda` is True for tensors on `device`. Where `device` has no pinned memory, pinning
does nothing and `non_blocking` is dropped. Other devices are unchanged. It is a torch function mode and does not modify torch; it
adds about a microsecond to every operation.

A script that is run by this module also gets answers from `torch.cuda` (learner/devices/answers.py): is_available() is True,
synchronize, streams, events, memory figures and device names are those of `device`, and autocast("cuda") and gradient scalers do
what it supports.

Not redirected, because a function mode does not see it:
- torch.Generator(device="cuda"), torch.Tensor(…, device="cuda"), torch.cuda.FloatTensor and .type("torch.cuda.FloatTensor")
  raise.
- C++ and CUDA extensions; other threads, since a mode belongs to one thread; child processes of the script.
"""

from __future__ import annotations

import argparse
import re
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from learner.devices.answers import answering
from learner.devices.capabilities import DeviceError, capabilities
from learner.devices.detection import resolve

CUDA = re.compile(r"cuda(:\d+)?")
PACKAGE_PRIORITY = 15  # in torch.serialization's registry: after the CPU's, before CUDA's
IS_CUDA = Tensor.is_cuda.__get__  # type: ignore[attr-defined]
BY_POSITION = frozenset(
    {Tensor.to, torch._C._nn._parse_to}
)  # their first argument may be a device; elsewhere a string may mean anything
MENTIONING = BY_POSITION | {torch.device, IS_CUDA, Tensor.cuda, Tensor.pin_memory}
NAMED = frozenset({"device", "non_blocking", "pin_memory"})  # keyword arguments
_entered = threading.local()  # .modes: the active modes of this thread, the innermost last


class redirected(TorchFunctionMode):  # noqa: N801  # a context manager, named as torch names its own
    """Within the block and on this thread, cuda means another device. The innermost block decides."""

    def __init__(self, device: torch.device) -> None:
        """`device` may be any device, cpu and meta included."""
        super().__init__()
        self.device = device
        self._pins = device.type != "meta" and capabilities(device).pinned_memory

    def __enter__(self) -> redirected:
        _register_loader()
        super().__enter__()
        _modes().append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _modes().remove(self)
        super().__exit__(kind, error, trace)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls `func`, with other arguments if these may mention cuda. Every operation passes here: the usual case is first."""
        if func not in MENTIONING and (not kwargs or NAMED.isdisjoint(kwargs)) or _entered.modes[-1] is not self:
            return func(*args, **(kwargs or {}))
        return self._redirect(func, args, kwargs or {})

    def _redirect(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if func is torch.device:
            return self.device if self._means_cuda([*args, *kwargs.values()][0]) else func(*args, **kwargs)
        if func == IS_CUDA:
            return self._holds(args[0])
        if func == Tensor.pin_memory and not self._pins:
            return args[0]
        if func == Tensor.cuda:
            func, args, kwargs = Tensor.to, *self._moved(*args, **kwargs)
        if func in BY_POSITION:
            args = [self._instead(value) for value in args[:2]] + [*args[2:]]
        if "device" in kwargs:
            kwargs = kwargs | {"device": self._instead(kwargs["device"])}
        if not self._pins:
            kwargs = kwargs | {name: False for name in ("non_blocking", "pin_memory") if name in kwargs}
        return func(*args, **kwargs)

    def _moved(
        self, tensor: Tensor, device: Any = None, non_blocking: bool = False, **options: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of Tensor.to for a call of Tensor.cuda."""
        return [tensor, self.device], {"non_blocking": non_blocking, **options}

    def _instead(self, value: Any) -> Any:
        return self.device if self._means_cuda(value) else value

    def _means_cuda(self, value: Any) -> bool:
        """`value` may be a torch.device, a string or an index."""
        if isinstance(value, torch.device):
            return value.type == "cuda"
        if isinstance(value, str):
            return CUDA.fullmatch(value) is not None
        return isinstance(value, int)  # a bare index means the accelerator

    def _holds(self, tensor: Tensor) -> bool:
        return tensor.device.type == self.device.type and self.device.index in (None, tensor.device.index)


def _modes() -> list[redirected]:
    """The active modes of this thread."""
    try:
        return _entered.modes  # type: ignore[no-any-return]
    except AttributeError:
        _entered.modes = []
        return _entered.modes


@cache
def _register_loader() -> None:
    """Registers with torch.load, which then places CUDA storages on the chosen device; it acts only within a block."""

    def place(storage: Any, location: str) -> Any:
        if not _modes() or not CUDA.fullmatch(location) or _modes()[-1].device.type == "cuda":
            return None
        return torch.serialization.default_restore_location(storage, str(_modes()[-1].device))

    torch.serialization.register_package(PACKAGE_PRIORITY, lambda storage: None, place)
    torch.get_device_module("cuda")  # torch keeps its first answer: within a block that would be the module of another device


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a script as python would, redirected. Returns 2 where the script or the device does not exist."""
    parser = argparse.ArgumentParser(
        prog="python -m learner.devices.redirect",
        description="Run a script that was written for CUDA on another device.",
        allow_abbrev=False,
    )
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto (default), cpu, cuda:N, xpu, mps or directml")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="arguments of the script")
    options = parser.parse_args(arguments)
    script = Path(options.script)
    if not script.is_file():
        print(f"headrace: there is no script {script}", file=sys.stderr)
        return 2
    try:
        device = resolve(options.device)
    except DeviceError as error:
        print(f"headrace: --device: {error}", file=sys.stderr)
        return 2
    print(f"headrace: {script.name} on {device} ({capabilities(device).name})", file=sys.stderr)
    sys.argv = [options.script, *options.arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(script.resolve().parent)
    with redirected(device), answering(device):
        runpy.run_path(options.script, run_name="__main__")
    return 0


if __name__ == "__main__":
    from learner.devices import redirect  # not __main__: the script may import this module, too

    sys.exit(redirect.main())
