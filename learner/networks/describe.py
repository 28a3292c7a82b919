"""Describes a policy's network: its tensors, and where possible the program by which numpy computes the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import Tensor, nn

from learner.description import Op, PolicyDescription, tensors_of
from learner.networks import parts
from learner.networks.base import Body, PolicyModule
from learner.networks.inputs import Inputs
from learner.networks.known.draft import inputs_op
from learner.networks.recurrent import Gru, Lstm
from learner.program.convolutions import CONVOLUTION, windows
from transport.experience import Column


class UnknownPart(Exception):
    """A module that numpy cannot compute; the text is its class."""


def describe(policy: nn.Module) -> PolicyDescription:
    """Inspects the module part by part."""
    tensors = tensors_of(policy)
    state = dict(policy.body.state) if isinstance(policy, PolicyModule) else {}
    try:
        return PolicyDescription(tensors, tuple(_policy(policy)), state)
    except UnknownPart as error:
        return PolicyDescription(tensors, None, state, str(error))


def _policy(policy: nn.Module) -> Iterator[Op]:
    _check(policy, PolicyModule)
    assert isinstance(policy, PolicyModule)
    body = policy.body
    _check(body, Body)
    torso = list(_torso(body.torso, body.inputs, "body.torso"))
    yield _inputs(body.inputs, [op.options["name"] for op in torso if op.kind == "image"])
    yield from torso
    if body.memory is not None:
        yield _memory(body.memory)
    yield from _chain(policy.head, "head")


def _check(module: nn.Module, *kinds: type[nn.Module]) -> None:
    """Raises UnknownPart unless the module is exactly of one of these classes: a subclass, or a module with hooks, may compute
    something else."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    if type(module) not in kinds or hooks or "forward" in vars(module):
        raise UnknownPart(f"{type(module).__module__}:{type(module).__qualname__}")


def _inputs(inputs: Inputs, as_images: Collection[str]) -> Op:
    """`as_images`: the images that the torso reads as such; it reads the others as vectors."""
    _check(inputs, Inputs)
    flat = [field.name for field in inputs.images if field.name not in as_images]
    if flat and inputs.normaliser is not None:
        raise UnknownPart(f"the image {flat[0]} beside vectors that are normalised")
    names = ("count", "mean", "variance") if inputs.normaliser is not None else ()
    return inputs_op(inputs, tuple(f"body.inputs.normaliser.{name}" for name in names), as_images)


def _torso(torso: nn.Module, inputs: Inputs, prefix: str) -> Iterator[Op]:
    """A module that takes a dict of inputs, or a Sequential that begins with one."""
    if type(torso) is nn.Sequential and len(torso):
        _check(torso, nn.Sequential)
        yield from _torso(torso[0], inputs, f"{prefix}.0")
        for number, part in enumerate(list(torso)[1:], 1):
            yield from _chain(part, f"{prefix}.{number}")
    elif type(torso) is parts.Fields:
        _check(torso, parts.Fields)
        images = {field.name: field for field in inputs.images}
        for number, (name, branch) in enumerate(zip(torso.names, torso.branches, strict=True)):
            within = f"{prefix}.branches.{number}"
            if name in images and any(isinstance(part, nn.Conv2d) for part in branch.modules()):
                yield Op("image", (), {"name": name})
                yield from _image(branch, within, inputs.shapes[name], images[name])
            else:
                yield Op("push", (), {"names": [name]})
                yield from _chain(branch, within)
        if len(torso.names) > 1:
            yield Op("concat", (), {"count": len(torso.names)})
    else:
        _check(torso, parts.Concat)
        yield Op("push", (), {"names": list(inputs.shapes)})


def _memory(memory: Any) -> Op:
    _check(memory, Lstm, Gru)
    _check(memory.rnn, nn.LSTM, nn.GRU)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return Op("lstm" if type(memory) is Lstm else "gru", tuple(f"body.memory.rnn.{name}_l0" for name in names))


def _chain(module: nn.Module, prefix: str) -> Iterator[Op]:
    """A module that takes a tensor."""
    _check(module, nn.Sequential, *KNOWN)
    if isinstance(module, nn.Sequential):
        for name, part in module.named_children():
            yield from _chain(part, f"{prefix}.{name}")
        return
    found = KNOWN[type(module)](module)
    if found is not None:
        yield _op(module, prefix, *found)


def _op(module: nn.Module, prefix: str, kind: str, options: dict[str, Any]) -> Op:
    own = [*module._parameters, *module._buffers]
    present = [name for name in own if isinstance(getattr(module, name), Tensor)]
    return Op(kind, tuple(f"{prefix}.{name}" for name in present), options)


def _image(branch: nn.Module, prefix: str, shape: tuple[int, ...], field: Column) -> Iterator[Op]:
    """A module that takes an image of this shape [C, H, W]: convolutions, Flatten, and what follows."""
    stored: list[float] | None = [field.scale, field.offset]
    flat = False
    for name, part in _leaves(branch, prefix):
        if flat:
            yield from _chain(part, name)
        elif isinstance(part, nn.Conv2d):
            _check(part, nn.Conv2d)
            options = _convolution(part, shape, stored)
            yield _op(part, name, CONVOLUTION, options)
            size = windows(shape[1:], part.kernel_size, options["stride"], options["padding"])
            shape, stored = (part.out_channels, *size), None
        elif stored:
            raise UnknownPart(f"{type(part).__module__}:{type(part).__qualname__} before a convolution")
        elif type(part) is nn.Flatten:
            yield from _chain(part, name)
            yield Op("channels_first", (), {"channels": shape[0]})
            flat = True
        else:
            _check(part, *OF_IMAGES, *OF_NUMBERS)
            found = {**KNOWN, **OF_IMAGES}[type(part)](part)
            if found is not None:
                yield _op(part, name, *found)
    if not flat:
        raise UnknownPart("convolutions without torch.nn:Flatten")


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    _check(module, nn.Sequential)
    for name, part in module.named_children():
        yield from _leaves(part, f"{prefix}.{name}")


def _convolution(module: nn.Conv2d, shape: tuple[int, ...], stored: list[float] | None) -> dict[str, Any]:
    padding = module.padding
    if isinstance(padding, str) or module.padding_mode != "zeros" or module.groups != 1 or module.dilation != (1, 1):
        raise UnknownPart("torch.nn:Conv2d with groups, dilation or other padding")
    return {"shape": list(shape), "stride": list(module.stride), "padding": list(padding), "stored": stored}


Found = tuple[str, dict[str, Any]] | None  # kind and options of the op; None: the identity


def _plain(kind: str) -> Callable[[Any], Found]:
    return lambda module: (kind, {})


def _nothing(module: nn.Module) -> Found:
    return None


def _flatten(module: nn.Flatten) -> Found:
    if (module.start_dim, module.end_dim) != (1, -1):
        raise UnknownPart("torch.nn:Flatten of other axes")
    return None  # the inputs of a program are flat already


def _unflatten(module: nn.Unflatten) -> Found:
    sizes = module.unflattened_size
    if module.dim not in (1, -1) or not all(isinstance(size, int) for size in sizes):
        raise UnknownPart("torch.nn:Unflatten of other axes")
    return "unflatten", {"sizes": list(sizes)}


def _layer_norm(module: nn.LayerNorm) -> Found:
    if len(module.normalized_shape) != 1:
        raise UnknownPart("torch.nn:LayerNorm of several axes")
    return "layer_norm", {"eps": module.eps}


def _batch_norm(module: nn.BatchNorm2d) -> Found:
    if not module.affine or not module.track_running_stats:
        raise UnknownPart("torch.nn:BatchNorm2d without weights or running statistics")
    return "batch_norm", {"eps": module.eps}


def _group_norm(module: nn.GroupNorm) -> Found:
    if not module.affine or module.num_groups != 1:
        raise UnknownPart("torch.nn:GroupNorm of several groups, or without weights")
    return "group_norm", {"eps": module.eps}


KNOWN: dict[type[nn.Module], Callable[[Any], Found]] = {
    nn.Linear: _plain("linear"),
    nn.ReLU: _plain("relu"),
    nn.Tanh: _plain("tanh"),
    nn.Sigmoid: _plain("sigmoid"),
    nn.SiLU: _plain("silu"),
    nn.ELU: lambda module: ("elu", {"alpha": module.alpha}),
    nn.LeakyReLU: lambda module: ("leaky_relu", {"slope": module.negative_slope}),
    nn.LayerNorm: _layer_norm,
    nn.Identity: _nothing,
    nn.Dropout: _nothing,  # acting is in evaluation mode
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
    parts.Dueling: _plain("dueling"),
    parts.Rescale: _plain("rescale"),
    parts.LogStd: _plain("log_std"),
    parts.MeanOverLast: _plain("mean_over_last"),
    parts.SoftmaxExpectation: _plain("softmax_expectation"),
}
OF_NUMBERS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Identity, nn.Dropout)  # each number by itself
OF_IMAGES: dict[type[nn.Module], Callable[[Any], Found]] = {nn.BatchNorm2d: _batch_norm, nn.GroupNorm: _group_norm}
