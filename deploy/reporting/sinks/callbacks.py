"""A user's callbacks, which receive points, evaluations and checkpoints: `--callbacks package.module:Name`.

`python -m deploy.reporting.sinks.callbacks NAME` imports them and says what is wrong with them. It is a separate process,
because the import of a user's module must not affect the supervisor.
"""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from deploy.children import python_command, run_child
from deploy.errors import ConfigError
from deploy.reporting.base import EVALUATION, Callbacks, Point
from transport.messages.control import Stop
from transport.messages.fields import printable
from transport.names import UnknownName, find, nearest
from transport.run_dir import RunDir
from transport.sockets.client import Client
from transport.sockets.keys import OPERATOR

CHECK_SECONDS = 60.0  # importing a large library takes seconds, on a busy machine many
ANSWER_SECONDS = 2.0
METHODS = tuple(name for name in vars(Callbacks) if name.startswith("on_"))


class CallbackConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """`name` is the class of the callbacks: package.module:Name."""

    name: str


class CallbackSink:
    """Calls the methods of the callbacks. It looks for new checkpoints at each point."""

    Config: ClassVar[type[Struct]] = CallbackConfig
    own_process: ClassVar[bool] = True

    def __init__(self, run: Path, config: CallbackConfig) -> None:
        self._run = RunDir(run)
        self._checkpoints = self._run.checkpoints
        self._found = find(config.name, {}, "callbacks")(run)
        self._known = self._files()

    def write(self, record: Point) -> None:
        self._call("on_metrics", record)
        evaluation = {tag: value for tag, value in record.values.items() if tag.startswith(EVALUATION)}
        if evaluation:
            self._call("on_evaluation", record._replace(values=evaluation))
        self._look()

    def close(self) -> None:
        self._look()

    def _look(self) -> None:
        """Reports the files that were written since the last call."""
        before, self._known = self._known, self._files()
        for path, written in sorted(self._known.items(), key=lambda entry: entry[1]):
            if before.get(path) != written:
                self._call("on_checkpoint", path)

    def _files(self) -> dict[Path, int]:
        """When each checkpoint was written, in nanoseconds."""
        found = {}
        for path in self._checkpoints.glob("[!.]*.safetensors"):
            try:
                found[path] = path.stat().st_mtime_ns
            except OSError:  # removed since it was listed
                continue
        return found

    def _call(self, method: str, argument: Any) -> None:
        found = self._found
        called: Callable[[Any], object] | None = getattr(found, method, None)
        if called is None:
            return
        try:
            if called(argument) is False:
                stop(self._run, f"{type(found).__name__}.{method} returned False")
        except Exception:
            traceback.print_exc()


def stop(run: RunDir, reason: str) -> None:
    """Asks the supervisor to stop the run."""
    address = run.endpoint("supervisor")
    if address is None:  # it has stopped
        return
    client = Client(address, keys=run.keys(OPERATOR), endpoint="supervisor")
    try:
        client.send(Stop(printable(reason)))
        client.receive(ANSWER_SECONDS)
    finally:
        client.close()


def check(name: str, here: bool = False) -> None:
    """Raises ConfigError where these callbacks cannot be imported, into this process if `here`, or have no method that is ever
    called."""
    if here:
        if wrong := complaint(name):
            raise ConfigError(f"--callbacks: {wrong}")
        return
    try:
        done = run_child(python_command("deploy.reporting.sinks.callbacks", name), CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--callbacks {name}: importing it takes longer than {CHECK_SECONDS:.0f} s") from None
    if done.returncode:
        reason = next(iter((done.stderr or done.stdout).splitlines()[-1:]), f"importing it ended with {done.returncode}")
        raise ConfigError(f"--callbacks: {reason}")


def complaint(name: str) -> str:
    """The fault of the callbacks of this name, as a line; empty if there is none."""
    try:
        found = find(name, {}, "callbacks")
    except UnknownName as error:
        return str(error)
    if not callable(found):
        return f"{name} is not a class"
    own = [method for method in dir(found) if method.startswith("on_")]
    if unknown := [method for method in own if method not in METHODS]:
        return f"{name} has {unknown[0]}, which is never called; {nearest(unknown[0], METHODS)}"
    if all(getattr(found, method, None) in (None, getattr(Callbacks, method)) for method in METHODS):
        return f"{name} has none of the methods {', '.join(METHODS)}"
    return ""


def main() -> int:
    wrong = complaint(sys.argv[1])
    if wrong:
        print(wrong, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
