"""How much an operation has to do at the least: arithmetic of products, bytes read and written."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

CHOSEN = ("index_select", "gather", "index")  # these read only what they answer
WRITTEN = ("fill_", "zero_", "copy_")  # what they change they do not read


class Work(NamedTuple):
    """Of one call."""

    flops: float = 0.0  # of matrix products and convolutions; other arithmetic never binds
    precision: str = ""  # the type that these are computed in
    bytes: float = 0.0


def work(function: Any, arguments: tuple[Any, ...], named: dict[str, Any], answer: Any) -> Work:
    """Every argument is read once, every answer written once; what is changed in place is read and written."""
    packet = function.overloadpacket
    floats = [leaf.dtype for leaf in _tensors((arguments, named)) if leaf.is_floating_point()]
    flops = float(flop_registry[packet](*arguments, **named, out_val=answer)) if packet in flop_registry else 0.0
    name, given, answered = packet.__name__, _tensors((arguments, named)), _tensors(answer)
    if function._schema.is_mutable:
        changed = _changed(function, arguments, named)
        size = _bytes(given) + (0.0 if name in WRITTEN else _bytes(changed))
    elif name in CHOSEN:
        size = 2 * _bytes(answered) + _bytes([one for one in given if not one.is_floating_point()][-1:])
    else:
        size = _bytes(given) + _bytes(answered)
    return Work(flops, str(floats[0]).removeprefix("torch.") if flops else "", size)


def _changed(function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Tensor]:
    schema = function._schema.arguments
    by_name = dict(zip((each.name for each in schema), arguments, strict=False)) | named
    written = [each.name for each in schema if each.alias_info is not None and each.alias_info.is_write]
    return _tensors([by_name.get(name) for name in written if name != "grads"])  # Adam writes these only to undo a loss scale


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensors: list[Tensor]) -> float:
    """An expanded tensor is no larger than its memory."""
    return float(sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in tensors))
