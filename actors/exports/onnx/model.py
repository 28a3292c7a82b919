"""A policy as an ONNX model: plain observations in, the environment's actions out.

Inputs: a part of an observation each, [N, *shape] with the name of its field. Where the policy has a stack or a memory, also
`reset` [N] bool, true where an episode begins, and the state that the last step gave: `stack/FIELD` and `memory/NAME`.
Outputs: `action` [N, …] as the environment takes it, `outputs` [N, outputs] of the network, and the state `…/next`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from actors.envs.foreign.actions import firsts
from actors.exports.onnx.graph import Graph
from actors.exports.onnx.layers import Layers, Value
from actors.exports.onnx.observations import decoded, stored
from actors.exports.policy import PortablePolicy, normaliser
from learner.program.inputs import CLIP, EPSILON, NEAR
from learner.weights.checkpoint import CheckpointError
from transport.experience import ACTION_MASK, Categorical, Continuous, MultiCategorical

if TYPE_CHECKING:
    from onnx import ModelProto

RESET = "reset"
HIGHEST = np.finfo(np.float32)


def build(policy: PortablePolicy) -> ModelProto:
    """The checked model. Raises KeyError for a part that is not known."""
    return _Builder(policy).model()


class _Builder:
    def __init__(self, policy: PortablePolicy) -> None:
        self.policy, self.graph = policy, Graph()
        self.depth = policy.spec.stack
        self._reset = ""
        self._next: list[tuple[str, str, Any, tuple[int, ...]]] = []  # outputs of the state

    def model(self) -> ModelProto:
        if taken := {RESET, "action", "outputs"} & set(self.policy.observations):
            raise CheckpointError(
                f"the observation has a part {min(taken)!r}, which is a name of the model's own: rename it by a wrapper"
            )
        fields = {field.name: field for field in self.policy.spec.fields}
        stacked = {
            name: self._stacked(name, stored(self.graph, name, space, fields[name]))
            for name, space in self.policy.observations.items()
        }
        outputs = self._outputs(stacked)
        allowed = self._allowed(stacked)
        action, dtype, shape = self._action(outputs.name, outputs.shape[0], allowed)
        self.graph.output("action", action, dtype, shape)
        self.graph.output("outputs", outputs.name, np.float32, outputs.shape)
        for name, value, dtype, shape in self._next:
            self.graph.output(f"{name}/next", value, dtype, shape)
        return self.graph.model("policy", self.policy.metadata)

    def reset(self, axes: int) -> str:
        """[N, 1 …] bool."""
        self._reset = self._reset or self.graph.input(RESET, np.bool_, ())
        return self.graph.shaped(self._reset, *[1] * axes)

    def _stacked(self, name: str, current: str) -> str:
        """[N, stack, *shape] as stored, from the newest observation [N, *shape]."""
        field = self.policy.spec.field(name)
        current = self.graph.shaped(current, 1, *field.shape)
        if self.depth > 1:
            older = (self.depth - 1, *field.shape)
            before = self.graph.input(f"stack/{name}", field.dtype, older)
            first = self.graph.add("Concat", *[current] * (self.depth - 1), axis=1)
            kept = self.graph.add("Where", self.reset(len(older)), first, before)
            current = self.graph.add("Concat", kept, current, axis=1)
            after = self.graph.part(current, 1, self.depth, 1)
            self._next.append((f"stack/{name}", after, field.dtype, older))
        return self.graph.named(f"stacked/{name}", current, field.dtype, (self.depth, *field.shape))

    def _outputs(self, stacked: dict[str, str]) -> Value:
        graph, policy = self.graph, self.policy
        state = {}
        for name, shape in policy.description.state.items():
            before = graph.input(name, np.float32, shape)
            kept = graph.add("Where", self.reset(len(shape)), graph.constant(0, np.float32), before)
            state[name] = graph.named(f"{name}/before", kept, np.float32, shape)
        layers, stack = Layers(graph, policy.weights, state), list[Value]()
        inputs = self._inputs(stacked)
        for op in policy.program[1:]:
            if op.kind == "push":
                stack.append(self._joined([inputs[name] for name in op.options["names"]]))
            elif op.kind == "image":
                stack.append(Value(stacked[op.options["name"]], ()))
            elif op.kind == "concat":
                count = op.options["count"]
                stack[-count:] = [self._joined(stack[-count:])]
            else:
                stack[-1] = layers.add(op, stack[-1])
        self._next += [(name, value.name, np.float32, value.shape) for name, value in layers.after.items()]
        (outputs,) = stack
        return outputs

    def _joined(self, values: Sequence[Value]) -> Value:
        if len(values) == 1:
            return values[0]
        return Value(self.graph.add("Concat", *(value.name for value in values), axis=-1), (sum(v.shape[0] for v in values),))

    def _inputs(self, stacked: dict[str, str]) -> dict[str, Value]:
        """What the network reads, by name: decoded, with the way to the goal, normalised, the stack folded in. As
        learner/program/inputs.py computes it."""
        graph, options = self.graph, self.policy.program[0].options
        rows = {}  # [N, stack, size]
        for field in options["fields"]:
            size = int(np.prod(field["shape"]))
            rows[field["name"]] = decoded(graph, graph.shaped(stacked[field["name"]], self.depth, size), field), size
        if options["goal"]:
            achieved, desired = options["goal"]
            rows["goal/way"] = graph.add("Sub", rows[desired][0], rows[achieved][0]), rows[desired][1]
        statistics, start, near = normaliser(self.policy), 0, None
        for name, (value, size) in list(rows.items()) if statistics else ():
            mean, variance = (statistics[key][start : start + size] for key in ("mean", "variance"))  # type: ignore[index]
            start += size
            seen = bool(statistics["count"] > 0)  # type: ignore[index]
            if name == "goal/way":
                usual = np.sqrt(variance.mean()) if seen else np.float32(1)
                near = self._near(value, usual), size
            if seen:
                value = graph.add("Sub", value, graph.constant(mean, np.float32))
                value = graph.add("Div", value, graph.constant(np.sqrt(variance + np.float32(EPSILON)), np.float32))
                value = graph.add("Clip", value, graph.constant(-CLIP, np.float32), graph.constant(CLIP, np.float32))
            rows[name] = value, size
        if near is not None:
            rows["goal/near"] = near
        folded = self.depth if options["stack"] > 1 else 1
        return {name: Value(graph.shaped(value, folded * size), (folded * size,)) for name, (value, size) in rows.items()}

    def _near(self, way: str, usual: np.float32) -> str:
        length = self.graph.add("ReduceL2", way, axes=[-1], keepdims=1)
        summand = np.float32(NEAR) * usual + np.float32(EPSILON)
        return self.graph.add("Div", way, self.graph.add("Add", length, self.graph.constant(summand, np.float32)))

    def _allowed(self, stacked: dict[str, str]) -> str:
        """[N, n] bool, the allowed actions; empty where all are."""
        action, graph = self.policy.spec.action, self.graph
        if not (isinstance(action, Categorical) and action.masked):
            return ""
        newest = graph.shaped(graph.part(stacked[ACTION_MASK], self.depth - 1, self.depth, 1), action.n)
        mask = graph.cast(newest, np.bool_)
        most = graph.add("ReduceMax", graph.cast(mask, np.float32), axes=[-1], keepdims=1)
        return graph.add("Or", mask, graph.add("Not", graph.cast(most, np.bool_)))

    def _action(self, outputs: str, count: int, allowed: str) -> tuple[str, Any, tuple[int, ...]]:
        """The greedy action [N, …], its type and its shape."""
        graph, action, space = self.graph, self.policy.spec.action, self.policy.action_space
        if isinstance(action, Continuous):
            return self._bounded(graph.part(outputs, 0, count // 2), action)
        if isinstance(action, MultiCategorical):
            ends = np.cumsum([0, *action.sizes]).tolist()
            parts = [graph.part(outputs, start, stop) for start, stop in zip(ends, ends[1:], strict=False)]
            chosen = graph.add("Concat", *(graph.add("ArgMax", part, axis=-1, keepdims=1) for part in parts), axis=-1)
            return self._entries(chosen, len(parts))
        if allowed:
            highest = graph.add("Max", outputs, graph.constant(HIGHEST.min, np.float32))
            outputs = graph.add("Where", allowed, highest, graph.constant(-np.inf, np.float32))
        index = graph.add("ArgMax", outputs, axis=-1, keepdims=0)
        table = self.policy.action_table()
        if table is not None:
            return self._entries(graph.add("Gather", graph.constant(table, np.int64), index), table.shape[1])
        start = int(space.start)  # type: ignore[attr-defined]
        return graph.add("Add", index, graph.constant(start, np.int64)) if start else index, np.int64, ()

    def _bounded(self, mean: str, action: Continuous) -> tuple[str, Any, tuple[int, ...]]:
        graph, space = self.graph, self.policy.action_space
        low, high = (np.array(bound, np.float32) for bound in (action.low, action.high))
        share = graph.add("Add", graph.add("Tanh", mean), graph.constant(1, np.float32))
        value = graph.add("Add", graph.add("Mul", share, graph.constant(0.5 * (high - low), np.float32)), graph.constant(low))
        value = graph.add("Min", graph.add("Max", value, graph.constant(low)), graph.constant(high))
        shape = space.shape if isinstance(space, spaces.Box) else low.shape
        return graph.shaped(value, *shape), np.float32, shape

    def _entries(self, chosen: str, count: int) -> tuple[str, Any, tuple[int, ...]]:
        """Choices [N, count] with the shape and the first values of their space; those of a Dict or Tuple one after the other."""
        graph, space = self.graph, self.policy.action_space
        shape = space.shape if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) else (count,)
        chosen = graph.shaped(chosen, *shape)
        if (first := firsts(space)).any():
            chosen = graph.add("Add", chosen, graph.constant(first.reshape(shape), np.int64))
        return chosen, np.int64, shape
