"""Runs a policy's ONNX model by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.exports.onnx.model import RESET
from learner.description import PolicyDescription
from learner.weights.checkpoint import CheckpointError
from transport.experience import Columns

if TYPE_CHECKING:
    from onnx import ModelProto

MISSING = "ONNX files need onnx and onnxruntime: pip install 'headrace[onnx]'"
SUFFIX = ".onnx"


def session(model: bytes, threads: int = 1) -> Any:
    """An InferenceSession. Raises CheckpointError for a model that onnxruntime does not take, or where it is missing."""
    try:
        import onnxruntime
    except ImportError as error:
        raise CheckpointError(MISSING) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own classes have no common one
        raise CheckpointError(f"onnxruntime does not take the model: {str(error).splitlines()[0]}") from error


class OnnxRunner:
    """A whole model, its state kept between calls."""

    def __init__(self, model: bytes) -> None:
        self._session = session(model)
        self._inputs = {one.name: one for one in self._session.get_inputs()}
        self._outputs = [one.name for one in self._session.get_outputs()]
        self._state: Columns = {}

    def __call__(self, observation: Mapping[str, np.ndarray], reset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        given = dict(observation)
        for name, one in self._inputs.items():
            if name == RESET:
                given[name] = reset
            elif name not in given:
                given[name] = self._state.get(f"{name}/next", np.zeros((len(reset), *one.shape[1:]), TYPES[one.type]))
            given[name] = np.ascontiguousarray(given[name], TYPES[one.type])
        found = dict(zip(self._outputs, self._session.run(None, given), strict=True))
        self._state = found
        return found["action"], found["outputs"]


TYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(int8)": np.int8, "tensor(int64)": np.int64}
TYPES |= {"tensor(bool)": np.bool_}


class OnnxInference:
    """The network of a model, from the stacked observations on: an inference as actors use it."""

    def __init__(self, model: ModelProto, description: PolicyDescription) -> None:
        """Raises CheckpointError for a model that `headrace export` has not made."""
        from onnx.utils import Extractor

        names = {name for node in model.graph.node for name in node.output}
        stacked = sorted(name for name in names if name.startswith("stacked/"))
        self.state: Mapping[str, tuple[int, ...]] = description.state
        before, after = ([f"{name}/{when}" for name in self.state] for when in ("before", "next"))
        if not stacked or not names.issuperset([*before, *after, "outputs"]):
            raise CheckpointError("the ONNX model is none that `headrace export` has written")
        used = _used(model, ["outputs", *after])
        part = Extractor(model).extract_model([name for name in (*stacked, *before) if name in used], ["outputs", *after])
        self._session = session(part.SerializeToString())
        self._types = {one.name: TYPES[one.type] for one in self._session.get_inputs()}

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        return {}

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """A model has its weights."""

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        given = {f"stacked/{name}": values for name, values in observation.items()}
        given |= {f"{name}/before": values for name, values in state.items()}
        read = {name: np.ascontiguousarray(given[name], kind) for name, kind in self._types.items()}
        outputs, *after = self._session.run(None, read)
        return outputs, dict(zip(self.state, after, strict=True))


def _used(model: ModelProto, outputs: list[str]) -> set[str]:
    """The values that outputs depend on."""
    makers, found, waiting = {name: node for node in model.graph.node for name in node.output}, set(), list(outputs)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += makers[name].input if name in makers else ()
    return found
