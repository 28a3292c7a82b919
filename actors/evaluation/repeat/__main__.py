"""Plays a past episode of a run again: `python -m actors.evaluation.repeat RUN_DIR`, which `headrace replay` starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import TextIO

import gymnasium

from actors.config import ActorSettings
from actors.datasets.base import DatasetError
from actors.datasets.runs import LoggedEpisode, RunSource
from actors.envs.make import leave, open_family
from actors.errors import EnvError, in_one_line
from actors.evaluation.evaluate import own_stdout
from actors.evaluation.options import RepeatOptions, from_arguments
from actors.evaluation.repeat.episodes import Entry, Episodes
from actors.evaluation.repeat.playback_env import Departure, PlaybackEnv
from actors.evaluation.repeat.renderer import EpisodeRenderer
from actors.evaluation.repeat.repeater import Repeater, check, first_success, say
from actors.evaluation.video.film import END_SECONDS, FRAMES_PER_SECOND, Recorder, rate, video_writer
from actors.evaluation.video.overlay import Overlay
from actors.evaluation.video.screen import open_screen
from actors.evaluation.video.window import WindowClosed
from actors.settings import read_settings
from transport.experience import SpecError
from transport.names import UnknownName
from transport.run_dir import RunDir
from transport.text import ProgressReport, amount

EXACT, DEPARTED, UNPLAYABLE = 0, 1, 2


def run(run_dir: RunDir, options: RepeatOptions, out: TextIO | None = None) -> int:
    """Prints to `out`, by default stdout. Raises DatasetError, EnvError, SpecError, OSError."""
    settings = read_settings(run_dir)
    if settings.spec.unit == "rollouts":
        raise DatasetError(
            f"runs of {settings.algorithm.name} keep no experience, because they learn from each step once: `headrace demo` "
            "shows how their policy plays"
        )
    episodes = Episodes(RunSource(str(run_dir.path)), options.steps, say)
    if options.list:
        for line in episodes.lines():
            print(line, file=out)
        return EXACT
    repeater = Repeater(settings, episodes)
    try:
        if options.check:
            return EXACT if check(repeater, episodes, out) else DEPARTED
        if options.step is not None:
            entry = episodes.nearest(options.step)
        elif options.episode == "first-success" and options.least_return is None:
            entry = first_success(repeater, episodes)
        else:
            entry = episodes.chosen(options.episode, options.least_return)
    finally:
        repeater.close()
    return play(repeater, entry, settings, options, out)


def play(repeater: Repeater, entry: Entry, settings: ActorSettings, options: RepeatOptions, out: TextIO | None) -> int:
    """Plays one episode, and shows it unless `options` say headless."""
    actor, _, environment = entry.logged.stream
    print(
        f"episode {entry.number:,}, which ended at about step {entry.step:,}: return {amount(entry.total)}, {entry.length:,} "
        f"steps, last action by {entry.chosen_by}, environment {environment} of {actor}",
        file=out,
        flush=True,
    )
    departure: Departure | None = None
    with ExitStack() as opened:
        env, episode, steps = _begin(repeater, entry, settings, options, opened)
        renderer = None if options.headless else _renderer(env, episode, entry, settings, options, opened, out or sys.stdout)
        progress = ProgressReport(entry.length)
        try:
            for step, departure in enumerate(steps):
                if renderer:
                    renderer.show(step, departure)
                if (options.video or options.headless) and progress.due:
                    say(f"step {step:,} of {entry.length:,}{progress.left(step)}")
        except WindowClosed:
            print("the window was closed", file=out, flush=True)
            return EXACT
    if options.video:
        print(f"{options.video}: written", file=out, flush=True)
    if departure is None:
        print("exact: each observation, reward and end is that of the log", file=out, flush=True)
        return EXACT
    shown = "" if options.headless else "; from there on this was what the log holds"
    print(f"departs from the log at {departure.where(entry.length)}: {departure.what}{shown}", file=out, flush=True)
    if env is not None:
        print(repeater.explain(entry), file=out, flush=True)
    return DEPARTED


def _begin(
    repeater: Repeater, entry: Entry, settings: ActorSettings, options: RepeatOptions, opened: ExitStack
) -> tuple[gymnasium.Env | None, LoggedEpisode, Iterator[Departure | None]]:
    """The environment, the episode with its rows, and the departure so far at each step. If no environment can be made, the
    episode departs at its start."""
    try:
        env = repeater.make(entry, pictures=not options.headless)
    except (EnvError, ImportError, gymnasium.error.Error) as error:
        departure = Departure(0, f"the environment cannot be made: {in_one_line(error)}")
        return None, repeater.rows(entry), repeat(departure, entry.length + 1)
    playback = PlaybackEnv(env, settings.spec)
    opened.callback(playback.close)
    episode = repeater.prepare(entry, playback)
    return env, episode, playback.play(episode)


def _renderer(
    env: gymnasium.Env | None,
    episode: LoggedEpisode,
    entry: Entry,
    settings: ActorSettings,
    options: RepeatOptions,
    opened: ExitStack,
    out: TextIO,
) -> EpisodeRenderer:
    """Raises EnvError."""
    overlay, family = Overlay(f"episode {entry.number:,}, step {entry.step:,}"), open_family(settings.env)
    speed = FRAMES_PER_SECOND if env is None else rate(env, family.frames_per_step)
    if env is not None:
        overlay.names = family.action_names(env)
    if options.video:
        recorder = Recorder(video_writer(Path(options.video), speed))
        opened.callback(recorder.close)
        shown = recorder.show
    else:
        screen = open_screen(settings.env.id, speed, out)
        opened.callback(screen.close)
        shown = screen.show
    drawn = env if env is not None and env.render_mode == "rgb_array" else None
    return EpisodeRenderer(shown, episode, settings.spec, drawn, overlay, round(END_SECONDS * speed), say)


def main(arguments: list[str] | None = None, out: TextIO | None = None) -> int:
    """Exit status 0: exact; 1: it departs from the log; 2: it cannot be played."""
    run_dir, options = from_arguments(sys.argv[1:] if arguments is None else arguments, RepeatOptions)
    try:
        return run(run_dir, options, out)
    except (DatasetError, EnvError, SpecError, UnknownName, OSError, gymnasium.error.Error) as error:
        print(f"headrace: {' '.join(str(error).split())}", file=sys.stderr)
        return UNPLAYABLE


if __name__ == "__main__":
    leave(lambda: main(out=own_stdout()))
