"""Writes an exported policy as ONNX or as a C header: `python -m actors.exports.write FORM EXPORTED OUT`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from actors.envs.make import leave
from actors.errors import EnvError
from actors.exports.c.header import identifier, write_header
from actors.exports.c.run import CRunner
from actors.exports.check import compare, refuse
from actors.exports.onnx.model import build
from actors.exports.onnx.run import MISSING, OnnxRunner
from actors.exports.policy import PortablePolicy, read_portable
from learner.weights.checkpoint import CheckpointError
from transport.experience import SpecError
from transport.files.documents import Damaged
from transport.files.writing import writing
from transport.names import UnknownName
from transport.text import plain

DENSE = ["MatMul", "Gemm"]  # not every runtime has convolutions of int8


def write_onnx(policy: PortablePolicy, out: Path) -> str:
    """Writes the model; returns how it was checked. Raises CheckpointError, OSError."""
    payload = onnx_payload(policy)
    agreement = compare(policy, OnnxRunner(payload))
    refuse(agreement, "ONNX")
    _put(out, payload)
    return str(agreement)


def write_int8(policy: PortablePolicy, out: Path) -> str:
    """Writes the model with its dense layers in int8, by onnxruntime's dynamic quantiser. Raises CheckpointError, OSError."""
    payload = onnx_payload(policy)
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise CheckpointError(MISSING) from error

    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        whole, small = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        whole.write_bytes(payload)
        quantize_dynamic(whole, small, op_types_to_quantize=DENSE, weight_type=QuantType.QInt8)
        payload = small.read_bytes()
    agreement = compare(policy, OnnxRunner(payload))
    _put(out, payload)
    return str(agreement)


def write_c(policy: PortablePolicy, out: Path) -> str:
    """Writes the header; returns how it was checked. Raises CheckpointError, OSError."""
    name = identifier(out.stem)
    text, outputs = write_header(policy, name)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        header = Path(folder) / f"{name}.h"
        header.write_text(text, encoding="utf-8")
        with CRunner(policy, header, name, outputs) as runner:
            agreement = compare(policy, runner)
    refuse(agreement, "C")
    _put(out, text.encode())
    return str(agreement)


def onnx_payload(policy: PortablePolicy) -> bytes:
    """Raises CheckpointError."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise CheckpointError(MISSING) from error
    try:
        return build(policy).SerializeToString()
    except CheckpointError:
        raise
    except Exception as error:  # KeyError for a part that is not known; the checker of onnx has errors of its own
        raise CheckpointError(
            f"ONNX cannot hold this policy: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ) from error


FORMS = {"onnx": write_onnx, "int8": write_int8, "c": write_c}


def _put(out: Path, payload: bytes) -> None:
    with writing(out) as file:
        file.write(payload)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 2 for a policy that has not that form; 3 when the file cannot be written."""
    form, exported, out = sys.argv[1:] if arguments is None else arguments
    try:
        with np.errstate(all="ignore"):
            checked = FORMS[form](read_portable(Path(exported)), Path(out))
    except (CheckpointError, SpecError, Damaged, EnvError, UnknownName) as error:
        print(f"headrace: {plain(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"headrace: cannot write {out}: {error.strerror}", file=sys.stderr)
        return 3
    print(f"{out}: {Path(out).stat().st_size / 1e6:.1f} MB; {checked}")
    return 0


if __name__ == "__main__":
    leave(main)
