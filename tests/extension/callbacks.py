"""Callbacks of a package outside: some that write down what they are told, and some that misbehave."""

import os
import sys
import time
from pathlib import Path

from deploy.reporting.base import Callbacks, Point


class Recording(Callbacks):
    def on_metrics(self, point: Point) -> None:
        self._note(f"metrics {point.steps} {len(point.values)}")

    def on_evaluation(self, point: Point) -> None:
        self._note(f"evaluation {point.steps} {dict(point.values)}")

    def on_checkpoint(self, path: Path) -> None:
        self._note(f"checkpoint {path.name}")

    def _note(self, line: str) -> None:
        with (self.run / "told.txt").open("a") as file:
            file.write(f"{line} {os.getpid()}\n")


class Bare:
    """Inherits nothing and has one method."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def on_metrics(self, point: Point) -> None:
        print(f"{point.steps} steps, input {sys.stdin.read()!r}")
        if point.steps == 100:
            raise ValueError("no route to the chat room")


class Satisfied(Callbacks):
    """Wants the run to end as soon as the return is good."""

    def on_metrics(self, point: Point) -> None: ...

    def on_evaluation(self, point: Point) -> bool:
        return point.values["eval/mean_reward"] < 475


class Hanging(Callbacks):
    def on_metrics(self, point: Point) -> None:
        (self.run / "hanging.pid").write_text(str(os.getpid()))
        while True:
            time.sleep(60)


class Dying(Callbacks):
    def on_metrics(self, point: Point) -> None:
        print("the last words", flush=True)
        os._exit(3)


class Misspelt(Callbacks):
    def on_checkpoints(self, path: Path) -> None: ...


class Nothing(Callbacks):
    pass
