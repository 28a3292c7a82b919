"""`python -m learner.devices.probe NAME PRECISION PROCESSES`: the child of `headrace up` that imports torch.

It imports torch while another child tests the environment, and prints the device as a line of JSON. Then it reads a Question, a
line of JSON on standard input, builds the policy, and prints an Answer: the policy's description, or an error.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from learner.algorithms.base import make_algorithm, read_algorithm
from learner.devices import detection
from learner.devices.capabilities import DeviceError, capabilities, precision
from learner.inference.base import PolicyDescription
from learner.networks.describe import describe
from learner.parallel.ranks import resolve_each
from transport.experience import read_spec


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The [algorithm] section of a run, and its spec as in spec.json."""

    algorithm: dict[str, Any]
    spec: str


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy's description, or in one line why there is none."""

    policy: PolicyDescription | None = None
    error: str = ""


def probe(name: str, wanted: str, processes: int) -> dict[str, object]:
    """The first process's `device` and its `name`, and the number of `processes`; or an `error` in one line.

    Where auto means the CPU although the machine has a GPU, `note` says why.
    """
    flag = "--device"
    try:
        device = resolve_each(name, processes)[0]
        flag = "--learner.precision"
        precision(wanted, device)
    except DeviceError as error:
        return {"error": f"{flag}: {error}"}
    note = detection.missing("cuda") if name == "auto" and device.type == "cpu" and detection.gpus() else ""
    return {"device": str(device), "name": capabilities(device).name, "note": note, "processes": processes}


def answer(question: Question) -> Answer:
    """Builds the policy to describe it, so that actors need not build it."""
    try:
        algorithm = make_algorithm(read_algorithm(question.algorithm))
        return Answer(describe(algorithm.policy(read_spec(question.spec.encode()))))
    except ValueError as error:  # SpecError, UnknownName and NetworkError, too
        return Answer(error=" ".join(str(error).split()))
    except Exception as error:
        name = question.algorithm.get("name")
        return Answer(error=f"--algo {name} fails: {type(error).__name__}: {' '.join(str(error).split())}")


def main() -> None:
    print(json.dumps(probe(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
    if line := sys.stdin.readline():
        print(msgspec.json.encode(answer(msgspec.json.decode(line, type=Question))).decode(), flush=True)


if __name__ == "__main__":
    main()
