"""The `headrace` command: finds the module of a command, and imports nothing else."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

ABOUT = """\
Headrace: many simulators, one replay server, one learner.

  headrace up --env mario --actors 4          start, and watch the merged log; Ctrl-C stops all in order
  headrace up --env CartPole-v1 --detach      start in the background
  headrace status                             what each process does
  headrace eval cartpole-v1-dqn               how good the newest weights are
"""

DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3
# Each command's module, with DESCRIPTION where there is more to say than the line, add(parser, typed) and run(parsed).
COMMANDS = {
    "up": ("runs.up", "start a run, or resume one"),
    "down": ("runs.down", "stop a run in order"),
    "status": ("runs.status", "what each process of a run does"),
    "scale": ("runs.scale", "change the number of actors of a run that is up"),
    "top": ("runs.top", "status, live, until Ctrl-C"),
    "logs": ("runs.logs", "the merged log, or that of one process"),
    "list": ("runs.list", "all runs"),
    "rm": ("runs.rm", "remove runs that are down"),
    "keys": ("experience.keys", "make the keys by which the processes of a run know each other on a network"),
    "eval": ("policies.eval", "play with a run's newest weights and report"),
    "demo": ("policies.demo", "watch, or record, a run's policy"),
    "export": ("policies.export", "a run's policy as one file, its configuration inside"),
    "trace": ("experience.trace", "which actor an item of replay comes from"),
    "purge": ("experience.purge", "remove all that one actor has sent from a stopped run"),
    "doctor": ("machine.doctor", "what this machine has and lacks"),
    "envs": ("machine.envs", "environments with a short name; or try one"),
    "presets": ("machine.presets", "settings known to work, by environment"),
    "bench": ("machine.bench", "benchmarks, from a source tree"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status. What the user did wrong is one line on stderr."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if not typed or typed[0] in ("-h", "--help"):
        print(help_text())
        return DONE
    if typed == ["--version"]:
        print(f"headrace {version()}")
        return DONE
    try:
        return _run(typed[0], typed[1:])
    except BrokenPipeError:  # `headrace list | head`
        sys.stdout = open(os.devnull, "w")  # the interpreter flushes it once more at its end
        return DONE
    except KeyboardInterrupt:
        print("headrace: stopped by you", file=sys.stderr)
        return DONE
    except Exception as error:
        status = exit_status(error)
        if status is None:
            raise
        print(f"headrace: {' '.join(str(error).split())}", file=sys.stderr)
        return status


def help_text() -> str:
    """What `headrace --help` prints."""
    lines = [f"  {name:<10}{about}" for name, (_, about) in COMMANDS.items()]
    more = "`headrace COMMAND --help` shows the options of one; `headrace --version` prints the version"
    return "\n".join(["usage: headrace COMMAND …", "", ABOUT, "commands:", *lines, "", more])


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:
        return "(a source tree that is not installed)"


def module_of(command: str) -> ModuleType:
    return importlib.import_module(f"deploy.cli.{COMMANDS[command][0]}")


def parser_of(command: str, typed: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of one command; `typed` are the words after it. Raises ConfigError."""
    from deploy.config.options import Parser

    module, about = module_of(command), COMMANDS[command][1]
    text = vars(module).get("DESCRIPTION", f"{about[0].upper()}{about[1:]}.")
    parser = Parser(prog=f"headrace {command}", description=text, usage=vars(module).get("USAGE_LINE"))
    module.add(parser, typed)
    return parser


def _run(command: str, typed: list[str]) -> int:
    from deploy.config.errors import ConfigError
    from deploy.config.options import parse
    from transport.names import nearest

    if command.startswith("-"):
        raise ConfigError(f"unknown option {command}; see `headrace --help`")
    if command not in COMMANDS:
        raise ConfigError(f"unknown command {command!r}; {nearest(command, COMMANDS)}")
    return int(module_of(command).run(parse(parser_of(command, typed), typed, command)))


def exit_status(error: Exception) -> int | None:
    """2 for what was typed or configured wrongly, 3 for what is refused; None for an error of ours."""
    from actors.envs.errors import EnvError
    from deploy.config.errors import ConfigError
    from deploy.launch.access import Refused
    from deploy.launch.resources import NoSpace
    from deploy.runs import AlreadyUp
    from transport.experience import SpecError

    if isinstance(error, ConfigError | EnvError | SpecError):
        return USAGE
    return REFUSED if isinstance(error, AlreadyUp | NoSpace | Refused | OSError) else None


if __name__ == "__main__":
    sys.exit(main())
