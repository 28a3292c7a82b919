"""Lets a person play an environment: `python -m actors.person.play OPTIONS`, which `headrace play` starts."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TextIO

import gymnasium
import numpy as np

from actors.config import EnvConfig
from actors.datasets.base import DatasetError
from actors.envs.base import EnvironmentFamily
from actors.envs.foreign.keys import keys_of
from actors.envs.make import leave, make_env, open_family, read_env
from actors.envs.spec import experience_spec
from actors.envs.vector import SEEDS
from actors.errors import EnvError, in_one_line
from actors.evaluation.evaluate import own_stdout
from actors.evaluation.video.film import rate
from actors.evaluation.video.pressed import Pressed
from actors.evaluation.video.screen import open_screen
from actors.evaluation.video.window import has_display
from actors.person.options import PersonOptions
from actors.person.recording import Recording
from actors.person.session import PlaySession, pictures_per_step
from learner.algorithms.base import ALGORITHMS, action_kind, find_algorithm, offline_algorithms
from transport.experience import ExperienceSpec
from transport.files.documents import decode
from transport.lifetime import handle
from transport.names import UnknownName
from transport.text import amount, plain

INSTEAD = "play in the terminal with --terminal"


class Stopped:
    """Says whether this process should stop: after a signal, or once its parent has ended. The same signal again raises
    KeyboardInterrupt."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._signals: set[int] = set()
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                handle(getattr(signal, name), self._on_signal)

    def __call__(self) -> bool:
        return bool(self._signals) or os.getppid() != self._parent

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number in self._signals:
            raise KeyboardInterrupt
        self._signals.add(number)


def open_env(config: EnvConfig, family: EnvironmentFamily) -> gymnasium.Env:
    """Raises EnvError."""
    if family.decides_steps:
        raise EnvError(f"{config.id} cannot be played: programs that connect decide its steps")
    if not has_display():
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo's default needs a display
    env = make_env(config, "rgb_array")
    if env.render_mode != "rgb_array":
        raise EnvError(f"{config.id} cannot be seen: its render_mode is {env.render_mode}, not rgb_array")
    return env


def run(options: PersonOptions, stopped: Callable[[], bool], out: TextIO) -> None:
    """Raises DatasetError, EnvError, OSError, UnknownName, and what the environment raises."""
    config = read_env(options.env | ({"restarts": 0.0} if "restarts" in options.env else {}))  # a person begins each game anew
    family = open_family(config)
    with ExitStack() as opened:
        env = open_env(config, family)
        opened.callback(env.close)
        spec = experience_spec(env, config, "none")
        recording = Recording(Path(options.out), env, spec, f"a person who played {config.id}")
        before = len(recording.episodes)
        speed = options.fps or rate(env, family.frames_per_step)
        pressed, pictures = Pressed(keys_of(env, family), speed), speed * pictures_per_step(speed)
        screen = open_screen(config.id, pictures, out, pressed, terminal=options.terminal, instead=INSTEAD)
        try:
            seed = options.seed or int(np.random.default_rng().integers(1, SEEDS))
            PlaySession(env, screen, pressed, recording, speed, stopped).play(options.episodes, seed)
        finally:
            screen.close()
            for line in _closing(recording, before, spec, options.flags):
                print(plain(line), file=out, flush=True)
        if len(recording.episodes) == before:
            print("no episode was recorded", file=out, flush=True)


def _closing(recording: Recording, before: int, spec: ExperienceSpec, flags: str) -> Iterator[str]:
    """Lines that say what the file holds now, and what to type next."""
    kept, added = recording.episodes, len(recording.episodes) - before
    if not added:
        return
    steps, mean = sum(len(one.rewards) for one in kept), float(np.mean([one.total for one in kept]))
    yield f"{recording.path}: {len(kept):,} episodes, {added:,} of them new, {steps:,} steps, return {amount(mean)} on average"
    file = shlex.quote(str(recording.path))
    yield f"show:     headrace dataset show {file}"
    kind, up = action_kind(spec), f"headrace up {flags} --replay.demonstrations {file}"
    for name in [name for name in offline_algorithms() if kind in find_algorithm(name).actions][:1]:
        yield f"learn:    {up} --algo {name}"
    for name in [name for name in ALGORITHMS if find_algorithm(name).imitates and kind in find_algorithm(name).actions][:1]:
        yield f"imitate:  {up} --algo {name} --learner.clone-steps 2000"


def main(arguments: list[str] | None = None, out: TextIO | None = None) -> int:
    """Exit status 2: it cannot be played; 1: the environment raised."""
    stopped = Stopped()
    (text,) = sys.argv[1:] if arguments is None else arguments
    try:
        run(decode(text, PersonOptions), stopped, out or sys.stdout)
    except KeyboardInterrupt:
        print("headrace: interrupted; the episode that ran is lost", file=sys.stderr)
    except (DatasetError, EnvError, UnknownName, OSError, gymnasium.error.Error) as error:
        print(f"headrace: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Exception as error:  # an environment may raise anything
        print(f"headrace: {in_one_line(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    leave(lambda: main(out=own_stdout()))
