"""An ONNX file of `headrace export` as a policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.exports.onnx.run import MISSING, OnnxInference
from learner.algorithms.base import make_algorithm, read_algorithm
from learner.description import read_description
from learner.saving.export import Exported
from learner.weights.checkpoint import CheckpointError
from transport.experience import read_spec
from transport.files.documents import decode, read_bytes

if TYPE_CHECKING:
    from onnx import ModelProto

NEEDED = ("config", "spec", "spaces", "policy")
FIRST = b"\x08"  # of an ONNX file: the tag of ir_version; checkpoints begin with a length whose ninth byte is {


def is_onnx(path: Path) -> bool:
    """True for a file that begins as ONNX files do. Raises OSError."""
    with path.open("rb") as file:
        first = file.read(9)
    return first[:1] == FIRST and first[8:] != b"{"


def read_model(path: Path) -> tuple[ModelProto, dict[str, str]]:
    """The model and the metadata of the exported policy. Raises CheckpointError."""
    try:
        import onnx
    except ImportError as error:
        raise CheckpointError(MISSING) from error
    try:
        model = onnx.load_from_string(read_bytes(path))
    except Exception as error:  # of protobuf, which has several implementations with classes of their own
        raise CheckpointError(f"{path} is no ONNX model, or a damaged one") from error
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    if not metadata.keys() >= set(NEEDED):
        raise CheckpointError(f"{path} is an ONNX model, but none that `headrace export` has written")
    return model, metadata


def load(path: Path, check: Callable[[dict[str, Any]], None] | None = None) -> Exported:
    """As learner.saving.export.load. Raises CheckpointError, SpecError, Damaged, UnknownName."""
    model, metadata = read_model(path)
    config = decode(metadata["config"], dict[str, Any])
    if check is not None:
        check(config)
    inference = OnnxInference(model, read_description(metadata["policy"].encode()))
    return Exported(
        inference, read_spec(metadata["spec"].encode()), make_algorithm(read_algorithm(config["algorithm"])), metadata
    )
