"""`headrace envs`: environments with a short name; or tries one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from actors.envs.base import FACTORY, REGISTERED, builtin_families
from deploy.cli.common import DONE
from deploy.config import options
from deploy.config.errors import ConfigError
from deploy.launch.preflight import check_env
from transport.names import find


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("--check", metavar="ENV", help="make this environment, step it and say what an agent sees and does")
    target.add_argument("--picture", type=Path, metavar="FILE.png", help="with --check: draw what the agent sees")


def run(parsed: argparse.Namespace) -> int:
    """Prints the short names, or tries one environment."""
    if parsed.check:
        check_env(parsed.check, parsed.picture)
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
