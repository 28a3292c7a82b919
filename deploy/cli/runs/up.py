"""`headrace up`: starts a run, or resumes one."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import signal
import sys
import time
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, TextIO, cast

from actors.config import EnvConfig
from deploy import runs
from deploy.cli.common import DONE, FAILED, REFUSED, add_trust, complain
from deploy.cli.streams import UnbreakableStream
from deploy.config import command_line, options
from deploy.config.files import merge, preset_for, with_origins
from deploy.config.stop_conditions import StopConditions, add_stop_options, stop_conditions
from deploy.errors import ConfigError
from deploy.launch.prepare import Launch, LaunchRequest, prepare
from deploy.signals import stop_signals
from learner.devices.errors import DeviceError
from learner.weights.errors import CheckpointError
from transport.names import PACKAGES
from transport.run_dir import RunDir

if TYPE_CHECKING:
    from deploy.serial.run import SerialRun

READY_SECONDS = 90.0
NOT_SERIAL = ("detach", "web", "json", "resume")
USAGE_LINE = "headrace up [--env ENV] [--algo NAME] [--actors N] [--run NAME] [--section.field VALUE …]"
DESCRIPTION = """\
Start a run: replay, learner, actors and evaluator, which are restarted when they fail, until Ctrl-C or `headrace down`.

  headrace up --env mario --actors 4
  headrace up --env CartPole-v1 --total-steps 1e6 --seed 3 --run first
  headrace up --env my.package:make_env --config mine.toml --learner.learning-rate 3e-4
  headrace up --env mario --actors 256 --on ray    hosts for the actors on a cluster of Ray
  headrace up --run first                     resume a stopped run with its own settings
  headrace up --run first --fresh             move the old folder aside and start anew

A setting comes from the first of these that has it: the command line, --config, --preset, the preset for the environment
(`headrace presets` lists them), the algorithm, the defaults shown below.
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    """All settings of a run are options; those of an algorithm of one's own too, where it is named."""
    algorithm = command_line.typed_algorithm(typed, runs.run_dir)
    group = target.add_argument_group("starting")
    group.add_argument(
        "--run",
        metavar="NAME",
        help="name of the run; a stopped run of this name is resumed (default: ENV-ALGORITHM, such as mario-ppo)",
    )
    group.add_argument("--config", type=Path, metavar="FILE.toml", help="file with settings, in the form of a run's config.toml")
    group.add_argument(
        "--preset",
        metavar="NAME",
        help="apply this preset over the one for the environment, and take its environment where --env names none; "
        "`headrace presets` lists them",
    )
    group.add_argument(
        "--policy",
        metavar="FILE",
        help="begin with this policy, in its environment and with its algorithm: a file of `headrace export`, "
        "hub:OWNER/NAME or zoo:NAME",
    )
    add_stop_options(group)
    group.add_argument(
        "--detach", action="store_true", help="run in the background; the command returns when all processes are ready"
    )
    group.add_argument(
        "--dry-run", action="store_true", help="check everything, print each setting with where it is from, and start nothing"
    )
    group.add_argument("--web", action="store_true", help="show the run in a browser: prints a link, as `headrace web` does")
    group.add_argument(
        "--json", action="store_true", help="with --detach: print nothing but the JSON of `headrace status --json`"
    )
    group.add_argument(
        "--serial",
        action="store_true",
        help="one environment loop, the table and the update in this process, for a debugger; slower",
    )
    either = group.add_mutually_exclusive_group()
    either.add_argument("--resume", action="store_true", help="fail unless there is a stopped run to resume")
    either.add_argument("--fresh", action="store_true", help="move the old folder of this run to NAME.1 first, and start anew")
    add_trust(target)
    options.add_config_options(target, algorithm, options.described_env(typed))
    options.shorten_help(target, typed, algorithm)
    if set(options.HELP) & set(typed) and (preset := preset_for(options.typed_env(typed) or EnvConfig().id, algorithm or None)):
        replaced = f"The preset {preset.name} replaces some of these defaults: see `headrace presets {preset.name}`."
        target.epilog = f"{target.epilog}\n{replaced}" if target.epilog else replaced


def run(parsed: argparse.Namespace) -> int:
    """Starts the run. With --json stdout has the status alone, with --dry-run the settings; the other lines go to stderr."""
    if parsed.dry_run:
        with contextlib.redirect_stdout(sys.stderr), stop_signals(signal.default_int_handler):
            ready = prepare_here(parsed) if parsed.serial else prepare(_request(parsed))
            ready.cleanup.close()
        print(with_origins(ready.config, ready.origins()))
        return DONE
    if not parsed.json or parsed.serial:
        with contextlib.redirect_stdout(cast(TextIO, UnbreakableStream(sys.stdout))):
            try:
                return _run_here(parsed) if parsed.serial else _start(parsed)[1]
            finally:
                sys.stdout.flush()
    if not parsed.detach:
        raise ConfigError("--json needs --detach")
    with contextlib.redirect_stdout(sys.stderr):
        folder, exit_status = _start(parsed)
    if exit_status == DONE:
        from deploy.recorded.status import current_status

        print(json.dumps(current_status(folder)), flush=True)
    return exit_status


def _run_here(parsed: argparse.Namespace) -> int:
    """Runs in this process until the end. The exit status."""
    try:
        with stop_signals(signal.default_int_handler), prepare_here(parsed) as ready:
            made = begin_here(ready, parsed)
            return complain(f"run {ready.run.name} failed: {made.reason}", FAILED) if made.run() else DONE
    except BdbQuit:  # in the check before the run, or where its parts are made
        return complain("ended in the debugger", DONE)
    except OSError as error:  # the command shows only one line of it
        if is_of_user(error):
            traceback.print_exc()
        raise


def is_of_user(error: BaseException) -> bool:
    """True where other code than Headrace's and Python's own had a part in the error."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    packages = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    return not packages <= {*PACKAGES, *sys.stdlib_module_names}


def prepare_here(parsed: argparse.Namespace) -> Launch:
    """A checked run in one process. Without a name it takes the place of the one before. Raises as `prepare`."""
    stop_conditions(parsed).check()
    if other := next((flag for flag in NOT_SERIAL if getattr(parsed, flag)), None):
        raise ConfigError(f"--serial is one process, in this terminal, for a new run: leave out --{other}")
    if parsed.run and not parsed.fresh and runs.run_dir(parsed.run).config.exists():
        raise ConfigError(f"run {parsed.run} exists, and --serial resumes none: add --fresh, or name another with --run")
    return prepare(replace(_request(parsed), one_process=True, fresh=True))


def begin_here(ready: Launch, parsed: argparse.Namespace) -> SerialRun:
    """Writes the run's folder and makes everything. Raises ValueError, EnvError, OSError."""
    from deploy.serial.run import SerialRun  # imports torch

    _check_evaluations(ready, parsed)
    _make_room(ready)
    ready.write()
    print(f"run {ready.run.name} in {runs.RUNS / ready.run.name} · one process · Ctrl-C stops it", flush=True)
    try:
        return SerialRun(ready.run, ready.config, stop_conditions(parsed))
    except (CheckpointError, DeviceError) as error:
        raise ConfigError(str(error)) from error


def _check_evaluations(ready: Launch, parsed: argparse.Namespace) -> None:
    if parsed.stop_at_return is not None and not ready.config.evaluator.enabled:
        raise ConfigError("--stop-at-return needs evaluations: leave out --evaluator.enabled false")


def _start(parsed: argparse.Namespace) -> tuple[RunDir, int]:
    """Checks everything, writes the run's folder, and supervises here or starts a supervisor in the background."""
    stop_conditions(parsed).check()
    if parsed.web:
        from deploy.cli.browser.web import require_web

        require_web()
        if parsed.detach:
            raise ConfigError("--web ends with this command, and --detach ends at once: start `headrace web` after it")
    request = replace(_request(parsed), here=not parsed.detach, meanwhile=_import_the_rest)
    with stop_signals(signal.default_int_handler), prepare(request) as ready:  # until the run obeys them
        folder = ready.run
        _check_evaluations(ready, parsed)
        if ready.fresh:
            _make_room(ready)
        if ready.resumed:
            print(ready.resume_notice())
        ready.write()
        if not parsed.detach:
            with _page_beside(folder) if parsed.web else contextlib.nullcontext():
                return folder, _supervise(ready, stop_conditions(parsed))
    from deploy.supervision import service

    before = runs.read_status(folder)
    supervisor = service.start_detached(folder, stop_conditions(parsed))
    try:
        return folder, _wait_until_ready(folder, supervisor, before)
    except KeyboardInterrupt:
        _stop_again(folder, supervisor.poll)
        raise


def _import_the_rest() -> None:
    """What only a run that is up needs is imported while its environment is being tried."""
    for name in ("deploy.reporting.logs", "deploy.supervision.service"):
        importlib.import_module(name)


def _page_beside(run: RunDir) -> contextlib.AbstractContextManager[None]:
    from deploy.cli.browser.beside import page_beside

    return page_beside(run)


def _request(parsed: argparse.Namespace) -> LaunchRequest:
    given = command_line.given(parsed)
    if parsed.policy:
        from deploy.cli.policies.common import settings_of

        given = merge(settings_of(parsed.policy, parsed.trusted), given)
    words = given, parsed.config, parsed.run, parsed.fresh, parsed.resume, parsed.preset, parsed.trusted
    return LaunchRequest(*words, new=bool(parsed.policy))


def _supervise(ready: Launch, conditions: StopConditions) -> int:
    """Runs until the end. The exit status."""
    from deploy.reporting import logs
    from deploy.supervision import service

    name = ready.run.name
    print(f"run {name} in {runs.RUNS / name} · Ctrl-C stops it", flush=True)
    terminal = logs.Terminal(sys.stdout)
    supervised = service.Service(ready.run, ready.config, terminal, conditions, standby=ready.standby)
    return complain(f"run {name} failed: {supervised.supervisor.reason}", FAILED) if supervised.run() else DONE


def _stop_again(run: RunDir, poll: Callable[[], int | None]) -> None:
    """Stops a supervisor that has just been started, as soon as it can be reached."""
    while poll() is None and not runs.is_up(run):
        time.sleep(0.05)
    if poll() is None:
        from deploy.cli.runs import down

        down.stop(run)


def _make_room(ready: Launch) -> None:
    """Moves the old folder of the run aside, and removes the oldest of those."""
    if aside := runs.set_aside(ready.run):
        print(f"the old run is now {aside}")
        for removed in runs.remove_aside(ready.run, runs.KEPT_ASIDE):
            print(f"removed {removed}: the newest {runs.KEPT_ASIDE} old folders are kept")


def _wait_until_ready(run: RunDir, supervisor: Popen[bytes], before: dict[str, Any] | None) -> int:
    """`before`: the status when the supervisor was started."""
    print(f"starting run {run.name} in the background …", flush=True)
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        ended = supervisor.poll()
        found = runs.read_status(run)
        current = found if found and found != before and found["pid"] == supervisor.pid else {}  # or another supervisor's
        if ended is not None:
            reason = current.get("reason") or f"see {run.log('supervisor')}"
            if ended == DONE:
                print(f"run {run.name} is already over: {reason}")
                return DONE
            return complain(f"run {run.name} failed: {reason}", ended if ended in (FAILED, REFUSED) else FAILED)
        if current.get("state") in ("running", "paused"):
            print(f"run {run.name} is up; see `headrace logs -f`, `headrace status`, `headrace down`")
            return DONE
        time.sleep(0.2)
    print(f"run {run.name} is up, but not all processes are ready yet; see `headrace status` and `headrace logs`")
    return DONE
