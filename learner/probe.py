"""Questions of `headrace up` about the device and the policy, before its processes start. Torch is imported only to be asked.

The process prints a line of JSON about the device. Then it reads a question, a line of JSON with an algorithm and an experience
spec, and prints the description of the policy, or an error. Then it reads the folder of a run: it is the learner of that run.
`python -m learner.probe NAME PRECISION PROCESSES` only answers questions, until its input ends.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from learner.algorithms.base import Algorithm, known_description, make_algorithm, read_algorithm
from learner.computing.choose import check
from learner.config import LearnerConfig
from learner.description import PolicyDescription
from learner.devices.errors import DeviceError
from learner.devices.installing import missing_package
from learner.devices.known import CPU_NAME, CPU_PRECISIONS, is_cpu, unused_gpu
from learner.program.network import is_learnable
from transport.experience import ExperienceSpec, read_spec


class PolicyQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sections [algorithm] and [learner] of a run, and its spec as in spec.json."""

    algorithm: dict[str, Any]
    spec: str
    learner: LearnerConfig = LearnerConfig()


class PolicyAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy's description, or in one line why there is none."""

    policy: PolicyDescription | None = None
    error: str = ""


def probe(name: str, wanted: str, processes: int) -> dict[str, object]:
    """The first process's `device` and its `name`, and the number of `processes`; or an `error` in one line.

    Where auto means the CPU although the machine has a GPU, `note` says why.
    """
    if processes == 1 and wanted in ("auto", *CPU_PRECISIONS) and is_cpu(name):
        note = unused_gpu() if name == "auto" else ""
        return {"device": "cpu", "name": CPU_NAME, "note": note, "processes": 1}
    from learner.devices import detection
    from learner.devices.capabilities import capabilities, precision
    from learner.parallel.ranks import resolve_each

    flag = "--device"
    try:
        device = resolve_each(name, processes)[0]
        flag = "--learner.precision"
        precision(wanted, device)
    except DeviceError as error:
        return {"error": f"{flag}: {error}"}
    note = detection.missing("cuda") if name == "auto" and device.type == "cpu" and detection.gpus() else ""
    return {"device": str(device), "name": capabilities(device).name, "note": note, "processes": processes}


def answer(question: PolicyQuestion) -> PolicyAnswer:
    """Describes the policy, so that actors need not build it."""
    try:
        algorithm = make_algorithm(read_algorithm(question.algorithm))
        return PolicyAnswer(description(algorithm, read_spec(question.spec.encode()), question.learner))
    except ValueError as error:  # SpecError, UnknownName and NetworkError, too
        return PolicyAnswer(error=" ".join(str(error).split()))
    except ModuleNotFoundError as error:
        return PolicyAnswer(error=missing_package(str(error)) or str(error))
    except Exception as error:
        name = question.algorithm.get("name")
        return PolicyAnswer(error=f"--algo {name} fails: {type(error).__name__}: {' '.join(str(error).split())}")


def description(algorithm: Algorithm, spec: ExperienceSpec, config: LearnerConfig) -> PolicyDescription:
    """Where a part is not known, torch builds the policy to look at it. Raises ValueError (also SpecError and NetworkError), also
    where `config` asks for an engine that cannot learn it, and what a user's code raises."""
    found = known_description(algorithm, spec)
    if found is None:
        from learner.networks.describe import describe

        found = describe(algorithm.policy(spec))
    check(algorithm, config, spec)
    return found


def serve(name: str, wanted: str, processes: int) -> str:
    """Answers on standard output. Returns the folder of the run, or nothing where standard input ends before it."""
    _print(json.dumps(probe(name, wanted, processes)))
    if not (line := sys.stdin.readline()):
        return ""
    policy = _answer(line)
    if policy is not None and not is_learnable(policy):  # by the engine
        import torch  # noqa: F401  # while the command makes the run's folder

    return sys.stdin.readline().removesuffix("\n")


def main() -> None:
    """Answers until standard input ends."""
    _print(json.dumps(probe(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    for line in sys.stdin:
        _answer(line)


def _answer(line: str) -> PolicyDescription | None:
    """Also returns the policy's description, if there is one."""
    given = answer(msgspec.json.decode(line, type=PolicyQuestion))
    _print(msgspec.json.encode(given).decode())
    return given.policy


def _print(line: str) -> None:
    """A line of its own, also where a user's module has printed something without an end."""
    print(f"\n{line}", flush=True)


if __name__ == "__main__":
    main()
