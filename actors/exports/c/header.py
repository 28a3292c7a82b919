"""A policy as a C header: dense networks without stacks or memory, in float, with no library but C's own.

The functions are static, so that a file that includes it needs nothing else; a compiler for a microcontroller takes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from gymnasium import spaces

from actors.envs.foreign.actions import firsts
from actors.envs.spec import is_image
from actors.exports.c.code import HELPERS, Code, Value, literal
from actors.exports.policy import PortablePolicy, normaliser
from learner.program.inputs import CLIP, EPSILON, NEAR
from learner.weights.checkpoint import CheckpointError
from transport.experience import ACTION_MASK, Categorical, Column, Continuous, MultiCategorical


def identifier(name: str) -> str:
    """A name in C for a file's name."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    return found if found[:1].isalpha() else f"policy_{found.lstrip('_')}"  # a first _ is reserved


def write_header(policy: PortablePolicy, name: str) -> tuple[str, int]:
    """The text, whose functions begin with `name`, and the number of outputs. Raises CheckpointError for a policy that has no
    form in C."""
    return _Writer(policy, name).text()


class _Writer:
    def __init__(self, policy: PortablePolicy, name: str) -> None:
        self.policy, self.p, self.code = policy, name, Code(name)
        self._check()

    def _check(self) -> None:
        policy, images = self.policy, [name for name, space in self.policy.observations.items() if is_image(space)]
        memory = "a memory" if policy.description.state else ""
        why = f"images ({images[0]})" if images else f"a stack of {policy.spec.stack}" if policy.spec.stack > 1 else memory
        if why:
            raise CheckpointError(f"the policy has {why}, which a C header has not: export it as onnx")

    def text(self) -> tuple[str, int]:
        outputs, parts = self._outputs()
        act = list(self._act(outputs, parts))
        helpers = [HELPERS[kind].format(p=self.p) for kind in self.code.used]
        guard = f"{self.p.upper()}_H"
        sizes = {"OBSERVATION": sum(size for _, size in parts.values()), "OUTPUTS": outputs.size}
        of, on, version = (self.policy.metadata.get(key, "?") for key in ("algorithm", "env", "policy_version"))
        about = f"{of} on {on}, policy version {version}"
        lines = [
            f"/* {_plain(about)}; made by `headrace export`.",
            "   The observation, one number after the other:",
            *(f"   {start:5}  {_plain(name)}: {size} {self._said(name)}" for name, (start, size) in parts.items()),
            "*/",
            *(f"#ifndef {guard}", f"#define {guard}", "#include <math.h>", "#include <stddef.h>", ""),
            *(f"enum {{ {self.p.upper()}_{key} = {size} }};" for key, size in sizes.items()),
            "",
            *self.code.arrays.values(),
            *(f"\n{helper}" for helper in helpers),
            "",
            "/* What the network gives: values or logits of actions, or means and logarithms of standard deviations. */",
            f"static inline void {self.p}_outputs(const float *observation, float *outputs) {{",
            *(f"    {line}" for line in self.code.body),
            f"    for (int i = 0; i < {outputs.size}; i++) outputs[i] = {outputs.name}[i];",
            "}",
            "",
            *act,
            "#endif",
        ]
        return "\n".join(lines) + "\n", outputs.size

    def _said(self, name: str) -> str:
        space = self.policy.observations[name]
        return (
            "index" if isinstance(space, spaces.Discrete) else "indices" if isinstance(space, spaces.MultiDiscrete) else "numbers"
        )

    def _outputs(self) -> tuple[Value, dict[str, tuple[int, int]]]:
        """The result of the network, and where each part of an observation is: start and count of numbers."""
        parts, start = dict[str, tuple[int, int]](), 0
        for name, space in self.policy.observations.items():
            size = 1 if isinstance(space, spaces.Discrete) else int(np.prod(space.shape or ()))
            parts[name], start = (start, size), start + size
        inputs, stack = self._inputs(parts), list[Value]()
        for op in self.policy.program[1:]:
            if op.kind == "push":
                stack.append(self.code.joined([inputs[name] for name in op.options["names"]]))
            elif op.kind == "concat":
                count = op.options["count"]
                stack[-count:] = [self.code.joined(stack[-count:])]
            else:
                stack[-1] = self.code.layer(op.kind, stack[-1], [self.policy.weights[name] for name in op.tensors], op.options)
        (outputs,) = stack
        return outputs, parts

    def _inputs(self, parts: Mapping[str, tuple[int, int]]) -> dict[str, Value]:
        """As learner/program/inputs.py computes them."""
        options, found = self.policy.program[0].options, dict[str, Value]()
        for column in options["fields"]:
            found[column["name"]] = self._field(self.policy.spec.field(column["name"]), *parts[column["name"]])
        if options["goal"]:
            achieved, desired = (found[name] for name in options["goal"])
            way = found["goal/way"] = self.code.value(*desired.shape)
            self.code.body.append(f"for (int i = 0; i < {way.size}; i++) {way.name}[i] = {desired.name}[i] - {achieved.name}[i];")
        statistics = normaliser(self.policy)
        if statistics is None:
            return found
        seen, start, near = bool(statistics["count"] > 0), 0, None
        for name, value in found.items():
            mean, variance = (statistics[key][start : start + value.size] for key in ("mean", "variance"))
            start += value.size
            if name == "goal/way":
                near = self._near(value, np.sqrt(variance.mean()) if seen else np.float32(1))
            if seen:
                deviation, centre = self.code.array(np.sqrt(variance + np.float32(EPSILON))), self.code.array(mean)
                normal = f"({value.name}[i] - {centre}[i]) / {deviation}[i]"
                clip = f"{value.name}[i] = x < -{CLIP}f ? -{CLIP}f : x > {CLIP}f ? {CLIP}f : x;"
                self.code.body.append(f"for (int i = 0; i < {value.size}; i++) {{ float x = {normal}; {clip} }}")
        return found | ({"goal/near": near} if near else {})

    def _near(self, way: Value, usual: np.float32) -> Value:
        near = self.code.value(*way.shape)
        length = f"length_of_{near.name}"
        self.code.body += [
            f"float {length} = 0.0f;",
            f"for (int i = 0; i < {way.size}; i++) {length} += {way.name}[i] * {way.name}[i];",
            f"{length} = sqrtf({length}) + {literal(np.float32(NEAR) * usual + np.float32(EPSILON))};",
            f"for (int i = 0; i < {way.size}; i++) {near.name}[i] = {way.name}[i] / {length};",
        ]
        return near

    def _field(self, field: Column, start: int, size: int) -> Value:
        """The decoded values of a field, from the numbers of its part of the observation."""
        space, made = self.policy.observations[field.name], self.code.value(int(np.prod(field.shape)))
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            self.code.body.append(f"for (int i = 0; i < {made.size}; i++) {made.name}[i] = 0.0f;")
            single = isinstance(space, spaces.Discrete)
            counts = [int(space.n)] if single else space.nvec.ravel().tolist()
            firsts = [int(space.start)] if single else space.start.ravel().tolist()
            for place, (before, first) in enumerate(zip(np.cumsum([0, *counts]).tolist(), firsts, strict=False)):
                index, end = f"float x = observation[{start + place}] - {first}.0f", f"x >= 0.0f && x < {counts[place]}.0f"
                self.code.body.append(f"{{ {index}; if ({end}) {made.name}[{before} + (int)x] = 1.0f; }}")
            return made
        value = f"observation[{start} + i]"
        if field.quantised and np.dtype(field.dtype).kind in "iu":
            limits = np.iinfo(np.dtype(field.dtype))
            rest = f"rint(((double){value} - {field.offset!r}) / {field.scale!r})"
            clip = f"x < {limits.min} ? {limits.min} : x > {limits.max} ? {limits.max} : x"
            stored = f"(float)({clip}) * {literal(field.scale)} + {literal(field.offset)}"
            self.code.body.append(f"for (int i = 0; i < {size}; i++) {{ double x = {rest}; {made.name}[i] = {stored}; }}")
            return made
        scaled = f"{value} * {literal(field.scale)} + {literal(field.offset)}" if field.quantised else value
        self.code.body.append(f"for (int i = 0; i < {size}; i++) {made.name}[i] = {scaled};")
        return made

    def _act(self, outputs: Value, parts: Mapping[str, tuple[int, int]]) -> Iterator[str]:
        action, space = self.policy.spec.action, self.policy.action_space
        before = [f"    float outputs[{outputs.size}];", f"    {self.p}_outputs(observation, outputs);"]
        if isinstance(action, Continuous):
            low, high = (np.array(bound, np.float32) for bound in (action.low, action.high))
            names = [self.code.array(values) for values in (low, high, 0.5 * (high - low))]
            yield f"/* The action: {len(low)} numbers. */"
            yield f"static inline void {self.p}_act(const float *observation, float *action) {{"
            yield from before
            yield f"    for (int i = 0; i < {len(low)}; i++) {{"
            yield f"        float x = {names[0]}[i] + (tanhf(outputs[i]) + 1.0f) * {names[2]}[i];"
            yield f"        action[i] = x < {names[0]}[i] ? {names[0]}[i] : x > {names[1]}[i] ? {names[1]}[i] : x;"
            yield "    }"
        elif isinstance(action, MultiCategorical):
            yield from self._choices(before, len(action.sizes))
            first = firsts(space).tolist()
            for place, (start, size) in enumerate(zip(np.cumsum([0, *action.sizes]).tolist(), action.sizes, strict=False)):
                chosen = self.code.helper("highest", f"outputs + {start}", "NULL", size)
                yield f"    action[{place}] = {chosen} + {first[place]};"
        else:
            assert isinstance(action, Categorical)
            allowed = f"observation + {parts[ACTION_MASK][0]}" if action.masked else "NULL"
            chosen, table = self.code.helper("highest", "outputs", allowed, action.n), self.policy.action_table()
            if table is None:
                first = int(space.start)  # type: ignore[attr-defined]
                yield "/* The action. */"
                yield f"static inline int {self.p}_act(const float *observation) {{"
                yield from before
                yield f"    return {chosen}{f' + {first}' if first else ''};"
            else:
                count = table.shape[1]
                rows = ", ".join(str(entry) for entry in (table + firsts(space)).ravel().tolist())
                yield from self._choices(before, count)
                yield f"    static const int table[{table.size}] = {{{rows}}};"
                yield f"    int chosen = {chosen};"
                yield f"    for (int i = 0; i < {count}; i++) action[i] = table[chosen * {count} + i];"
        yield "}"
        yield ""

    def _choices(self, before: Sequence[str], count: int) -> Iterator[str]:
        yield f"/* The action: {count} choices. */"
        yield f"static inline void {self.p}_act(const float *observation, int *action) {{"
        yield from before


def _plain(text: str) -> str:
    return text.replace("*/", "* /").replace("/*", "/ *").replace("\n", " ")
