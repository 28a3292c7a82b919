"""Shows or records a run's policy: `python -m actors.evaluation.demo RUN_DIR`, which `headrace demo` starts."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import gymnasium

from actors.agent import policy_seed
from actors.config import EnvConfig
from actors.envs.foreign.keys import keys_of
from actors.envs.make import leave, make_env, open_family
from actors.envs.vector import VectorEnv
from actors.episodes import Episode
from actors.errors import EnvError, in_one_line
from actors.evaluation.evaluate import SEED_OFFSET, load_policy, own_stdout, play, untrained
from actors.evaluation.options import DemoOptions, from_arguments
from actors.evaluation.video.film import END_SECONDS, Filmed, Recorder, make_filmed, rate, video_writer
from actors.evaluation.video.overlay import ExplainedPlayer, Overlay
from actors.evaluation.video.screen import Screen, open_screen
from actors.evaluation.video.takeover import SharedPlayer, SteeringScreen
from actors.evaluation.video.terminal import can_show
from actors.evaluation.video.window import WindowClosed, check_display, has_display
from actors.settings import read_settings
from learner.weights.checkpoint import CheckpointError
from transport.experience import SpecError
from transport.names import UnknownName
from transport.run_dir import RunDir
from transport.text import ProgressReport, amount, plain


def make_shown(
    config: EnvConfig,
    evaluation: bool,
    opened: ExitStack,
    overlay: Overlay | None,
    out: TextIO,
    screens: list[SteeringScreen] | None,
) -> gymnasium.Env:
    """Makes the environment, which opens a window of its own or is shown on a screen that `opened` closes. With a list `screens`
    a person can take over, and the list gets their screen. Raises EnvError."""
    if not can_show(out):
        check_display()
    env = make_env(config, "human" if overlay is None and screens is None and has_display() else "rgb_array", evaluation)
    if env.render_mode == "human":
        return env
    if env.render_mode != "rgb_array":
        raise EnvError(f"{config.id} cannot be seen: its render_mode is {env.render_mode}, neither human nor rgb_array")
    family = open_family(config)
    if overlay is not None:
        overlay.names = family.action_names(env)
    speed = rate(env, family.frames_per_step)
    screen: Screen | SteeringScreen
    if screens is None:
        screen = open_screen(config.id, speed, out)
    else:
        keys = keys_of(env, family)
        print("\n".join(plain(line) for line in ("Tab  takes over, and hands back", *keys.lines())), file=out, flush=True)
        screen = SteeringScreen(config.id, speed, keys, overlay, out)
        screens.append(screen)
    opened.callback(screen.close)
    return Filmed(env, screen.show, round(END_SECONDS * speed), overlay)


def run(run_dir: RunDir, options: DemoOptions, out: TextIO | None = None) -> list[Episode]:
    """Prints to `out`, by default stdout. Raises EnvError, CheckpointError, SpecError, OSError."""
    settings = read_settings(run_dir, None, options.env)
    policy, metadata = load_policy(run_dir, settings, options.best, options.weights)
    if line := untrained(metadata):
        print(line, file=out, flush=True)
    title = f"{settings.env.id} - {settings.algorithm.name} v{metadata.get('policy_version')}"
    overlay = Overlay(title) if options.overlay else None
    recorder = None
    if options.video:
        probe = make_env(settings.env)
        recorder = Recorder(video_writer(Path(options.video), rate(probe, open_family(settings.env).frames_per_step)))
        probe.close()

    def make(config: EnvConfig, *, evaluation: bool) -> gymnasium.Env:
        if options.headless:
            return make_env(config, evaluation=evaluation)
        if recorder is None:
            return make_shown(config, evaluation, opened, overlay, out or sys.stdout, screens)
        return make_filmed(config, recorder.show, evaluation, overlay)

    screens: list[SteeringScreen] | None = [] if options.steer else None
    played: list[Episode] = []
    fault: Exception | None = None
    with ExitStack() as opened:
        env = VectorEnv(settings.env, settings.spec, 1, [options.seed + SEED_OFFSET], settings.process.evaluator, make)
        opened.callback(env.close)
        if recorder is not None:
            opened.callback(recorder.close)
        policy.assign(policy_seed(options.seed), 0, 1, 1)
        screen = screens[0] if screens else None
        player = (
            SharedPlayer(settings.spec, policy, overlay, screen) if screen else ExplainedPlayer(settings.spec, policy, overlay)
        )
        progress = ProgressReport(options.episodes)
        try:
            for steps, counted in enumerate(play(env, player, options.episodes), 1):
                played += counted
                if recorder is not None and progress.due:
                    left = progress.left(len(played))
                    print(f"{len(played)} of {options.episodes} episodes{left} · {steps:,} steps …", file=sys.stderr, flush=True)
                for episode in counted:
                    who = f"policy v{metadata.get('policy_version')}" + (" and you" if screen and screen.has_steered() else "")
                    print(f"{who}: {described(episode)}", file=out, flush=True)
        except WindowClosed:
            print("the window was closed", file=out, flush=True)
        except Exception as error:  # an environment may raise anything, and the film of what came before is kept
            fault = error
    if recorder is not None:
        print(f"{options.video}: {recorder.frames:,} pictures", file=out, flush=True)
    if fault is not None:
        raise fault
    return played


def described(episode: Episode) -> str:
    success = "" if episode.success is None else ", success" if episode.success else ", no success"
    return f"return {amount(episode.total_reward)}, score {amount(episode.score)}, {episode.length:,} steps{success}"


def main(arguments: list[str] | None = None, out: TextIO | None = None) -> int:
    """Exit status 2: it cannot be played; 1: an environment raised."""
    run_dir, options = from_arguments(sys.argv[1:] if arguments is None else arguments, DemoOptions)
    try:
        run(run_dir, options, out)
    except KeyboardInterrupt:
        print("headrace: interrupted", file=sys.stderr)
    except (CheckpointError, EnvError, SpecError, UnknownName, OSError, gymnasium.error.Error) as error:
        print(f"headrace: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Exception as error:  # an environment may raise anything
        print(f"headrace: {in_one_line(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    leave(lambda: main(out=own_stdout()))
