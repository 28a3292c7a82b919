"""`headrace completion`: prints a script by which a shell completes commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from deploy.cli.common import DONE
from deploy.errors import ConfigError
from learner.devices import installing

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
DESCRIPTION = """\
Print a script by which a shell completes commands, options, and names of runs, environments and algorithms with the tab key.

  bash:  headrace completion bash > ~/.local/share/bash-completion/completions/headrace
  zsh:   headrace completion zsh > ~/.zfunc/_headrace     (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  fish:  headrace completion fish > ~/.config/fish/completions/headrace.fish

The script is of this version of Headrace: write it again after an upgrade.
"""
LIST_RUNS = "ls runs"
RUNS = ("run", "run_flag", "runs")  # options and arguments that take a run


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(parsed: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        needs = f"`headrace completion` needs shtab, which is not installed: {installing.headrace('completion')}"
        raise ConfigError(needs) from error
    print(shtab.complete(whole_parser(), parsed.shell))
    return DONE


def whole_parser() -> argparse.ArgumentParser:
    """All commands as one parser, whose options say what their values are."""
    from deploy.cli.main import COMMANDS, module_of

    parser = argparse.ArgumentParser(prog="headrace")
    parser.add_argument("--version", action="version", version="")
    commands = parser.add_subparsers()
    for name, (_, about) in COMMANDS.items():
        target = commands.add_parser(name, help=about)
        module_of(name).add(target, ())
        for action in target._actions:
            _describe(action, name)
    return parser


def _describe(action: argparse.Action, command: str) -> None:
    """Gives an option the values that it takes, where these are known without a run."""
    import shtab

    metavar = str(action.metavar or "")
    if action.nargs == argparse.REMAINDER:
        action.nargs = "*"  # the same to a completion
    if action.dest in RUNS:
        action.complete = shtab.cmd(LIST_RUNS)  # type: ignore[attr-defined]
    elif action.type is Path or metavar.startswith(("FILE", "OUT")):
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif metavar.startswith("{") or "|" in metavar:
        action.choices = metavar.strip("{}").replace("|", ",").split(",")
    elif (known := _names(action.dest, command)) and action.choices is None:
        action.choices = known


def _names(option: str, command: str) -> list[str]:
    """The built-in names that an option takes, besides others."""
    from actors.envs.base import FAMILIES
    from deploy.cli.machine.bench import BENCHMARKS
    from deploy.config.files import presets
    from deploy.reporting.sinks.feeds import SINKS
    from learner.algorithms.base import ALGORITHMS
    from replay.table.selectors import SELECTORS

    preset_names = [preset.name for preset in presets()]
    by_option = {
        "env.id": [name for name in FAMILIES if "…" not in name],
        "algorithm.name": list(ALGORITHMS),
        "replay.selector": list(SELECTORS),
        "deploy.sinks": list(SINKS),
        "deploy.track": list(SINKS),
        "preset": preset_names,
    }
    by_command = {("presets", "name"): preset_names, ("bench", "name"): list(BENCHMARKS)}
    return by_option.get(option) or by_command.get((command, option)) or []
