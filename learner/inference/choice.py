"""Whether numpy or torch computes a policy: numpy wherever it knows every part and takes no longer.

For convolutions that depends on their size. Small ones are overhead in torch, large ones are arithmetic, which torch can do in
bfloat16: `headrace bench inference` measures both.
"""

from __future__ import annotations

import math

from learner.description import Op, PolicyDescription
from learner.program.convolutions import CONVOLUTION, windows

CPU = "cpu"
MOST_MILLIONS = 16  # multiplications of a pass with convolutions up to which numpy takes no longer than torch, even in bfloat16


def needs_torch(description: PolicyDescription, precision: str = "float32", device: str = CPU, rows: int = 1) -> str:
    """Why torch computes a policy, for a line of the log; empty where numpy does.

    Raises KeyError, TypeError, ValueError or IndexError for a program of another version.
    """
    if device != CPU:
        return f"the device is {device}"
    if description.program is None:
        return f"numpy does not know {description.unknown}"
    if not any(op.kind == CONVOLUTION for op in description.program):
        return ""
    if precision not in ("auto", "float32"):
        return f"numpy does not compute in {precision}"
    millions = rows * sum(_multiplications(op, description) for op in description.program) / 1e6
    if millions > MOST_MILLIONS:
        return f"the network is large: {millions:,.0f} million multiplications a step are more than {MOST_MILLIONS}"
    return ""


def _multiplications(op: Op, description: PolicyDescription) -> int:
    """Of one observation."""
    shapes = [description.tensors[name][0] for name in op.tensors]
    if op.kind == CONVOLUTION:
        shape, stride, padding = (op.options[name] for name in ("shape", "stride", "padding"))
        return math.prod(windows(shape[1:], shapes[0][2:], stride, padding)) * math.prod(shapes[0])
    return sum(math.prod(shape) for shape in shapes if len(shape) == 2)
