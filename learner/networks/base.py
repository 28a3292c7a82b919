"""A policy's network: a body (inputs, torso, memory) and a head; and how the configured torso is made.

A custom torso is `--algorithm.network package.module:Name`: a class or function, see TorsoFactory. It reads floats, with the
frame stack folded into the channels, and needs nothing of this project.
"""

from __future__ import annotations

import copy
import inspect
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn

from learner.networks.inputs import Inputs, Plain, Tensors
from learner.networks.known.torsos import FLAT, resolve
from learner.networks.modes import evaluating, exact
from learner.networks.recurrent import MEMORIES, Memory, stepwise
from transport.experience import ExperienceSpec
from transport.names import UnknownName, find, nearest

Shapes = Mapping[str, tuple[int, ...]]
Options = Mapping[str, Any]
TORSOS = {
    "nature": "learner.networks.convolutional:nature",
    "nature_batchnorm": "learner.networks.convolutional:nature_batchnorm",
    "compact": "learner.networks.convolutional:compact",
    "mlp": "learner.networks.mlp:mlp",
    "linear": "learner.networks.mlp:linear",
}


class NetworkError(ValueError):
    """A network that cannot be built; the message names it and says why in one line."""


class TorsoFactory(Protocol):
    """A torso: a class or function that makes a module."""

    def __call__(self, inputs: Shapes, **options: Any) -> nn.Module:
        """Makes a module that maps {name: float [N, *shape]}, with the shapes of `inputs`, to [N, features].

        `options` are those of `--algorithm.network-options`. A class may have a `Config`, a msgspec.Struct that checks and
        converts them; otherwise they are checked against the signature.
        """


class Body(nn.Module):
    """Stored observations -> features."""

    def __init__(self, inputs: Inputs, torso: nn.Module, memory: Memory | None = None) -> None:
        """Raises NetworkError for a torso that does not give [N, features]."""
        super().__init__()
        self.inputs, self.torso, self.memory = inputs, torso, memory
        self.features = memory.features if memory else torso_features(torso, inputs.shapes)
        self.state: Mapping[str, tuple[int, ...]] = memory.state if memory else {}
        # In a tuple, so that it is not registered twice as a parameter.
        self._kernels = tuple(parameter for parameter in torso.parameters() if parameter.dim() == 4)[:1]

    def forward(self, observation: Tensors) -> Tensor:
        """{name: [N, stack, *shape]} as stored -> [N, features], without memory. Under autocast the features have its dtype."""
        return self.torso_output(self.preprocess(observation))

    def preprocess(self, observation: Tensors) -> dict[str, Tensor]:
        """The torso's inputs; several torsos may share them."""
        return self.inputs(observation, self.memory_format)  # type: ignore[no-any-return]

    def read_images(self, observation: Tensors) -> dict[str, Tensor]:
        """The part of preprocess()'s result that comes from images."""
        return self.inputs.read_images(observation, self.memory_format)

    def stacked(self, rows: Tensors, index: Tensor, plain: Plain) -> dict[str, Tensor]:
        """The stacks of rows by index [N, stack], for forward() and preprocess(): plain(rows, index), or a faster equal.

        `plain`: stack_windows or stack_rows of learner/networks/stacks.py.
        """
        return self.inputs.stacked(rows, index, plain, self.memory_format)

    def torso_output(self, inputs: Tensors) -> Tensor:
        """The result of preprocess() -> the torso's features [N, features]."""
        features: Tensor = self.torso(inputs)
        return features if self.inputs.dtype == torch.float32 else features.float()

    def step(self, observation: Tensors, state: Tensors) -> tuple[Tensor, Tensors]:
        """As forward(), with memory: takes the state before [N, …], and also returns the state after."""
        features = self(observation)
        return (features, {}) if self.memory is None else self.memory(features.float(), state)

    def unroll(self, observation: Tensors, first: Tensor, state: Tensors, burn_in: int = 0) -> Tensor:
        """Observations [T, B, stack, *shape] as stored; `first` bool [T, B], where an episode begins; the state before, [B, …].

        Returns [T - burn_in, B, features]. The first `burn_in` rows update the state only, and get no gradients. The memory
        computes in float32 also under autocast, as in the actors.
        """
        features = self({name: rows.flatten(0, 1) for name, rows in observation.items()}).unflatten(0, first.shape)
        memory = self.memory
        if memory is None:
            return features[burn_in:]  # type: ignore[no-any-return]
        with exact(first.device.type):
            features = features.float()
            if burn_in:
                with torch.no_grad():
                    _, state = stepwise(memory, features[:burn_in], first[:burn_in], state)
            unroll = getattr(memory, "unroll", lambda *rows: stepwise(memory, *rows)[0])
            return unroll(features[burn_in:], first[burn_in:], state)  # type: ignore[no-any-return]

    @property
    def memory_format(self) -> torch.memory_format:
        """That of the convolutions' weights, which their inputs should share."""
        if self._kernels and self._kernels[0].is_contiguous(memory_format=torch.channels_last):
            return torch.channels_last
        return torch.contiguous_format


class PolicyModule(nn.Module):
    """The network that actors use: head(body(observation)). The head returns Q-values, logits, or means and log-stds.

    Actors may run the torso in bfloat16 or int8, but never memory and head.
    """

    def __init__(self, body: Body, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, observation: Tensors) -> Tensor:
        """{name: [N, stack, *shape]} as stored -> [N, outputs] float32, also under autocast."""
        return self.head_output(self.body(observation))

    def step(self, observation: Tensors, state: Tensors) -> tuple[Tensor, Tensors]:
        """As forward(), with memory."""
        features, state = self.body.step(observation, state)
        return self.head_output(features), state

    def head_output(self, features: Tensor) -> Tensor:
        """[N, features] -> [N, outputs] float32, also under autocast: in a smaller type Q-values of different actions would be
        rounded to the same number."""
        with exact(features.device.type):
            return self.head(features.float()).float()  # type: ignore[no-any-return]


def make_body(
    spec: ExperienceSpec,
    network: str,
    options: Options,
    built_in: Mapping[str, Options],
    *,
    goal: bool = False,
    normalise: bool = False,
    memory: str = "",
    memory_width: int = 0,
) -> Body:
    """Makes the body for a spec: Inputs, the torso `network` (or auto), and a memory if one is named.

    `built_in`: the built-in torsos that the algorithm supports, with its options for each; the user's `options` override these.
    `goal` and `normalise` are those of Inputs. Raises NetworkError.
    """
    name = resolve(spec, network)
    inputs = Inputs(spec, name not in FLAT, goal, normalise)
    torso = make_torso(name, inputs.shapes, options, built_in)
    if not memory:
        return Body(inputs, torso)
    try:
        kind = find(memory, MEMORIES, "memory")
    except UnknownName as error:
        raise NetworkError(str(error)) from error
    return Body(inputs, torso, kind(torso_features(torso, inputs.shapes), memory_width))


def make_torso(network: str, shapes: Shapes, options: Options, built_in: Mapping[str, Options]) -> nn.Module:
    """Makes the torso of that name for inputs of these shapes. Raises NetworkError."""
    known = {name: TORSOS[name] for name in built_in}
    try:
        factory: Callable[..., Any] = find(network, known, "network")
    except UnknownName as error:
        raise NetworkError(str(error)) from error
    options = {**built_in.get(network, {}), **_checked(network, factory, options)}
    try:
        torso = factory(dict(shapes), **options)
    except BdbQuit:
        raise
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise NetworkError(f"network {network} cannot be built: {kind}{_line(error)}") from error
    if not isinstance(torso, nn.Module):
        raise NetworkError(f"network {network} returns {_article(type(torso).__name__)}, not a torch module")
    try:
        torso_features(torso, shapes)
        _check_finite(torso)
        _check_copies(torso)
    except NetworkError as error:
        raise NetworkError(f"network {network} {error}") from error
    return torso


def _check_finite(torso: nn.Module) -> None:
    """Raises NetworkError for weights or buffers with NaN or infinity: what is not finite is neither published nor saved."""
    for name, value in torso.state_dict().items():
        if not value.isfinite().all():
            raise NetworkError(
                f"begins with a value that is not finite in {name}: if it is a constant, such as a mask of -inf, give it to "
                "register_buffer with persistent=False"
            )


def _check_copies(torso: nn.Module) -> None:
    """Raises NetworkError for a module of which no frozen copy can be made, as learners do: for example a compiled script."""
    try:
        copy.deepcopy(torso).requires_grad_(False)
    except Exception as error:
        scripted = any(isinstance(part, torch.jit.ScriptModule) for part in torso.modules())
        advice = ": leave out torch.jit.script or trace, and torch runs it as it is" if scripted else ""
        raise NetworkError(f"cannot be copied ({type(error).__name__}: {_line(error)}){advice}") from error


def torso_features(torso: nn.Module, shapes: Shapes) -> int:
    """The number of features of a torso, found by calling it with one row of zeros. Raises NetworkError."""
    wanted = "it must map {name: [N, *shape]} to [N, features]"
    like = next(torso.parameters(), torch.zeros(()))
    row = {name: torch.zeros((1, *shape), dtype=like.dtype, device=like.device) for name, shape in shapes.items()}
    try:
        with torch.no_grad(), evaluating(torso):
            found = torso(row)
    except BdbQuit:
        raise
    except Exception as error:
        seen = ", ".join(f"{name} [1, {', '.join(map(str, shape))}]" for name, shape in shapes.items())
        raise NetworkError(f"fails on {seen}: {type(error).__name__}: {_line(error)}") from error
    if not isinstance(found, Tensor):
        raise NetworkError(f"returns {_article(type(found).__name__)}, not a tensor: {wanted}")
    if found.dim() != 2 or len(found) != 1:
        raise NetworkError(f"returns a tensor {list(found.shape)} for one row: {wanted}")
    return found.shape[1]


def _checked(network: str, factory: Callable[..., Any], options: Options) -> dict[str, Any]:
    """The user's options, checked and converted by the factory's Config or signature. Raises NetworkError."""
    kind = getattr(factory, "Config", None)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        known = [entry.name for entry in msgspec.structs.fields(kind)]
        _refuse_unknown(network, options, known)
        try:
            return msgspec.structs.asdict(msgspec.convert(dict(options), kind, strict=False))
        except msgspec.ValidationError as error:
            raise NetworkError(f"network {network}: its options do not match its Config: {error}") from error
    try:
        parameters = list(inspect.signature(factory).parameters.values())[1:]
    except (TypeError, ValueError):
        return dict(options)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        _refuse_unknown(network, options, [parameter.name for parameter in parameters])
    return dict(options)


def _refuse_unknown(network: str, options: Options, known: Iterable[str]) -> None:
    names = list(known)
    for name in options:
        if name not in names:
            raise NetworkError(f"network {network} has no option {name}; {nearest(name, names)}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def large_convolutions(parameters: Iterable[nn.Parameter], narrow: bool) -> bool:
    """True if there are convolutions that a type smaller than float32 makes faster, and computes correctly.

    `narrow`: whether kernels of up to 3 columns count. On a CPU they do not: for images of one column torch 2.13 computes wrong
    bfloat16 gradients of 3x3 kernels at stride 2.
    """
    return any(parameter.dim() == 4 and (narrow or parameter.shape[-1] > 3) for parameter in parameters)


def overlapping_convolutions(modules: Iterable[nn.Module]) -> bool:
    """True if a convolution reads pixels more than once. Others compute too little for a smaller type to make up for its
    conversions where there are few items."""
    parts = (part for module in modules for part in module.modules())
    return any(isinstance(part, nn.Conv2d) and part.kernel_size[-1] > part.stride[-1] for part in parts)
