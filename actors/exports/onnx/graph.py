"""An ONNX graph that is built node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET, IR_VERSION = 17, 8  # of ONNX 1.12 (2022): older runtimes read it, too
ROWS = "N"  # the free axis: how many observations
PRODUCER = "headrace"


class Graph:
    """Values are known by their names. The nodes are in the order of their computation."""

    def __init__(self) -> None:
        from onnx import helper

        self._helper = helper
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._between: list[Any] = []
        self._constants: dict[str, Any] = {}

    def input(self, name: str, dtype: Any, shape: Sequence[int]) -> str:
        """An input [N, *shape]."""
        self._inputs.append(self._value(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: Any, shape: Sequence[int]) -> None:
        """`value` is an output [N, *shape] with this name."""
        self._nodes.append(self._helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._value(name, dtype, shape))

    def named(self, name: str, value: str, dtype: Any, shape: Sequence[int]) -> str:
        """`value` [N, *shape] gets this name, where a part of the graph may begin."""
        self._between.append(self._value(name, dtype, shape))
        self._nodes.append(self._helper.make_node("Identity", [value], [name]))
        return name

    def constant(self, values: Any, dtype: Any = None, name: str = "") -> str:
        """A tensor; one of the same name is added once."""
        from onnx import numpy_helper

        name = name or f"constant/{len(self._constants)}"
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(values, dtype).reshape(np.shape(values)), name)
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one result; its name."""
        return self.split(kind, *inputs, parts=1, **attributes)[0]

    def split(self, kind: str, *inputs: str, parts: int, **attributes: Any) -> list[str]:
        """A node with several results; their names."""
        results = [
            f"{kind.lower()}/{len(self._nodes)}/{part}" if parts > 1 else f"{kind.lower()}/{len(self._nodes)}"
            for part in range(parts)
        ]
        self._nodes.append(self._helper.make_node(kind, list(inputs), results, **attributes))
        return results

    def shaped(self, value: str, *shape: int) -> str:
        """Reshaped to [N, *shape]."""
        return self.add("Reshape", value, self.constant([-1 if -1 not in shape else 0, *shape], np.int64))

    def cast(self, value: str, dtype: Any) -> str:
        return self.add("Cast", value, to=self._type(dtype))

    def part(self, value: str, start: int, stop: int, axis: int = -1) -> str:
        """value[start:stop] along an axis."""
        places = (self.constant([number], np.int64) for number in (start, stop, axis))
        return self.add("Slice", value, *places)

    def model(self, name: str, metadata: dict[str, str]) -> ModelProto:
        """The checked model. Raises onnx.checker.ValidationError."""
        import onnx

        tensors = list(self._constants.values())
        graph = self._helper.make_graph(self._nodes, name, self._inputs, self._outputs, tensors, value_info=self._between)
        opset = [self._helper.make_opsetid("", OPSET)]
        made = self._helper.make_model(graph, producer_name=PRODUCER, opset_imports=opset, ir_version=IR_VERSION)
        self._helper.set_model_props(made, metadata)
        onnx.checker.check_model(made, full_check=True)
        return made

    def _value(self, name: str, dtype: Any, shape: Sequence[int]) -> Any:
        return self._helper.make_tensor_value_info(name, self._type(dtype), [ROWS, *shape])

    def _type(self, dtype: Any) -> int:
        return self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype))  # type: ignore[no-any-return]
