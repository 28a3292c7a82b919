"""Finds out what the learner will compute on and what the policy's network is made of.

The waiting learner answers that, or this process where the run is to have no other; where torch is needed it has that.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import msgspec

from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from deploy.places.waiting import WaitingLearner
from learner.algorithms.base import make_algorithm
from learner.config import LearnerConfig
from learner.description import PolicyDescription
from learner.devices import installing
from transport.experience import ExperienceSpec, write_spec

SECONDS = 120.0  # for each answer


class Probe(Protocol):
    """The questions of the pre-flight."""

    def device(self) -> dict[str, Any]:
        """The device of the learner, which is printed. Raises ConfigError."""

    def policy(self, config: RunConfig, spec: ExperienceSpec) -> PolicyDescription:
        """The parts of the policy's network. Raises ConfigError where it cannot be built."""


class ProbeHere:
    """Answers in this process. What a user's code raises is raised, with its traceback."""

    def __init__(self, learner: LearnerConfig) -> None:
        self._config = learner

    def device(self) -> dict[str, Any]:
        from learner.probe import probe

        return _checked_device(probe(self._config.device, self._config.precision, self._config.processes))

    def policy(self, config: RunConfig, spec: ExperienceSpec) -> PolicyDescription:
        from learner.probe import description

        try:
            return description(make_algorithm(config.algorithm), spec, config.learner)
        except ValueError as error:  # SpecError, UnknownName and NetworkError, too
            raise ConfigError(str(error)) from error


class LearnerProbe:
    """Asks the waiting learner, which then learns in the run; it is the caller's to end."""

    def __init__(self, learner: WaitingLearner) -> None:
        self._learner = learner

    def device(self) -> dict[str, Any]:
        return _checked_device(self._answer("looking for the device", "name one with --device cpu"))

    def policy(self, config: RunConfig, spec: ExperienceSpec) -> PolicyDescription:
        self._learner.ask(question(config, spec))
        found = self._answer("building the network", "try another with --algorithm.network")
        if found["error"]:
            raise ConfigError(found["error"])
        return msgspec.convert(found["policy"], PolicyDescription)

    def _answer(self, task: str, remedy: str) -> dict[str, Any]:
        """The next answer. Raises ConfigError."""
        last = ""
        try:
            for line in self._learner.lines(SECONDS):
                if found := read_answer(line):
                    return found
                last = line.strip() or last
        except TimeoutError:
            raise ConfigError(f"{task} took more than {SECONDS:.0f} s; {remedy}") from None
        why = installing.missing_package(last) or last or f"exit {self._learner.exit_code}"
        raise ConfigError(f"{task} failed: {why}")


def _checked_device(found: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        raise ConfigError(found["error"])
    together = f", {found['processes']} processes" if found["processes"] > 1 else ""
    note = f"; {found['note']}" if found["note"] else ""
    print(f"learner on {found['device']} ({found['name']}){together}{note}", flush=True)
    return found


def question(config: RunConfig, spec: ExperienceSpec) -> str:
    """The question to learner/probe.py about a policy, in one line."""
    asked = {"algorithm": config.algorithm.flat(), "spec": write_spec(spec).decode(), "learner": config.learner}
    return msgspec.json.encode(asked).decode()


def read_answer(line: str) -> dict[str, Any]:
    """The JSON object of a line; empty for another line, which torch or a user's module prints."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
