"""An array as three figures, and whether two such are those of one array."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILE = Path(__file__).with_name("figures.json")
Figures = dict[str, list[Any]]  # by array: type and shape, SHA-256, norm, projection
TOLERANCE = 1e-2  # of the norm, on another processor


def processor() -> str:
    """Differs where the same arithmetic may round otherwise."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    except OSError:
        model = [platform.processor(), platform.machine()]
    versions = [torch.__version__, np.__version__, torch.backends.cpu.get_cpu_capability()]
    return hashlib.sha256("\n".join([*model, *versions]).encode()).hexdigest()[:16]


def figure(array: np.ndarray) -> list[Any]:
    """The projection tells a permutation, which the norm does not."""
    values = np.nan_to_num(np.asarray(array, np.float64).reshape(-1), nan=-1.0)
    direction = np.cos(np.arange(len(values)) * 1.618 + 0.3)
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]
    kind = f"{np.dtype(array.dtype).str} {list(array.shape)}"
    return [kind, digest, float(np.linalg.norm(values)), float(values @ direction)]


def differences(found: Figures, expected: Figures, exactly: bool) -> list[str]:
    """One line for each array that is another one."""
    lines = [f"{name} is missing" for name in expected.keys() - found.keys()]
    lines += [f"{name} is new" for name in found.keys() - expected.keys()]
    for name in sorted(found.keys() & expected.keys()):
        (kind, digest, norm, projection), (was_kind, was_digest, was_norm, was_projection) = found[name], expected[name]
        if kind != was_kind:
            lines.append(f"{name} is {kind}, was {was_kind}")
            continue
        if digest == was_digest:
            continue
        room = TOLERANCE * max(abs(was_norm), 1e-3)
        near = abs(norm - was_norm) <= room and abs(projection - was_projection) <= room
        if exactly or not near:
            lines.append(
                f"{name} {kind}: norm {norm:.9g}, was {was_norm:.9g}; projection {projection:.9g}, was {was_projection:.9g}"
            )
    return lines


def read() -> dict[str, Any]:
    """All cases, and the processor that wrote them."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def write(processor_of: str, cases: dict[str, Figures]) -> None:
    """One array a line, so that a change shows what changed."""
    lines = [f' "processor": "{processor_of}"']
    for case, arrays in sorted(cases.items()):
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(arrays.items()))
        lines.append(f" {json.dumps(case)}: {{\n{rows}\n }}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
