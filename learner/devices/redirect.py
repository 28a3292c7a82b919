"""Code that was written for CUDA, on another device: `python -m learner.devices.redirect [--device NAME] SCRIPT [ARGS…]`.

Within `redirected(device)` whatever says cuda in words means `device`: `.cuda()`, `.to("cuda:1")`, `.to(0)`, `device="cuda"`,
`torch.device("cuda")`, `torch.set_default_device("cuda")`, modules as well as tensors, `torch.load` of what was saved from a GPU
or with such a map_location. `Tensor.is_cuda` says whether a tensor is on `device`. Pinning does nothing, and `non_blocking` is
dropped, where `device` has no pinned memory. Other devices are left alone, and so is torch: this is a torch function mode. It
adds about a microsecond to every operation.

What a mode does not see goes its own way:
- torch.cuda.is_available() is still False without a GPU, so a script that asks it takes its own way to the CPU; manual_seed and
  empty_cache do nothing there, and the rest of torch.cuda raises (synchronize, Stream, Event, device, FloatTensor).
- torch.Generator(device="cuda"), torch.Tensor(…, device="cuda") and .type("torch.cuda.FloatTensor") raise.
- autocast("cuda") and GradScaler("cuda") turn themselves off with a warning where there is no GPU; autocast(device.type), of a
  tensor's device or of torch.device("cuda"), does what the chosen device can.
- C++ and CUDA extensions; other threads, since modes belong to a thread; processes that the script spawns.
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

from learner.devices.capabilities import DeviceError, capabilities, resolve

CUDA = re.compile(r"cuda(:\d+)?")
PACKAGE_PRIORITY = 15  # among those that place what torch.load reads: after the CPU's, before CUDA's
IS_CUDA = Tensor.is_cuda.__get__  # type: ignore[attr-defined]
BY_POSITION = frozenset({Tensor.to, torch._C._nn._parse_to})  # take a device first; elsewhere a word may mean anything
SAYING = BY_POSITION | {torch.device, IS_CUDA, Tensor.cuda, Tensor.pin_memory}
NAMED = frozenset({"device", "non_blocking", "pin_memory"})  # arguments by name
_entered = threading.local()  # .modes: those of this thread, the innermost last


class redirected(TorchFunctionMode):  # noqa: N801  # a context that reads like a word, as torch's own do
    """Within, on this thread, what says cuda means another device. The innermost decides."""

    def __init__(self, device: torch.device) -> None:
        """The device to use instead, cpu and meta included."""
        super().__init__()
        self.device = device
        self._pins = device.type != "meta" and capabilities(device).pinned_memory

    def __enter__(self) -> redirected:
        """Begins."""
        _place_what_is_loaded()
        super().__enter__()
        _modes().append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends, also by an exception, which goes on."""
        _modes().remove(self)
        super().__exit__(kind, error, trace)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls `func`, otherwise if it may say cuda. Every operation comes through here, so what is usual is decided first."""
        if func not in SAYING and (not kwargs or NAMED.isdisjoint(kwargs)) or _entered.modes[-1] is not self:
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
        """The arguments of Tensor.to that do what Tensor.cuda was to."""
        return [tensor, self.device], {"non_blocking": non_blocking, **options}

    def _instead(self, value: Any) -> Any:
        return self.device if self._means_cuda(value) else value

    def _means_cuda(self, value: Any) -> bool:
        """Of what may be a device: a torch.device, a word or a number."""
        if isinstance(value, torch.device):
            return value.type == "cuda"
        if isinstance(value, str):
            return CUDA.fullmatch(value) is not None
        return isinstance(value, int)  # a bare number is one of the accelerator's

    def _holds(self, tensor: Tensor) -> bool:
        return tensor.device.type == self.device.type and self.device.index in (None, tensor.device.index)


def _modes() -> list[redirected]:
    """Those entered on this thread."""
    try:
        return _entered.modes  # type: ignore[no-any-return]
    except AttributeError:
        _entered.modes = []
        return _entered.modes


@cache
def _place_what_is_loaded() -> None:
    """Takes part, by torch's own registry, in placing storages that torch.load reads: for good, but only within a context."""

    def place(storage: Any, location: str) -> Any:
        if not _modes() or not CUDA.fullmatch(location) or _modes()[-1].device.type == "cuda":
            return None
        return torch.serialization.default_restore_location(storage, str(_modes()[-1].device))

    torch.serialization.register_package(PACKAGE_PRIORITY, lambda storage: None, place)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a script as python would, redirected. 2 where there is no such script or device; otherwise as the script ends."""
    parser = argparse.ArgumentParser(
        prog="python -m learner.devices.redirect",
        description="Run a script that was written for CUDA on another device.",
        allow_abbrev=False,
    )
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto (default), cpu, cuda:N, xpu, mps or directml")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="what it is given")
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
    with redirected(device):
        runpy.run_path(options.script, run_name="__main__")
    return 0


if __name__ == "__main__":
    from learner.devices import redirect  # the script may import it too, and there is but one

    sys.exit(redirect.main())
