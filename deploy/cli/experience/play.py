"""`headrace play`: a person plays an environment, and the episodes become a data set."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from actors.envs.make import env_section
from actors.person.options import PersonOptions
from deploy.cli.policies.common import child
from deploy.config import command_line, options
from deploy.config.layers import layers, resolve
from deploy.errors import ConfigError

USAGE_LINE = "headrace play ENV [--out FILE.npz] [--episodes N] [--fps N] [--seed S] [--terminal] [--env.field VALUE …]"
DESCRIPTION = """\
Play an environment yourself, by keyboard or gamepad: in a window, or without a display or pygame in the terminal. Your
episodes become a data set of demonstrations, written after each one.

  headrace play CartPole-v1
  headrace play snake:6 --fps 4 --out snake.npz           slower than usual; more episodes are added to the file later
  headrace up --env snake:6 --algo dqn --replay.demonstrations snake.npz

The screen shows which keys work. Besides them: r throws the episode away, the one that runs or the one that has just ended; p
pauses; Esc ends. An environment in which no action means waiting waits for a key before each step.
"""
FOLDER = "play"
PLAIN_AGAIN = "\x1b[0m\x1b[?25h"  # colours of the terminal's own, and its cursor


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    about = "mario, robot, snake, a Gymnasium id such as CartPole-v1, or package.module:Name of your own"
    target.add_argument("name", nargs="?", metavar="ENV", help=about)
    target.add_argument("--env", dest="env.id", metavar="ENV", help="the same")
    text = f"the file; episodes are added to one that is there (default: {FOLDER}/ENV-DATE-TIME.npz)"
    target.add_argument("--out", metavar="FILE.npz", help=text)
    options.add_fields(target, PersonOptions, ("episodes", "fps", "seed", "terminal"))
    named = [f"--env={word}" for word in typed[:1] if not word.startswith("-")]
    options.add_env_section(target, options.described_env([*named, *typed]))


def run(parsed: argparse.Namespace) -> int:
    typed: dict[str, Any] = command_line.given(parsed).get("env", {})
    if not (env_id := typed.pop("id", None) or parsed.name):
        raise ConfigError("name the environment: `headrace play CartPole-v1`; `headrace envs` lists them")
    config = resolve(layers({"env": {"id": env_id, **typed}}))
    stem = re.sub(r"[^\w.-]+", "-", env_id).strip("-.")
    out = Path(parsed.out or Path(FOLDER, f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.npz"))
    if out.suffix != ".npz":
        raise ConfigError(f"--out {out}: the episodes are written as a .npz file, so give it a name that ends in .npz")
    if parsed.out and not out.parent.is_dir():
        raise ConfigError(f"--out: there is no folder {out.parent}")
    flags = " ".join(_flags(env_id, typed))
    chosen = command_line.read_fields(parsed, PersonOptions, env=env_section(config.env), flags=flags, out=str(out))
    with _terminal_as_it_was():
        return child("actors.person.play", msgspec.json.encode(chosen).decode(), keys=True)


def _flags(env_id: str, typed: dict[str, Any]) -> Iterator[str]:
    """The environment as `headrace up` takes it."""
    yield f"--env {shlex.quote(env_id)}"
    for key, value in typed.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
        yield f"--env.{key.replace('_', '-')} {shlex.quote(text.lower() if isinstance(value, bool) else text)}"


@contextmanager
def _terminal_as_it_was() -> Iterator[None]:
    """Also where the process that reads its keys was killed."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        if termios.tcgetattr(sys.stdin) != before:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
            print(PLAIN_AGAIN, flush=True)
