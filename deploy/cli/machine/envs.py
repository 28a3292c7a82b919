"""`headrace envs`: lists environments and their options, or checks one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from actors.envs.base import FACTORY, REGISTERED, builtin_families
from deploy.cli.common import DONE
from deploy.config import options
from deploy.config.run import ConfigError
from deploy.launch.preflight import check_env
from transport.names import find


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument(
        "--check", metavar="ENV", help="make this environment, step it, and print its observations, actions and speed"
    )
    target.add_argument("--picture", type=Path, metavar="FILE.png", help="with --check: save a picture of what the agent sees")


def run(parsed: argparse.Namespace) -> int:
    if parsed.check:
        check_env(parsed.check, parsed.picture)
        return DONE
    if parsed.picture:
        raise ConfigError("--picture needs --check ENV, the environment to draw")
    families = builtin_families()
    for name, family in families.items():
        print(f"{name:<12} {family.about}")
        for line in options.option_lines(family.Options):
            print(f"{'':<12}   {line}")
    for reference in (REGISTERED, FACTORY):
        print(find(reference, {}, "environment").about)
    return DONE
