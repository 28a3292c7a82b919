"""`headrace envs`: lists environments and their options, or checks one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from actors.envs.base import FACTORY, REGISTERED, builtin_families
from deploy.cli.common import DONE
from deploy.config import command_line, options
from deploy.config.run import ConfigError
from deploy.launch.preflight import check_env
from transport.names import find

USAGE_LINE = "headrace envs [--check ENV] [--picture FILE.png] [--env.field VALUE …]"


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    options.add_checked_env(target, options.described_env(typed))
    target.add_argument("--picture", type=Path, metavar="FILE.png", help="with --check: save a picture of what the agent sees")


def run(parsed: argparse.Namespace) -> int:
    given = command_line.given(parsed).get("env", {})
    if "id" in given:
        check_env(given, parsed.picture)
        return DONE
    if parsed.picture:
        raise ConfigError("--picture needs --check ENV, the environment to draw")
    if given:
        raise ConfigError(f"--env.{next(iter(given)).replace('_', '-')} needs --check ENV, the environment that it is for")
    families = builtin_families()
    for name, family in families.items():
        print(f"{name:<12} {family.about}")
        for line in options.option_lines(family.Options):
            print(f"{'':<12}   {line}")
    for reference in (REGISTERED, FACTORY):
        print(find(reference, {}, "environment").about)
    return DONE
