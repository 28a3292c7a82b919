"""Compiles a C header with a small program around it, and runs it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from actors.exports.policy import PortablePolicy
from learner.weights.checkpoint import CheckpointError
from transport.experience import Categorical, Continuous

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror")
PROGRAM = """\
#include <stdio.h>
#include "{header}"
int main(void) {{
    static float observation[{NAME}_OBSERVATION], outputs[{NAME}_OUTPUTS];
    {kind} action[{count}];
    while (fread(observation, sizeof observation, 1, stdin) == 1) {{
        {name}_outputs(observation, outputs);
        {act};
        fwrite(outputs, sizeof outputs, 1, stdout);
        fwrite(action, sizeof action, 1, stdout);
        fflush(stdout);
    }}
    return 0;
}}
"""


def compiler() -> str:
    """Raises CheckpointError where there is none."""
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise CheckpointError("a C header is checked before it is written, and there is no C compiler: install gcc or clang")
    return found


class CRunner:
    """A header's policy in a process of its own; use it in a `with` block."""

    def __init__(self, policy: PortablePolicy, header: Path, name: str, outputs: int, with_compiler: str = "") -> None:
        """Compiles beside the header. Raises CheckpointError."""
        self._policy, self._width, action = policy, outputs, policy.spec.action
        table = policy.action_table()
        self._single = isinstance(action, Categorical) and table is None
        if isinstance(action, Continuous):
            self._kind, self._count = np.dtype(np.float32), len(action.low)
        else:
            count = 1 if self._single else table.shape[1] if table is not None else len(action.sizes)  # type: ignore[union-attr]
            self._kind, self._count = np.dtype(np.int32), count
        act = f"action[0] = {name}_act(observation)" if self._single else f"{name}_act(observation, action)"
        kind = "float" if self._kind == np.float32 else "int"
        source, program = header.with_name("main.c"), header.with_name("main")
        words = {"header": header.name, "NAME": name.upper(), "name": name, "kind": kind, "count": self._count, "act": act}
        source.write_text(PROGRAM.format(**words), encoding="utf-8")
        command = [with_compiler or compiler(), *FLAGS, str(source), "-o", str(program), "-lm"]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            raise CheckpointError(f"the C compiler refuses the header: {made.stderr.splitlines()[0]}")
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> CRunner:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __call__(self, observation: Mapping[str, np.ndarray], reset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self._process.stdin is not None and self._process.stdout is not None
        parts = [np.asarray(values, np.float32).reshape(len(reset), -1) for values in observation.values()]
        actions, outputs = [], []
        for row in np.concatenate(parts, 1):
            self._process.stdin.write(row.tobytes())
            self._process.stdin.flush()
            outputs.append(np.frombuffer(self._process.stdout.read(4 * self._width), np.float32))
            actions.append(np.frombuffer(self._process.stdout.read(4 * self._count), self._kind))
        found = np.stack(actions)
        shape = () if self._single else getattr(self._policy.action_space, "shape", None) or (self._count,)
        return found.reshape(len(found), *shape), np.stack(outputs)
