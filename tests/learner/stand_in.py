"""A stand-in for DirectML on the CPU: it has DirectML's capabilities and refuses what DirectML has not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
import torch
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode

from learner.devices.capabilities import TABLE

OPERATIONS = ("aten::lerp", "aten::_foreach_", "aten::_fused_", "aten::_pin_memory", "aten::pin_memory", "aten::_amp_")
READ = "aten::_local_scalar_dense"


class Lacking(TorchDispatchMode):
    """Refuses operations; counts how often the host reads a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.name()
        if name.startswith(OPERATIONS):
            raise NotImplementedError(f"DirectML has no {name}")
        if (kwargs or {}).get("memory_format") == torch.channels_last:
            raise NotImplementedError(f"DirectML was asked for channels_last by {name}")
        self.reads += name == READ
        return operation(*args, **(kwargs or {}))


def _refuse(what: str) -> Any:
    def refused(*arguments: object, **options: object) -> NoReturn:
        raise NotImplementedError(f"DirectML has no {what}")

    return refused


@contextmanager
def like_directml() -> Iterator[Lacking]:
    """Within, the CPU is no better than DirectML."""
    with pytest.MonkeyPatch.context() as patch, Lacking() as lacking:
        patch.setitem(TABLE, "cpu", TABLE["privateuseone"])
        # torch itself believes that DirectML has multi-tensor kernels, and uses them by default.
        patch.setattr(_foreach_utils, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
        # So torch copies tensors whose memory it cannot see.
        patch.setattr(torch.Tensor, "__deepcopy__", lambda self, memo: memo.setdefault(id(self), self.detach().clone()))
        for module, name in (
            (torch, "autocast"),
            (torch.amp, "autocast"),
            (torch, "compile"),
            (torch.cuda, "Stream"),
            (torch.cuda, "Event"),
            (torch.Tensor, "pin_memory"),
            (torch.Tensor, "untyped_storage"),
            (torch.Tensor, "data_ptr"),
        ):
            patch.setattr(module, name, _refuse(name))
        yield lacking
