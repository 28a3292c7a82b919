"""The built-in torsos without batch normalisation, and the body that they are part of, as data.

The modules are those of learner/networks/{mlp,convolutional,recurrent,base}.py; a test compares. What is unknown or refused here
is None: torch builds it, or says why it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from learner.networks.known.draft import Draft, Shape, inputs_op
from learner.networks.known.layout import InputLayout
from learner.program.convolutions import CONVOLUTION, windows
from transport.experience import ExperienceSpec

AUTO = "auto"  # nature where an observation field is an image, mlp elsewhere
FLAT = ("mlp", "linear")  # these read an image as a vector
Shapes = Mapping[str, Shape]
Options = Mapping[str, Any]
AtLeastOne = Annotated[int, Meta(ge=1)]


class BodyOptions(NamedTuple):
    """The arguments of make_body, beside the spec: learner/networks/base.py says what they are."""

    network: str
    options: Options
    built_in: Mapping[str, Options]
    goal: bool = False
    normalise: bool = False
    memory: str = ""
    memory_width: int = 0


class KnownBody(NamedTuple):
    """A body that can be described."""

    draft: Draft
    layout: InputLayout
    features: int


def resolve(spec: ExperienceSpec, network: str) -> str:
    """The network that auto means for this spec; other names are returned unchanged."""
    if network != AUTO:
        return network
    return "nature" if spec.has_images else "mlp"


def known_body(spec: ExperienceSpec, wanted: BodyOptions) -> KnownBody | None:
    """As make_body."""
    draft, name = Draft(), resolve(spec, wanted.network)
    layout = InputLayout(spec, name not in FLAT, wanted.goal, wanted.normalise)
    statistics: Shapes = {"count": (), "mean": (layout.normalised,), "variance": (layout.normalised,)}
    normaliser = draft.hold("body.inputs.normaliser", statistics if layout.normalised else {})
    features = add_torso(draft, "body.torso", spec, wanted, layout.shapes)
    draft.ops.insert(0, inputs_op(layout, normaliser, {field.name for field in layout.images}))
    if features is None or wanted.memory not in ("", *MEMORIES):
        return None
    if wanted.memory:
        features = _memory(draft, wanted.memory, features, wanted.memory_width)
    return KnownBody(draft, layout, features)


def add_torso(draft: Draft, prefix: str, spec: ExperienceSpec, wanted: BodyOptions, shapes: Shapes) -> int | None:
    """As make_torso. Returns the number of the torso's features."""
    name = resolve(spec, wanted.network)
    if name not in wanted.built_in or name not in KNOWN:
        return None
    kind, add = KNOWN[name]
    try:
        options = msgspec.convert({**wanted.built_in[name], **wanted.options}, kind)
    except msgspec.ValidationError:
        return None
    return add(draft, prefix, shapes, options, spec)


class MlpOptions(Struct, forbid_unknown_fields=True):
    width: AtLeastOne = 256
    layers: Annotated[int, Meta(ge=0)] = 2
    activation: Literal["relu", "tanh"] = "relu"
    apart: bool = False
    layer_norm: bool = False


class LinearOptions(Struct, forbid_unknown_fields=True):
    pass


class CompactOptions(Struct, forbid_unknown_fields=True):
    width: AtLeastOne = 256
    apart: bool = False
    layer_norm: bool = False
    filters: Annotated[float, Meta(gt=0)] = 1.0


class NatureOptions(CompactOptions):
    width: AtLeastOne = 512
    batch_norm: Literal[False] = False


def _mlp(draft: Draft, prefix: str, shapes: Shapes, options: MlpOptions, spec: ExperienceSpec) -> int:
    width, layers, sizes = options.width, options.layers, {name: math.prod(shape) for name, shape in shapes.items()}
    features, hidden = sum(sizes.values()), (options.activation, options.layer_norm)
    if options.apart and len(sizes) > 1:
        for place, (name, size) in enumerate(sizes.items()):
            draft.add("push", names=[name])
            _hidden(draft, f"{prefix}.0.branches.{place}", 0, size, width, *hidden)
        draft.add("concat", count=len(sizes))
        features, layers = width * len(sizes), layers - 1
    else:
        draft.add("push", names=list(sizes))
    number = 1
    for _ in range(layers):
        number = _hidden(draft, prefix, number, features, width, *hidden)
        features = width
    return features


def _linear(draft: Draft, prefix: str, shapes: Shapes, options: LinearOptions, spec: ExperienceSpec) -> int:
    draft.add("push", names=list(shapes))
    return sum(map(math.prod, shapes.values()))


def _hidden(
    draft: Draft, prefix: str, number: int, features: int, width: int, activation: str = "relu", layer_norm: bool = False
) -> int:
    """A hidden layer whose parts are numbered from `number` on. Returns the number after them."""
    draft.add_linear(f"{prefix}.{number}", features, width)
    if layer_norm:
        number += 1
        draft.add("layer_norm", f"{prefix}.{number}", {"weight": (width,), "bias": (width,)}, eps=LAYER_NORM_EPSILON)
    draft.add(activation)
    return number + 2


def _images(large: Layers) -> Callable[[Draft, str, Shapes, CompactOptions, ExperienceSpec], int | None]:
    def add(draft: Draft, prefix: str, shapes: Shapes, options: CompactOptions, spec: ExperienceSpec) -> int | None:
        """Convolutions for each image, then one hidden layer over all their features and the other inputs."""
        if not any(len(shape) == 3 for shape in shapes.values()):
            return None
        features = 0
        for place, (name, shape) in enumerate(shapes.items()):
            branch = f"{prefix}.0.branches.{place}"
            if len(shape) == 3:
                draft.add("image", name=name)
                field = spec.field(name)
                features += _convolutions(draft, branch, shape, [field.scale, field.offset], options, large)
                continue
            draft.add("push", names=[name])
            if options.apart:
                _hidden(draft, branch, 0, math.prod(shape), options.width, layer_norm=options.layer_norm)
            features += options.width if options.apart else math.prod(shape)
        if len(shapes) > 1:
            draft.add("concat", count=len(shapes))
        _hidden(draft, prefix, 1, features, options.width, layer_norm=options.layer_norm)
        return options.width

    return add


def suited(large: Layers, size: int) -> Layers:
    """The convolutions for an image whose shorter side has `size` pixels."""
    if size < LEAST_SIZE:
        return SMALL
    return FINER if large == COMPACT and size < COMPACT_SIZE else large


def _convolutions(
    draft: Draft, prefix: str, shape: Shape, stored: list[float] | None, options: CompactOptions, large: Layers
) -> int:
    """The convolutions for an image [C, H, W], stored by this scale and offset. Returns the number of their features."""
    number = 0
    for usual, kernel, stride, padding in suited(large, min(shape[1:])):
        filters, channels = max(round(usual * options.filters), 1), shape[0]
        window: dict[str, Any] = {"stride": [stride] * 2, "padding": [padding] * 2}
        tensors: Shapes = {"weight": (filters, channels, kernel, kernel), "bias": (filters,)}
        draft.add(CONVOLUTION, f"{prefix}.{number}", tensors, shape=list(shape), stored=stored, **window)
        if options.layer_norm:
            number += 1
            draft.add("group_norm", f"{prefix}.{number}", {"weight": (filters,), "bias": (filters,)}, eps=LAYER_NORM_EPSILON)
        draft.add("relu")
        number += 2
        shape, stored = (filters, *windows(shape[1:], (kernel, kernel), **window)), None
    draft.add("channels_first", channels=shape[0])
    return math.prod(shape)


def _memory(draft: Draft, name: str, features: int, width: int) -> int:
    gates, states = MEMORIES[name]
    rows = gates * width
    shapes = {"weight_ih_l0": (rows, features), "weight_hh_l0": (rows, width), "bias_ih_l0": (rows,), "bias_hh_l0": (rows,)}
    draft.add(name, "body.memory.rnn", shapes)
    draft.state = {f"memory/{state}": (width,) for state in states}
    return width


Layers = tuple[tuple[int, int, int, int], ...]  # filters, kernel, stride, padding
LARGE: Layers = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))  # nature
COMPACT: Layers = ((32, 5, 5, 0), (64, 5, 5, 0))
COMPACT_SIZE = 60  # minimum height and width in pixels for COMPACT: of 42 pixels it leaves one
FINER: Layers = ((32, 5, 3, 0), (64, 3, 2, 0), (64, 3, 1, 0))  # compact, for images between the two sizes
SMALL: Layers = ((32, 3, 1, 1), (64, 3, 2, 1), (64, 3, 2, 1))  # works down to one pixel
LEAST_SIZE = 36  # minimum height and width in pixels for LARGE and FINER
LAYER_NORM_EPSILON = 1e-5  # torch's
MEMORIES = {"lstm": (4, "hc"), "gru": (3, "h")}  # gates, and the names of the state
KNOWN: dict[str, tuple[type[Struct], Callable[[Draft, str, Shapes, Any, ExperienceSpec], int | None]]] = {
    "mlp": (MlpOptions, _mlp),
    "linear": (LinearOptions, _linear),
    "nature": (NatureOptions, _images(LARGE)),
    "compact": (CompactOptions, _images(COMPACT)),
}
