"""C code that grows statement by statement: arrays, values, and the layers of programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from learner.weights.checkpoint import CheckpointError

HELPERS = {
    "linear": """\
/* y = W x + b; the weights of one input are adjacent. */
static inline void {p}_linear(const float *x, const float *w, const float *b, float *y, int inputs, int outputs) {{
    for (int o = 0; o < outputs; o++) y[o] = b ? b[o] : 0.0f;
    for (int i = 0; i < inputs; i++)
        for (int o = 0; o < outputs; o++) y[o] += x[i] * w[i * outputs + o];
}}""",
    "layer_norm": """\
static inline void {p}_layer_norm(const float *x, const float *w, const float *b, float *y, int size, float eps) {{
    float mean = 0.0f, square = 0.0f;
    for (int i = 0; i < size; i++) mean += x[i];
    mean /= (float)size;
    for (int i = 0; i < size; i++) square += (x[i] - mean) * (x[i] - mean);
    float inverse = 1.0f / sqrtf(square / (float)size + eps);
    for (int i = 0; i < size; i++) y[i] = (x[i] - mean) * inverse * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f);
}}""",
    "dueling": """\
/* Q = V + A - mean A */
static inline void {p}_dueling(const float *x, float *y, int actions) {{
    float mean = 0.0f;
    for (int a = 0; a < actions; a++) mean += x[1 + a];
    mean /= (float)actions;
    for (int a = 0; a < actions; a++) y[a] = x[0] + x[1 + a] - mean;
}}""",
    "mean_over_last": """\
static inline void {p}_mean_over_last(const float *x, float *y, int rows, int size) {{
    for (int r = 0; r < rows; r++) {{
        y[r] = 0.0f;
        for (int i = 0; i < size; i++) y[r] += x[r * size + i];
        y[r] /= (float)size;
    }}
}}""",
    "softmax_expectation": """\
static inline void {p}_softmax_expectation(const float *x, const float *values, float *y, int rows, int size) {{
    for (int r = 0; r < rows; r++) {{
        float most = x[r * size], sum = 0.0f, mean = 0.0f;
        for (int i = 1; i < size; i++) most = x[r * size + i] > most ? x[r * size + i] : most;
        for (int i = 0; i < size; i++) {{
            float share = expf(x[r * size + i] - most);
            sum += share;
            mean += share * values[i];
        }}
        y[r] = mean / sum;
    }}
}}""",
    "highest": """\
/* The index of the highest of `count` values; `allowed`: 0 where one may not be chosen, or NULL. All zeros allow all. */
static inline int {p}_highest(const float *values, const float *allowed, int count) {{
    int best = -1, any = 0;
    for (int a = 0; allowed && a < count; a++) any |= allowed[a] >= 1.0f;
    for (int a = 0; a < count; a++)
        if ((!any || allowed[a] >= 1.0f) && (best < 0 || values[a] > values[best])) best = a;
    return best;
}}""",
}
ELEMENTWISE = {
    "relu": "x > 0.0f ? x : 0.0f",
    "tanh": "tanhf(x)",
    "sigmoid": "1.0f / (1.0f + expf(-x))",
    "silu": "x / (1.0f + expf(-x))",
    "elu": "x > 0.0f ? x : {alpha} * expm1f(x)",
    "leaky_relu": "x > 0.0f ? x : {slope} * x",
}
DEFAULTS = {"alpha": 1.0, "slope": 0.01}


class Value(NamedTuple):
    name: str  # of a C array
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


class Code:
    """The statements of one function, whose values are arrays of float; and what they need outside of it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.body: list[str] = []
        self.arrays: dict[str, str] = {}  # name in C -> definition
        self.used: dict[str, None] = {}  # names of helpers
        self._values = 0

    def array(self, values: np.ndarray) -> str:
        name = f"{self.prefix}_w{len(self.arrays)}"
        flat = np.asarray(values, np.float32).ravel()
        rows = (", ".join(literal(value) for value in flat[start : start + 12]) for start in range(0, len(flat), 12))
        self.arrays[name] = f"static const float {name}[{len(flat)}] = {{\n    " + ",\n    ".join(rows) + "\n};"
        return name

    def value(self, *shape: int) -> Value:
        made = Value(f"v{self._values}", shape)
        self._values += 1
        self.body.append(f"float {made.name}[{made.size}];")
        return made

    def helper(self, kind: str, *arguments: object) -> str:
        self.used[kind] = None
        return f"{self.prefix}_{kind}({', '.join(map(str, arguments))})"

    def joined(self, values: Sequence[Value]) -> Value:
        if len(values) == 1:
            return values[0]
        made, start = self.value(sum(value.size for value in values)), 0
        for value in values:
            self.body.append(f"for (int i = 0; i < {value.size}; i++) {made.name}[{start} + i] = {value.name}[i];")
            start += value.size
        return made

    def layer(self, kind: str, value: Value, tensors: Sequence[np.ndarray], options: Mapping[str, float]) -> Value:
        if kind in ELEMENTWISE:
            formula = ELEMENTWISE[kind].format(**{name: literal(number) for name, number in (DEFAULTS | dict(options)).items()})
            made = self.value(*value.shape)
            self.body.append(
                f"for (int i = 0; i < {value.size}; i++) {{ float x = {value.name}[i]; {made.name}[i] = {formula}; }}"
            )
            return made
        if kind == "unflatten":
            return Value(value.name, unflattened(value.size, options["sizes"]))  # type: ignore[arg-type]
        flat = len(value.shape) == 1
        if kind == "linear" and tensors[0].ndim == 2 and flat:
            weight, bias = self.array(tensors[0].T), self.array(tensors[1]) if len(tensors) > 1 else "NULL"
            made = self.value(len(tensors[0]))
            call = self.helper(kind, value.name, weight, bias, made.name, value.size, made.size)
        elif kind == "layer_norm" and flat and all(tensor.ndim == 1 for tensor in tensors):
            names = [self.array(tensor) for tensor in tensors] + ["NULL"] * (2 - len(tensors))
            made = self.value(*value.shape)
            call = self.helper(kind, value.name, *names, made.name, value.size, f"{literal(options.get('eps', 1e-5))}")
        elif kind == "dueling" and flat:
            made = self.value(value.size - 1)
            call = self.helper(kind, value.name, made.name, made.size)
        elif kind == "rescale":
            made, factor = self.value(*value.shape), self.array(np.broadcast_to(tensors[0], value.shape))
            call = f"for (int i = 0; i < {value.size}; i++) {made.name}[i] = {value.name}[i] * {factor}[i]"
        elif kind == "log_std":
            made, spread = self.value(2 * value.size), self.array(tensors[0])
            first = f"{made.name}[i] = {value.name}[i]; {made.name}[{value.size} + i] = {spread}[i];"
            call = f"for (int i = 0; i < {value.size}; i++) {{ {first} }}"
        elif kind in ("mean_over_last", "softmax_expectation"):
            extra = [self.array(tensor) for tensor in tensors]
            made = self.value(*value.shape[:-1])
            call = self.helper(kind, value.name, *extra, made.name, made.size, value.shape[-1])
        else:
            raise CheckpointError(f"a C header has no {kind} of such tensors: export it as onnx")
        self.body.append(f"{call};")
        return made


def literal(value: object) -> str:
    text = f"{float(np.float32(value)):.9g}"  # type: ignore[arg-type]
    return f"{text}f" if any(sign in text for sign in ".e") else f"{text}.0f"


def unflattened(size: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of `size` numbers, of which one length may be -1."""
    known = int(np.prod([one for one in sizes if one != -1]))
    return tuple(size // known if one == -1 else one for one in sizes)
