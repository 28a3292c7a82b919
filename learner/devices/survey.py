"""Every kind of accelerator: what it can do where it is there, and why it is missing where it is not.

`python -m learner.devices.survey` prints it in JSON.
"""

from __future__ import annotations

import json
import sys

import torch

from learner.devices import detection
from learner.devices.capabilities import KINDS, Capabilities, backend, capabilities, precision, resolve

ADAM = {"fused": "fused optimiser", "foreach": "multi-tensor optimiser", "single": "plain optimiser"}


def survey() -> dict[str, object]:
    """`auto`: the device that it means, the first of `order` that is there. `kinds`: a row for each `kind`, with why it is
    `missing` or with its `name`, what it computes in (`precision`), what it `can` do and how much `memory` is free, in words.
    `advice`: a line, or nothing."""
    chosen = resolve("auto")
    rows = [_row(kind, chosen) for kind in ("cuda", "rocm", "xpu", "mps", "directml", "cpu")]
    return {"auto": str(chosen), "order": [*KINDS, "cpu"], "kinds": rows, "advice": detection.directml_advice()}


def _row(kind: str, chosen: torch.device) -> dict[str, str]:
    row = dict.fromkeys(("missing", "name", "precision", "can", "memory"), "") | {"kind": kind, "missing": _missing(kind, chosen)}
    if row["missing"]:
        return row
    device = resolve("cuda" if kind == "rocm" else kind)
    able = capabilities(device)
    name = f"{able.name}, addressed as cuda" if kind == "rocm" else able.name
    return row | {"name": name, "precision": precisions(device), "can": abilities(able), "memory": memory(device)}


def _missing(kind: str, chosen: torch.device) -> str:
    """Why it is not to be had; empty if it is."""
    if kind == "cpu":
        return ""
    if kind in ("cuda", "rocm"):
        return detection.missing_cuda() if kind == "cuda" else detection.missing_rocm()
    if kind == "directml" and chosen.type in KINDS:  # another accelerator is there, so it is not worth an import
        return detection.directml_obstacles() or f"not tried, since {chosen.type} is here; --device directml tries it"
    return detection.missing(kind)


def precisions(device: torch.device) -> str:
    """What the device computes in by itself, and in what on demand."""
    usual, convolutions = precision("auto", device), precision("auto", device, convolutions=True)
    others = [name for name in capabilities(device).precisions if name not in (usual, convolutions)]
    large = f", {convolutions} for large convolutions" if convolutions != usual else ""
    demand = f"; on demand {' or '.join(others)}" if others else ""
    return f"{usual}{large}{demand}"


def abilities(able: Capabilities) -> str:
    """What the learner makes use of, and what it does without."""
    several = f"several processes ({able.collectives})" if able.collectives else "several processes"
    rest = {
        "pinned memory": able.pinned_memory,
        "copies beside computing": able.streams,
        "graphs": able.graphs,
        "torch.compile": able.compiles,
        several: bool(able.collectives),
    }
    has = [ADAM[able.adam], *(name for name, there in rest.items() if there)]
    lacks = [name for name, there in rest.items() if not there]
    return ", ".join(has) + (f"; no {', '.join(lacks)}" if lacks else "")


def memory(device: torch.device) -> str:
    """How much is free, where the device tells, and what that means for batches; else nothing."""
    if not capabilities(device).memory_figures:
        return ""
    free, total = backend(device).mem_get_info(device)
    return (
        f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free: a larger batch is accumulated in parts that fit; "
        "--learner.memory-limit-bytes leaves some to others"
    )


if __name__ == "__main__":
    print(json.dumps(survey()))
    sys.exit(0)
