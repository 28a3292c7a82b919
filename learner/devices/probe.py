"""`python -m learner.devices.probe NAME PRECISION PROCESSES`: whether a learner can be as it is asked to be here, in
a line of JSON."""

from __future__ import annotations

import json
import sys

from learner.devices import detection as finding
from learner.devices.capabilities import DeviceError, capabilities, precision
from learner.parallel.ranks import resolve_each


def probe(name: str, wanted: str, processes: int) -> dict[str, object]:
    """The first process's `device` and its `name`, and how many `processes`; or the `error`, in a line.

    Where auto comes to nothing but the CPU beside a GPU, `note` says why.
    """
    flag = "--device"
    try:
        device = resolve_each(name, processes)[0]
        flag = "--learner.precision"
        precision(wanted, device)
    except DeviceError as error:
        return {"error": f"{flag}: {error}"}
    note = finding.missing("cuda") if name == "auto" and device.type == "cpu" and finding.gpus() else ""
    return {"device": str(device), "name": capabilities(device).name, "note": note, "processes": processes}


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
