"""What the script of each peer has that trains for `headrace suite`: its commands, as deploy/studies/suite/peer.py says, and the
saving of policies. Needs numpy alone: it runs in their environments.

While a peer trains, the policy's arrays are written to a file every few seconds: arrays alone, never a pickle. Training ends by
itself, at the limit of the task, when it is asked to (SIGTERM), or when its parent has ended.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actors.evaluation.pipe import Act, serve

SUFFIX = ".npz"
Request = dict[str, Any]
Arrays = dict[str, np.ndarray]


class Wrong(ValueError):
    """Settings that cannot be run: one line."""


class Contestant(NamedTuple):
    """A peer. `check` raises for settings that cannot be run; `train` returns the steps and all settings; `load` makes what reads
    a policy's file. `packages`: whose versions are told."""

    check: Callable[[Request], object]
    train: Callable[[Request], tuple[int, dict[str, Any]]]
    load: Callable[[Request], Callable[[str], Act]]
    packages: tuple[str, ...]


class Saver:
    """Writes policies. `turn` is called often while a peer trains."""

    def __init__(self, request: Request) -> None:
        self._folder, self._request = Path(request["folder"]), request
        self._due, self._number, self._parent = 0.0, 0, os.getppid()
        self._asked_to_end = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_end)

    @property
    def seconds(self) -> float:
        """Since the process was started."""
        return time.time() - float(self._request["began"])

    def _ask_to_end(self, *_signal: object) -> None:
        self._asked_to_end = True

    def over(self, steps: int) -> bool:
        limit = self._request["total_steps"]
        late = self.seconds >= self._request["seconds"] or (limit and steps >= limit)
        return bool(late or self._asked_to_end or os.getppid() != self._parent)

    def turn(self, steps: int, arrays: Callable[[], Arrays]) -> bool:
        """Saves the policy if it is due. False when training is to end."""
        if self.seconds >= self._due:
            self.save(steps, arrays())
        return not self.over(steps)

    def save(self, steps: int, arrays: Arrays, made: float = 0.0) -> None:
        """The policy as it is now, or was at the time `made`."""
        self._number += 1
        file = f"policy-{self._number:05d}{SUFFIX}"
        data = io.BytesIO()
        np.savez(data, **arrays)  # type: ignore[arg-type]
        (self._folder / file).write_bytes(data.getvalue())
        seconds = made - float(self._request["began"]) if made else self.seconds
        line = {"file": file, "seconds": round(seconds, 3), "steps": steps}
        with (self._folder / "snapshots.jsonl").open("a") as lines:  # actors/evaluation/lines.py has more than a peer may have
            lines.write(json.dumps(line) + "\n")
        self._due = self.seconds + self._request["snapshot_seconds"]


def environment(request: Request) -> tuple[str, dict[str, Any]]:
    """A registered id and its keyword arguments. Raises Wrong."""
    settings, env = request["settings"], dict(request["env"])
    env_id = env.pop("id")
    if "env" in settings:
        return str(settings["env"]), dict(settings.get("env_kwargs", {}))
    if "wrappers" in env or "stack" in env or "quantise" in env:
        raise Wrong("env.wrappers, env.stack and env.quantise are Headrace's: give the peer its own `env`")
    return env_id, env | dict(settings.get("env_kwargs", {}))


def known(request: Request, defaults: dict[str, Any]) -> dict[str, Any]:
    """The settings, with the defaults of those that are not given. Raises Wrong for one that has none."""
    settings = request["settings"]
    if unknown := sorted(set(settings) - set(defaults) - {"env", "env_kwargs"}):
        raise Wrong(f"unknown setting {', '.join(unknown)}; there are {', '.join(sorted(defaults))}")
    return defaults | settings


def numpy_mlp(layers: list[tuple[np.ndarray, np.ndarray]], active: Callable[[np.ndarray], np.ndarray]) -> Act:
    """The outputs of an MLP of pairs of weights [in, out] and biases [out]."""

    def outputs(observation: np.ndarray) -> np.ndarray:
        values = observation
        for number, (weight, bias) in enumerate(layers):
            values = (active(values) if number else values) @ weight + bias
        return values

    return outputs


def run(contestant: Contestant, word: str, argument: str) -> None:
    """A command."""
    versions = {"python": sys.version.split()[0]} | {name: version(name) for name in contestant.packages}
    if word == "check":
        asked = json.loads(argument)
        found = {name: text for name, request in asked.items() if (text := complaint(contestant, request))}
        print(json.dumps({"complaints": found, "versions": versions}))
        return
    request = json.loads(Path(argument).read_text())
    if word == "train":
        steps, settings = contestant.train(request)
        used = settings | {"threads": request["threads"], "env": request["env"], "seed": request["seed"]}
        end = {"steps": steps, "configuration": used, "versions": versions}
        (Path(request["folder"]) / "end.json").write_text(json.dumps(end))
        return
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    serve(contestant.load(request), sys.stdin.buffer, answers)


def complaint(contestant: Contestant, request: Request) -> str:
    """The mistake in a task's settings, in one line; empty if there is none."""
    try:
        contestant.check(request)
    except Exception as error:  # an environment may raise anything
        return " ".join(str(error).split()) or type(error).__name__
    return ""
