"""`headrace envs`: lists environments and their options, or checks one."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.envs.base import FACTORY, REGISTERED, builtin_families
from actors.envs.make import env_section
from actors.errors import EnvError
from deploy.children import child_environment, python_command
from deploy.cli.common import DONE
from deploy.config import command_line, options
from deploy.config.layers import layers, resolve
from deploy.errors import ConfigError
from deploy.launch import defaults, preflight
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


def check_env(section: dict[str, Any], picture: Path | None) -> None:
    """The pre-flight, the checks of a launch with these settings, the workload's own figures, and a picture. Raises ConfigError,
    EnvError."""
    stack = layers({"env": section})
    config = resolve(stack)
    os.environ.update(child_environment())
    defaults.resolve_for(stack, preflight.try_environment(config), on_gpu=False)
    # In a child: this needs the simulator and an image library.
    resolved = msgspec.json.encode(env_section(config.env)).decode()
    command = [*python_command("actors.evaluation.picture"), resolved, *([str(picture)] if picture else [])]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        raise EnvError((done.stderr.strip().splitlines() or ["the picture could not be drawn"])[-1])
