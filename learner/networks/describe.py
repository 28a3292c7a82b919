"""Describes a policy's network: its tensors, and where possible the program by which numpy computes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from learner.description import Op, PolicyDescription, tensors_of
from learner.networks import parts
from learner.networks.base import Body, PolicyModule
from learner.networks.inputs import Inputs
from learner.networks.known.draft import inputs_op, unknown_inputs
from learner.networks.recurrent import Gru, Lstm


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
    yield _inputs(body.inputs)
    yield from _torso(body.torso, list(body.inputs.shapes), "body.torso")
    if body.memory is not None:
        yield _memory(body.memory)
    yield from _chain(policy.head, "head")


def _check(module: nn.Module, *kinds: type[nn.Module]) -> None:
    """Raises UnknownPart unless the module is exactly of one of these classes: a subclass, or a module with hooks, may compute
    something else."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    if type(module) not in kinds or hooks or "forward" in vars(module):
        raise UnknownPart(f"{type(module).__module__}:{type(module).__qualname__}")


def _inputs(inputs: Inputs) -> Op:
    _check(inputs, Inputs)
    if unknown := unknown_inputs(inputs, inputs.normaliser is not None):
        raise UnknownPart(unknown)
    names = ("count", "mean", "variance") if inputs.normaliser is not None else ()
    return inputs_op(inputs, tuple(f"body.inputs.normaliser.{name}" for name in names))


def _torso(torso: nn.Module, names: list[str], prefix: str) -> Iterator[Op]:
    """A module that takes a dict of inputs, or a Sequential that begins with one."""
    if type(torso) is nn.Sequential and len(torso):
        _check(torso, nn.Sequential)
        yield from _torso(torso[0], names, f"{prefix}.0")
        for number, part in enumerate(list(torso)[1:], 1):
            yield from _chain(part, f"{prefix}.{number}")
    elif type(torso) is parts.Fields:
        _check(torso, parts.Fields)
        for number, (name, branch) in enumerate(zip(torso.names, torso.branches, strict=True)):
            yield Op("push", (), {"names": [name]})
            yield from _chain(branch, f"{prefix}.branches.{number}")
        if len(torso.names) > 1:
            yield Op("concat", (), {"count": len(torso.names)})
    else:
        _check(torso, parts.Concat)
        yield Op("push", (), {"names": names})


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
        kind, options = found
        own = [*module._parameters, *module._buffers]
        present = [name for name in own if isinstance(getattr(module, name), Tensor)]
        yield Op(kind, tuple(f"{prefix}.{name}" for name in present), options)


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
