"""The `headrace` command: finds the module of a command, and imports nothing else."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType

from deploy.cli.streams import open_closed, print_any_letter, tell
from transport.text import plain

ABOUT = """\
Headrace trains a policy with many simulator processes, one replay server and one learner.

  headrace up --env mario --actors 4          start a run and show its log; Ctrl-C stops it
  headrace up --env CartPole-v1 --detach      start a run in the background
  headrace status                             show what each process does
  headrace eval cartpole-v1-ppo               play 100 episodes with the newest weights
"""

DONE, FAILED, USAGE, REFUSED = 0, 1, 2, 3
# Each command's module has add(parser, typed) and run(parsed), and DESCRIPTION where one line is not enough; a module of several
# commands has DESCRIPTIONS, and finds the command in `parsed`.
COMMANDS = {
    "up": ("runs.up", "start a run, or resume a stopped one"),
    "down": ("runs.down", "stop a run; weights and experience are saved"),
    "status": ("runs.status", "show what each process of a run does"),
    "scale": ("runs.scale", "change the number of actors of a run that is up"),
    "pause": ("steering", "let a run rest, with all its processes alive"),
    "unpause": ("steering", "let a paused run go on"),
    "checkpoint": ("steering", "write a checkpoint of a run now"),
    "evaluate-now": ("steering", "evaluate the newest policy of a run now"),
    "top": ("runs.top", "show the status of a run live, until Ctrl-C"),
    "logs": ("runs.logs", "print the log of a run, or of one of its processes"),
    "web": ("browser.web", "show runs in a browser, live"),
    "report": ("browser.report", "write a page about runs: one file that needs no network"),
    "list": ("runs.list", "list all runs"),
    "rm": ("runs.rm", "delete stopped runs with all their files"),
    "fork": ("runs.fork", "begin a second run from a point of a first one, with other settings"),
    "sweep": ("runs.sweep", "search for good settings with many short runs"),
    "suite": ("runs.suite", "compare algorithms or settings over tasks and seeds"),
    "invite": ("hosts.invite", "make tickets, with which other machines join a run"),
    "join": ("hosts.join", "run actors of another machine's run on this machine"),
    "keys": ("experience.keys", "make the keys that a run needs on a network"),
    "eval": ("policies.eval", "evaluate the policy of a run over many episodes"),
    "demo": ("policies.demo", "watch the policy of a run play, or record a video"),
    "serve": ("policies.serve", "let a policy answer programs over HTTP and WebSocket"),
    "play": ("experience.play", "play an environment yourself: the episodes are demonstrations"),
    "export": ("policies.export", "write the policy of a run and its configuration to one file, and a card"),
    "pull": ("policies.pull", "fetch a policy and its card from a Hugging Face repository"),
    "verify": ("policies.verify", "repeat the evaluation of a card, and say whether it holds"),
    "push": ("policies.push", "send a policy and its card to a Hugging Face repository"),
    "dataset": ("experience.dataset", "write a run's experience as a data set, read others', show what one holds"),
    "replay": ("experience.replay", "play a past episode of a run again, from its log"),
    "trace": ("experience.trace", "show which actor collected an item of replay"),
    "purge": ("experience.purge", "delete the experience of one actor from a stopped run"),
    "fsck": ("runs.fsck", "check every file of a stopped run, and mend what can be mended"),
    "reshard": ("experience.reshard", "redistribute the experience of a stopped run over replay shards"),
    "init": ("machine.init", "write a package of your own to begin with: environment, network, settings, test"),
    "completion": ("machine.completion", "print a script for completion by the tab key of a shell"),
    "doctor": ("machine.doctor", "check what this machine has and lacks for Headrace"),
    "envs": ("machine.envs", "list environments and their options, or check one"),
    "presets": ("machine.presets", "list the presets: settings that work well for an environment"),
    "bench": ("machine.bench", "run a benchmark (needs the source tree)"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status. A mistake of the user is one line on stderr."""
    open_closed()
    print_any_letter()
    # numpy reads it when it is imported. On a busy machine the threads of a small product wait for each other: 30 times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with suppress(AttributeError, ValueError):  # on Windows, or not in the main thread
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where a parent has it ignored, no child has an exit status
    typed = list(sys.argv[1:] if arguments is None else arguments)
    status = DONE
    try:
        status = _run(typed)
        sys.stdout.flush()  # at its end the interpreter would do so, where an error can be handled no more
        return status
    except BrokenPipeError:  # `headrace list | head`
        sys.stdout = open(os.devnull, "w")  # the interpreter flushes it once more at its end
        return status
    except KeyboardInterrupt:
        tell("headrace: interrupted")
        return DONE
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (lacks := _not_installed(error)):
            tell(f"headrace: {lacks}")
            return USAGE
        refusal = exit_status(error)
        if refusal is None:
            raise
        tell(f"headrace: {exhausted(error) or plain(' '.join(str(error).split()))}")
        return refusal


def _not_installed(error: ModuleNotFoundError) -> str:
    from learner.devices.installing import missing_package

    return missing_package(str(error))


def help_text() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{about}" for name, (_, about) in COMMANDS.items()]
    more = "`headrace COMMAND --help` shows the options of a command, `headrace --version` the version."
    return "\n".join(["usage: headrace COMMAND …", "", ABOUT, "commands:", *lines, "", more])


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def module_of(command: str) -> ModuleType:
    return importlib.import_module(f"deploy.cli.{COMMANDS[command][0]}")


def parser_of(command: str, typed: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of one command; `typed` are the words after its name. Raises ConfigError."""
    from deploy.config.command_line import Parser

    module, about = module_of(command), COMMANDS[command][1]
    text = vars(module).get("DESCRIPTIONS", {}).get(command) or vars(module).get("DESCRIPTION", f"{about[0].upper()}{about[1:]}.")
    parser = Parser(prog=f"headrace {command}", description=text, usage=vars(module).get("USAGE_LINE"))
    parser.set_defaults(command=command)
    module.add(parser, typed)
    return parser


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(help_text())
        return DONE
    if words == ["--version"]:
        print(f"headrace {version()}")
        return DONE
    from deploy.config.command_line import parse
    from deploy.errors import ConfigError
    from transport.names import nearest

    command, *typed = words
    if command.startswith("-"):
        raise ConfigError(f"unknown option {command}; see `headrace --help`")
    if command not in COMMANDS:
        raise ConfigError(f"unknown command {command!r}; {nearest(command, COMMANDS)}")
    return int(module_of(command).run(parse(parser_of(command, typed), typed, command)))


def exhausted(error: Exception) -> str:
    """A line about the resource that the machine has run out of; empty for any other error."""
    if isinstance(error, MemoryError):
        return "this machine has no memory left: end other programs, or use fewer actors or a smaller --replay.budget-bytes"
    if isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return "this machine gives this account no more processes or threads (ulimit -u, or pids.max of a container)"
    return ""


def exit_status(error: Exception) -> int | None:
    """2 for wrong usage or configuration, 3 for a refusal; None for a bug."""
    from actors.errors import EnvError
    from deploy.errors import ConfigError, RunRefused
    from deploy.launch.resources import NoSpace
    from deploy.runs import AlreadyUp
    from transport.experience import SpecError
    from transport.files.documents import Damaged

    if isinstance(error, ConfigError | EnvError | SpecError | Damaged):
        return USAGE
    refused = isinstance(error, AlreadyUp | NoSpace | RunRefused | OSError)
    return REFUSED if refused or exhausted(error) else None


if __name__ == "__main__":
    sys.exit(main())
