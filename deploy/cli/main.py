"""The `headrace` command."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from actors.envs.base import FACTORY, REGISTERED, builtin_families
from actors.envs.errors import EnvError
from deploy import runs
from deploy.children import ROOT
from deploy.cli import access, children, doctor, experience, launch
from deploy.config import environment, options
from deploy.config.errors import ConfigError
from deploy.config.layers import load_run_config
from deploy.config.presets import presets
from deploy.reporting import logs, status
from deploy.supervision import service
from transport.experience import SpecError
from transport.messages import MOST_ACTORS, Message, Scale, Scaling, Stop, Stopping
from transport.names import find, nearest
from transport.run_dir import RunDir
from transport.sockets.client import Client
from transport.sockets.keys import OPERATOR

Command = Callable[[argparse.Namespace], int]
DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3
ANSWER_SECONDS = 2.0
SPARE_SECONDS = 2.0  # beyond the run's own deadline
READY_SECONDS = 90.0

ABOUT = """\
Headrace: many simulators, one replay server, one learner.

  headrace up --env mario --actors 4          start, and watch the merged log; Ctrl-C stops all in order
  headrace up --env CartPole-v1 --detach      start in the background
  headrace status                             what each process does
  headrace eval cartpole-v1-dqn               how good the newest weights are
"""
UP_USAGE = "headrace up [--env ENV] [--algo NAME] [--actors N] [--run NAME] [--section.field VALUE …]"
UP_ABOUT = """\
Starts a run: replay, learner and actors, kept alive until Ctrl-C or `headrace down`.

  headrace up --env mario --actors 4
  headrace up --env CartPole-v1 --total-steps 1e6 --seed 3 --run first
  headrace up --env my.package:make_env --config mine.toml --learner.learning-rate 3e-4
  headrace up --run first                     resume a stopped run with its own settings
  headrace up --run first --fresh             move the old folder aside and start anew

A setting is taken from the command line, else from --config, else from --preset or the preset that fits the
environment (`headrace presets`), else it is the default shown below.
"""
KEYS_ABOUT = """\
Makes the keys that a run needs before other machines may reach it: a pair for each process, in runs/NAME/keys, which nobody else
may read. What is there already stays.

  headrace keys night --actors 4                     then `headrace up --run night --deploy.bind 10.0.0.5 …`
  headrace keys night --export actor-100 worker      copy the folder to another machine: python -m actors worker --actor 100
  headrace keys night --renew                        all anew, while the run is down
  headrace keys night --renew actor-100              that of one actor, whose machine was lost, say
"""


def build_parser(algorithm: str = "") -> tuple[options.Parser, dict[str, argparse.ArgumentParser]]:
    """The parser and those of its commands; `up` has the options of this algorithm, or of all that are built in."""
    parser = options.Parser(prog="headrace", description=ABOUT)
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=options.Parser)
    made: dict[str, argparse.ArgumentParser] = {}

    def command(name: str, about: str, run: Command, description: str = "") -> argparse.ArgumentParser:
        text = description or about[0].upper() + about[1:] + "."
        made[name] = commands.add_parser(name, help=about, description=text, usage=UP_USAGE if name == "up" else None)
        made[name].set_defaults(execute=run)
        return made[name]

    def run_name(target: argparse.ArgumentParser) -> None:
        target.add_argument("run", nargs="?", metavar="RUN", help="a run's name; default: the one that is up, else the latest")
        target.add_argument("--run", dest="run_flag", metavar="NAME", help="the same")

    _add_up(command("up", "start a run, or resume one", up, UP_ABOUT), algorithm)
    run_name(command("down", "stop a run in order", down))
    target = command("status", "what each process of a run does", show_status)
    run_name(target)
    target.add_argument("--json", action="store_true", help="for programs")
    target = command("scale", "change the number of actors of a run that is up", scale)
    target.add_argument("actors", type=options.COUNT, metavar="N", help="actors from now on")
    run_name(target)
    run_name(command("top", "status, live, until Ctrl-C", top))
    target = command("logs", "the merged log, or that of one process", show_logs)
    target.add_argument("process", nargs="?", metavar="PROCESS", help="replay, learner, actor-0, …, supervisor; default: all")
    target.add_argument("--run", dest="run_flag", metavar="NAME", help="default: the run that is up, else the latest")
    target.add_argument("-f", "--follow", action="store_true", help="go on printing what is added")
    target.add_argument("-n", "--lines", type=options.COUNT, default=40, metavar="N", help="lines from the end (default: 40)")
    command("list", "all runs", list_runs)
    target = command(
        "keys", "make the keys by which the processes of a run know each other on a network", access.make_keys, KEYS_ABOUT
    )
    target.add_argument(
        "run", nargs="?", metavar="RUN", help="a run's name or folder, which need not exist yet; default: the latest"
    )
    target.add_argument("--run", dest="run", default=argparse.SUPPRESS, metavar="NAME", help="the same")
    target.add_argument(
        "--actors", type=options.COUNT, metavar="N", help="keys for so many; default: as the run is configured, or 1"
    )
    either = target.add_mutually_exclusive_group()
    text = "make all anew, or those of one process: old ones are not let in any more"
    either.add_argument("--renew", nargs="?", const="", metavar="NAME", help=text)
    text = "copy what an actor on another machine needs, its secret and the servers' public keys included, into a folder"
    either.add_argument("--export", nargs=2, metavar=("ACTOR", "FOLDER"), help=text)
    target = command("eval", "play with a run's newest weights and report", children.evaluate)
    run_name(target)
    target.add_argument("--episodes", type=options.COUNT, default=100, metavar="N", help="episodes (default: 100)")
    policy = target.add_mutually_exclusive_group()
    policy.add_argument("--best", action="store_true", help="the weights that the evaluator found best, instead of the newest")
    policy.add_argument("--random", action="store_true", help="actions at random instead of a policy, to compare with")
    policy.add_argument("--weights", type=Path, metavar="FILE", help="an older checkpoint of the run, or an exported file")
    target.add_argument("--stochastic", action="store_true", help="act with exploration instead of greedily")
    target.add_argument("--json", action="store_true", help="for programs")
    text = "robot: evaluate at each of these tolerances as well, such as 0.05,0.02,0.01"
    target.add_argument("--tolerances", type=options.TOLERANCES, default=[], metavar="METRES", help=text)
    options.add_precision(target)
    options.add_env_options(target)
    target = command("demo", "watch, or record, a run's policy", children.demo)
    run_name(target)
    target.add_argument("--video", type=Path, metavar="OUT.mp4", help="record instead of opening a window")
    target.add_argument("--episodes", type=options.COUNT, default=1, metavar="N", help="episodes (default: 1)")
    target.add_argument("--headless", action="store_true", help="no window and no file: a line per episode")
    target.add_argument("--seed", type=options.COUNT, default=0, metavar="S", help="another start (default: 0)")
    policy = target.add_mutually_exclusive_group()
    policy.add_argument("--best", action="store_true", help="the weights that the evaluator found best, instead of the newest")
    policy.add_argument("--weights", type=Path, metavar="FILE", help="an older checkpoint of the run, or an exported file")
    options.add_env_options(target)
    target = command("export", "a run's policy as one file, its configuration inside", children.export)
    target.add_argument("run", metavar="RUN", help="a run's name")
    target.add_argument("out", type=Path, metavar="OUT.safetensors", help="the file to write")
    target.add_argument("--best", action="store_true", help="the weights that the evaluator found best, instead of the newest")
    target = command("trace", "which actor an item of replay comes from", experience.trace)
    run_name(target)
    target.add_argument("key", type=options.COUNT, metavar="KEY", help="the item's key, as batches tell it")
    target.add_argument("--json", action="store_true", help="for programs")
    target = command("purge", "remove all that one actor has sent from a stopped run", experience.purge)
    run_name(target)
    target.add_argument("actor", metavar="ACTOR", help="actor-3, for example")
    command("doctor", "what this machine has and lacks", examine)
    target = command("envs", "environments with a short name; or try one", show_envs)
    target.add_argument("--check", metavar="ENV", help="make this environment, step it and say what an agent sees and does")
    target.add_argument("--picture", type=Path, metavar="FILE.png", help="with --check: draw what the agent sees")
    target = command("presets", "settings known to work, by environment", show_presets)
    target.add_argument("name", nargs="?", metavar="NAME", help="print this one")
    target = command("bench", "benchmarks, from a source tree", children.bench)
    target.add_argument("name", metavar="NAME", help="replay, pipeline, env, …")
    target.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="options of the benchmark, such as --json")
    return parser, made


def _add_up(target: argparse.ArgumentParser, algorithm: str) -> None:
    group = target.add_argument_group("starting")
    group.add_argument("--run", metavar="NAME", help="name of the run; default: made of environment and algorithm")
    group.add_argument("--config", type=Path, metavar="FILE.toml", help="settings, in the form of a run's config.toml")
    group.add_argument("--preset", metavar="NAME", help="settings of this preset over those that fit the environment")
    group.add_argument("--stop-after", type=options.DURATION, default=0.0, metavar="TIME", help="stop after 90s, 5m, 2h")
    group.add_argument("--detach", action="store_true", help="run in the background; returns when every process is ready")
    either = group.add_mutually_exclusive_group()
    either.add_argument("--resume", action="store_true", help="insist on resuming (a stopped run is resumed anyway)")
    either.add_argument("--fresh", action="store_true", help="move the old folder of this run aside first")
    options.add_config_options(target, algorithm)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status. What the user did wrong is one line on stderr."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        algorithm = options.typed_algorithm(typed[1:], lambda name: runs.run_dir(name).config) if typed[:1] == ["up"] else ""
        parser, commands = build_parser(algorithm)

        def flags_of(command: str) -> set[str]:
            return {flag for action in commands[command]._actions for flag in action.option_strings if flag.startswith("--")}

        if not typed:
            parser.print_help()
            return DONE
        if typed == ["--version"]:
            print(f"headrace {_version()}")
            return DONE
        if not typed[0].startswith("-") and typed[0] not in commands:
            raise ConfigError(f"unknown command {typed[0]!r}; {nearest(typed[0], commands)}")
        if {"-h", "--help"} & set(typed) and typed[0] in commands:
            environment.add_help(commands[typed[0]], typed)
        parsed = options.parse(parser, typed, flags_of)
        return int(parsed.execute(parsed))
    except (ConfigError, EnvError, SpecError) as error:
        return _complain(str(error), USAGE)
    except BrokenPipeError:  # `headrace list | head`
        sys.stdout = open(os.devnull, "w")  # the interpreter flushes it once more at its end
        return DONE
    except (runs.AlreadyUp, launch.NoSpace, access.Refused, OSError) as error:
        return _complain(str(error), REFUSED)
    except KeyboardInterrupt:
        print("headrace: stopped by you", file=sys.stderr)
        return DONE


def _version() -> str:
    try:
        return importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:
        return "(a source tree that is not installed)"


def _complain(text: str, exit_status: int) -> int:
    print(f"headrace: {' '.join(text.split())}", file=sys.stderr)
    return exit_status


# ---- up and down


def up(parsed: argparse.Namespace) -> int:
    """Checks, writes the run's folder, and supervises in the foreground or starts a supervisor in the background."""
    request = launch.Request(options.given(parsed), parsed.config, parsed.run, parsed.fresh, parsed.resume, parsed.preset)
    ready = launch.prepare(request)
    run = ready.run
    if ready.fresh and (aside := runs.set_aside(run)):
        print(f"the old run is now {aside}")
    if ready.resumed:
        print(ready.resume_notice())
    with runs.locked(run):
        ready.write()
        if not parsed.detach:
            print(f"run {run.name} in {runs.RUNS / run.name} · Ctrl-C stops it", flush=True)
            supervised = service.Service(run, ready.config, logs.Terminal(sys.stdout), parsed.stop_after)
            exit_status = supervised.run()
            return _complain(f"run {run.name} failed: {supervised.supervisor.reason}", FAILED) if exit_status else DONE
    return _wait_until_ready(run, service.start_detached(run, parsed.stop_after))


def _wait_until_ready(run: RunDir, poll: Callable[[], int | None]) -> int:
    print(f"starting run {run.name} in the background …", flush=True)
    began, deadline = time.time(), time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        ended = poll()
        current = runs.read_status(run)
        if ended is not None:
            reason = (current or {}).get("reason") or f"see {run.log('supervisor')}"
            if ended == DONE:
                print(f"run {run.name} is already over: {reason}")
                return DONE
            return _complain(f"run {run.name} failed: {reason}", ended if ended in (FAILED, REFUSED) else FAILED)
        if current and current.get("time", 0) >= began and current["state"] == "running":
            print(f"run {run.name} is up; see `headrace logs -f`, `headrace status`, `headrace down`")
            return DONE
        time.sleep(0.2)
    print(f"run {run.name} is up but not every process is ready yet; see `headrace status` and `headrace logs`")
    return DONE


def down(parsed: argparse.Namespace) -> int:
    """Asks the supervisor to stop, waits, and says what happened."""
    run = runs.chosen(parsed)
    if not runs.is_up(run):
        run.remove_sockets()
        print(f"run {run.name} is not up")
        return DONE
    pid = runs.supervisor_pid(run)
    deadline = time.monotonic() + load_run_config(run.config).deploy.stop_seconds + SPARE_SECONDS
    if not _ask_to_stop(run) and pid:
        try:
            os.kill(pid, 15)
        except OSError:
            pass
    while time.monotonic() < deadline:
        if not runs.is_up(run):
            print(f"run {run.name} is down")
            return DONE
        time.sleep(0.05)
    return _complain(f"run {run.name} did not stop; its supervisor (pid {pid}) does not react: `kill -9 {pid}` ends it", FAILED)


def _ask_to_stop(run: RunDir) -> bool:
    return isinstance(_ask_supervisor(run, Stop("headrace down")), Stopping)


def _ask_supervisor(run: RunDir, message: Message) -> Any:
    """The supervisor's answer, or None."""
    address = run.endpoint("supervisor")
    if address is None:
        return None
    client = Client(address, keys=run.keys(OPERATOR), endpoint="supervisor")
    try:
        client.send(message)
        arrived = client.receive(ANSWER_SECONDS)
        return arrived[0] if arrived else None
    finally:
        client.close()


def scale(parsed: argparse.Namespace) -> int:
    """Asks the supervisor for another number of actors; it goes on by itself."""
    if not 1 <= parsed.actors <= MOST_ACTORS:
        raise ConfigError(f"a run has 1 to {MOST_ACTORS} actors, not {parsed.actors}")
    run = runs.chosen(parsed)
    if not runs.is_up(run):
        raise ConfigError(f"run {run.name} is not up; start it with `headrace up --run {run.name} --actors {parsed.actors}`")
    answer = _ask_supervisor(run, Scale(parsed.actors))
    if not isinstance(answer, Scaling):
        return _complain(f"run {run.name} is stopping, or its supervisor does not react; see `headrace status`", FAILED)
    if answer.before == answer.actors:
        print(f"run {run.name} has {answer.actors} actors already; any that was given up is tried again")
    else:
        print(f"run {run.name} goes from {answer.before} to {answer.actors} actors; see `headrace status`")
    return DONE


# ---- looking


def _current_status(run: RunDir) -> status.Document:
    found = runs.read_status(run)
    if found is None:
        return status.empty(run, load_run_config(run.config))
    over = found["state"] in ("stopped", "failed")
    return found if over or runs.is_up(run) else status.as_dead(found)


def show_status(parsed: argparse.Namespace) -> int:
    """Prints what the supervisor last wrote, as a table or JSON."""
    found = _current_status(runs.chosen(parsed))
    if parsed.json:
        print(json.dumps(found))
    else:
        status.show(found)
    return DONE


def top(parsed: argparse.Namespace) -> int:
    """Shows the status again and again, until the run is down."""
    run = runs.chosen(parsed)
    status.watch(lambda: _current_status(run), lambda: not runs.is_up(run))
    return DONE


def examine(parsed: argparse.Namespace) -> int:
    """Says what this machine has and lacks; the saying of it succeeds whatever is found."""
    doctor.show()
    return DONE


def show_logs(parsed: argparse.Namespace) -> int:
    """Prints the end of a log; with -f until the run is down or Ctrl-C."""
    run = runs.chosen(parsed)
    path = run.log(parsed.process or logs.MERGED)
    if not path.is_file():
        known = [file.stem for file in (run.path / "logs").glob("*.log") if file.stem != logs.MERGED]
        raise ConfigError(f"run {run.name} has no log of {parsed.process or 'anything'}; {nearest(parsed.process or '', known)}")
    logs.show(path, parsed.lines, parsed.follow, lambda: not runs.is_up(run))
    return DONE


def list_runs(parsed: argparse.Namespace) -> int:
    """Prints a line per run."""
    for run in runs.all_runs():
        found = _current_status(run)
        steps = found.get("steps") or 0
        print(f"{run.name:<30} {found['state']:<9} {found['env']:<20} {found['algorithm']:<6} {steps:>14,} steps")
    return DONE


def show_envs(parsed: argparse.Namespace) -> int:
    """Prints the short names, or tries one environment."""
    if parsed.check:
        launch.check_env(parsed.check, parsed.picture)
        return DONE
    if parsed.picture:
        raise ConfigError("--picture needs --check ENV")
    families = builtin_families()
    for name, family in families.items():
        print(f"{name:<12} {family.about}")
        for line in options.option_lines(family.Options):
            print(f"{'':<12}   {line}")
    for reference in (REGISTERED, FACTORY):
        print(find(reference, {}, "environment").about)
    return DONE


def show_presets(parsed: argparse.Namespace) -> int:
    """Prints the presets, or one of them."""
    known = {preset.name: preset for preset in presets()}
    if parsed.name is None:
        for preset in known.values():
            print(f"{preset.name:<12} {', '.join(preset.envs) or '(--preset)':<28} {preset.about}")
        return DONE
    if parsed.name not in known:
        raise ConfigError(f"no preset {parsed.name!r}; {nearest(parsed.name, known)}")
    print((ROOT / "deploy" / "presets" / f"{parsed.name}.toml").read_text(encoding="utf-8"), end="")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
