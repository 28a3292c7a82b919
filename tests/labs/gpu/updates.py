"""`python -m tests.labs.gpu.updates`: every update on the stand-in and on the CPU, a line of JSON each."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from tests.labs.gpu import stand_in  # isort: skip  # before torch

import torch

from benchmarks.device.updates import CASES, Case, Learning, learning

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
STEPS = 3
STEPS_OF_PQN = 2  # each is 64 steps of Adam, which enlarge rounding: after a third update gradients differ by one percent
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"precision": "float32"},
    "bfloat16": {"precision": "bfloat16"},
    "float16": {"precision": "float16"},
    "accumulated": {"precision": "float32", "accumulation": 2},
}


def learned(case: Case, device: torch.device, settings: dict[str, Any]) -> tuple[Learning, dict[str, float], dict[str, int]]:
    """After the last update, with its figures and what it made the host wait for."""
    assert stand_in.card is not None
    made = learning(case, device, graphs="off", **settings)
    torch.manual_seed(2)
    for _ in range((STEPS_OF_PQN if case.algorithm == "pqn" else STEPS) - 1):
        made.update.update(made.batch)
    outcome, waits = stand_in.card.waits_of(lambda: made.update.update(made.batch))
    figures = {name: float(value) for name, value in (outcome.metrics | made.runtime.figures()).items()}
    assert all(value.device == device for value in outcome.metrics.values()), "metrics on another device"
    return made, figures, waits


def compare(case: Case, settings: dict[str, Any]) -> dict[str, Any]:
    """The case's line."""
    there, figures, waits = learned(case, CARD, settings)
    here, expected, _ = learned(case, CPU, settings | {"precision": "float32"})
    apart = max(
        float((one.detach().cpu().float() - other.detach().float()).abs().max())
        for name, module in there.update.modules.items()
        for one, other in zip(module.state_dict().values(), here.update.modules[name].state_dict().values(), strict=True)
    )
    return {"figures": figures, "expected": expected, "waits": waits, "apart": apart}


def wanted(name: str, setting: str) -> bool:
    """Every case in float32, those of images in the other precisions, too; accumulated is one of each algorithm and kind."""
    if setting == "accumulated":
        return name.endswith((" vector", " lstm"))
    return setting == "float32" or CASES[name].images


def main() -> None:
    """All that are wanted, or those of the cases that are named."""
    warnings.simplefilter("ignore")  # torch's of a device that it was not built for
    torch.set_num_threads(1)
    for name, case in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        for setting, given in SETTINGS.items():
            if not wanted(name, setting):
                continue
            line: dict[str, Any] = {"case": name, "setting": setting}
            try:
                line |= compare(case, given)
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error}"
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
