"""Compiles a C header with a small program around it, and runs it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from actors import compiling
from actors.exports.policy import PortablePolicy
from learner.weights.checkpoint import CheckpointError
from transport.experience import Categorical, Continuous

FLAGS = ("-std=c99", "-O2")
SECONDS = 120.0  # for the compiler, and for the program to end
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


def compiler() -> list[str]:
    """As actors.compiling's. Raises CheckpointError where there is none."""
    try:
        return compiling.compiler()
    except OSError as error:
        raise CheckpointError(f"a C header is checked before it is written, and {error}") from error


class CRunner:
    """A header's policy in a process of its own; use it in a `with` block."""

    def __init__(self, policy: PortablePolicy, header: Path, name: str, outputs: int, *flags: str) -> None:
        """Compiles beside the header, with further flags. Raises CheckpointError."""
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
        command = [*compiler(), *FLAGS, *flags, str(source), "-o", str(program), "-lm"]
        try:
            made = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
            if made.returncode:
                lines = [line for line in made.stderr.splitlines() if "error" in line] or [f"exit {made.returncode}"]
                raise CheckpointError(f"the C compiler refuses the header: {lines[0]}")
            self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except (OSError, subprocess.SubprocessError) as error:
            raise CheckpointError(f"a C header is checked before it is written, which failed: {error}") from error

    def __enter__(self) -> CRunner:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __call__(self, observation: Mapping[str, np.ndarray], reset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self._process.stdin is not None and self._process.stdout is not None
        parts = [np.asarray(values, np.float32).reshape(len(reset), -1) for values in observation.values()]
        try:
            rows = [self._one(row.tobytes()) for row in np.concatenate(parts, 1)]
        except (OSError, ValueError) as error:  # it has ended
            raise CheckpointError(f"a C header is checked before it is written, which failed: {error}") from error
        outputs, found = (np.stack(values) for values in zip(*rows, strict=True))
        shape = () if self._single else self._policy.action_space.shape
        return found.reshape(len(found), *((self._count,) if shape is None else shape)), outputs

    def _one(self, observation: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and action. Raises OSError or ValueError where the program has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(observation)
        self._process.stdin.flush()
        outputs = np.frombuffer(self._process.stdout.read(4 * self._width), np.float32, self._width)
        return outputs, np.frombuffer(self._process.stdout.read(4 * self._count), self._kind, self._count)
