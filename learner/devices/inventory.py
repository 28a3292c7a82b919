"""Lists every kind of accelerator: what it supports, or why it is not available.

`python -m learner.devices.inventory` prints the list as JSON, for `headrace doctor`.
"""

from __future__ import annotations

import json
import sys

import torch

from learner.devices import detection
from learner.devices.capabilities import Capabilities, backend, capabilities, precision
from learner.devices.detection import KINDS, resolve

ADAM = {"fused": "fused optimiser", "foreach": "multi-tensor optimiser", "single": "plain optimiser"}


def inventory() -> dict[str, object]:
    """A JSON object.

    `auto`: the device that auto means, the first of `order` that is available. `kinds`: a row for each `kind`, either with the
    reason why it is `missing`, or with its `name`, `precision`, what it `can` do, and its free `memory`, as text. `advice`: a
    line about DirectML, or empty. `built`: what torch was built for. `next`: the command that installs a build for this machine's
    GPU, where torch can use none and there is one.
    """
    chosen = resolve("auto")
    rows = [_row(kind, chosen) for kind in ("cuda", "rocm", "xpu", "mps", "directml", "cpu")]
    command = detection.next_command() if chosen.type == "cpu" else ""
    return {
        "auto": str(chosen),
        "order": [*KINDS, "cpu"],
        "kinds": rows,
        "advice": detection.directml_advice(),
        "built": detection.kernels(),
        "next": command,
    }


def _row(kind: str, chosen: torch.device) -> dict[str, str]:
    row = dict.fromkeys(("missing", "name", "precision", "can", "memory"), "") | {"kind": kind}
    try:
        reason = missing(kind, chosen)
        return row | ({"missing": reason} if reason else _working(kind))
    except Exception as error:  # drivers raise what they like when they are asked
        return row | {"missing": detection.failure(error)}


def _working(kind: str) -> dict[str, str]:
    device = resolve("cuda" if kind == "rocm" else kind)
    able = capabilities(device)
    name = f"{able.name}, addressed as cuda" if kind == "rocm" else able.name
    return {"name": name, "precision": precisions(device), "can": abilities(able), "memory": memory(device)}


def missing(kind: str, chosen: torch.device) -> str:
    """Why a kind is not available; empty if it is."""
    if kind == "cpu":
        return ""
    if kind in ("cuda", "rocm"):
        return (detection.missing_cuda() if kind == "cuda" else detection.missing_rocm()) or detection.without_kernels(0)
    if kind == "directml" and chosen.type in KINDS:  # another accelerator is available, so do not import torch_directml
        return detection.directml_obstacles() or f"not tried, because {chosen.type} is available; --device directml tries it"
    return detection.missing(kind)


def precisions(device: torch.device) -> str:
    """The precision that auto means on the device, and the others that it supports."""
    usual, convolutions = precision("auto", device), precision("auto", device, convolutions=True)
    others = [name for name in capabilities(device).precisions if name not in (usual, convolutions)]
    large = f", {convolutions} for large convolutions" if convolutions != usual else ""
    demand = f"; on demand {' or '.join(others)}" if others else ""
    return f"{usual}{large}{demand}"


def abilities(able: Capabilities) -> str:
    """The features that the learner uses on the device, and those that the device lacks."""
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
    """How much memory is free, and what that means for batches; empty where the device does not report it."""
    if not capabilities(device).memory_figures:
        return ""
    free, total = backend(device).mem_get_info(device)
    return (
        f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free: a larger batch is accumulated in parts that fit; "
        "--learner.memory-limit-bytes leaves some to other programs"
    )


if __name__ == "__main__":
    print(json.dumps(inventory()))
    sys.exit(0)
