"""Shows or records a run's policy: `python -m actors.evaluation.demo RUN_DIR`, which `headrace demo` starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from actors.config import EnvConfig
from actors.envs.errors import EnvError
from actors.envs.make import make_env, open_family
from actors.envs.vector import Episode, VectorEnv
from actors.evaluation.evaluate import SEED_OFFSET, load_policy, play, untrained
from actors.evaluation.figures import amount
from actors.evaluation.options import DemoOptions, from_arguments
from actors.evaluation.window import Window, WindowClosed, check_display
from actors.settings import read_evaluator, read_settings
from learner.weights.checkpoint import CheckpointError
from transport.experience import SpecError
from transport.names import UnknownName
from transport.progress import Progress
from transport.run_dir import RunDir

FRAMES_PER_SECOND = 30.0  # of an environment without render_fps
MAX_FRAMES_PER_SECOND = 60.0
HELD_SECONDS = 1.0  # the end of an episode is shown so long: some last less

Frames = Generator[None, np.ndarray, None]  # an open video: send() adds a frame, close() ends it


class Filmed(gymnasium.Wrapper):
    """Calls `show` with the rendered frame after every reset and step, and `held` more times with that of an episode's end."""

    def __init__(self, env: gymnasium.Env, show: Callable[[np.ndarray], None], held: int = 0) -> None:
        super().__init__(env)
        self._show, self._held = show, held
        self._first: np.ndarray | None = None  # frame of the reset, shown with the first step: a last episode may have no step

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        self._first = self._picture()
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if self._first is not None:
            self._show(self._first)
            self._first = None
        _, _, terminated, truncated, _ = result
        last = self._picture()
        for _ in range(1 + (self._held if terminated or truncated else 0)):
            self._show(last)
        return result

    def _picture(self) -> np.ndarray:
        frame = self.env.render()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            raise EnvError("the environment's render() returns no picture: it needs render mode rgb_array")
        return np.array(frame, np.uint8)


def make_filmed(config: EnvConfig, show: Callable[[np.ndarray], None], evaluation: bool) -> gymnasium.Env:
    """Makes the environment so that it calls `show` with each frame. Raises EnvError."""
    env = make_env(config, "rgb_array", evaluation)
    if env.render_mode != "rgb_array":
        raise EnvError(f"{config.id} cannot be filmed: its render_mode is {env.render_mode}, not rgb_array")
    return Filmed(env, show, held(env, config))


def make_windowed(config: EnvConfig, evaluation: bool, opened: ExitStack) -> gymnasium.Env:
    """Makes the environment with a window: its own, or else one that shows its pictures and that `opened` closes. Raises
    EnvError."""
    check_display()
    env = make_env(config, "human", evaluation)
    if env.render_mode == "human":
        return env
    if env.render_mode != "rgb_array":
        raise EnvError(f"{config.id} cannot be seen: its render_mode is {env.render_mode}, neither human nor rgb_array")
    window = Window(config.id, rate(env, open_family(config).frames_per_step))
    opened.callback(window.close)
    return Filmed(env, window.show, held(env, config))


def video_writer(path: Path, frames_per_second: float) -> Callable[[np.ndarray], Frames]:
    """A function that opens the video with its first frame [H, W, 3]. Raises EnvError if imageio-ffmpeg is not installed."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise EnvError("--video needs imageio-ffmpeg, which is not installed: pip install 'headrace[video]'") from error

    def open_for(frame: np.ndarray) -> Frames:
        size = (frame.shape[1], frame.shape[0])
        file = imageio_ffmpeg.write_frames(str(path), size, fps=frames_per_second, macro_block_size=2, ffmpeg_log_level="error")
        file.send(None)
        return file  # type: ignore[no-any-return]

    return open_for


class Recorder:
    """Writes frames into one video file."""

    def __init__(self, open_for: Callable[[np.ndarray], Frames]) -> None:
        """The file is opened at the first frame, because it needs the size."""
        self._open_for = open_for
        self._file: Frames | None = None
        self.frames = 0

    def show(self, frame: np.ndarray) -> None:
        if self._file is None:
            self._file = self._open_for(frame)
        self._file.send(frame)
        self.frames += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def rate(env: gymnasium.Env, frames_per_step: int) -> float:
    """Steps per second of a video at the environment's own speed."""
    found = float((env.metadata or {}).get("render_fps") or FRAMES_PER_SECOND)
    return min(found / frames_per_step, MAX_FRAMES_PER_SECOND)


def held(env: gymnasium.Env, config: EnvConfig) -> int:
    """For how many frames the end of an episode is shown."""
    return round(HELD_SECONDS * rate(env, open_family(config).frames_per_step))


def run(run_dir: RunDir, options: DemoOptions) -> list[Episode]:
    """Raises EnvError, CheckpointError, SpecError, OSError."""
    settings = read_settings(run_dir, None, options.env)
    policy, metadata = load_policy(run_dir, settings, options.best, options.weights)
    if line := untrained(metadata):
        print(line, flush=True)
    recorder = None
    if options.video:
        probe = make_env(settings.env)
        recorder = Recorder(video_writer(Path(options.video), rate(probe, open_family(settings.env).frames_per_step)))
        probe.close()

    def make(config: EnvConfig, *, evaluation: bool) -> gymnasium.Env:
        if options.headless:
            return make_env(config, evaluation=evaluation)
        return make_windowed(config, evaluation, opened) if recorder is None else make_filmed(config, recorder.show, evaluation)

    played: list[Episode] = []
    with ExitStack() as opened:
        env = VectorEnv(settings.env, settings.spec, 1, [options.seed + SEED_OFFSET], read_evaluator(run_dir), make)
        opened.callback(env.close)
        if recorder is not None:
            opened.callback(recorder.close)
        policy.assign(options.seed, 0, 1, 1)
        progress = Progress(options.episodes)
        try:
            for steps, counted in enumerate(play(env, settings.spec, policy, options.episodes), 1):
                played += counted
                if recorder is not None and progress.due:
                    left = progress.left(len(played))
                    print(f"{len(played)} of {options.episodes} episodes{left} · {steps:,} steps …", file=sys.stderr, flush=True)
                for episode in counted:
                    success = "" if episode.success is None else ", success" if episode.success else ", no success"
                    line = f"return {episode.total_reward:,.1f}, score {amount(episode.score)}, {episode.length:,} steps{success}"
                    print(f"policy v{metadata.get('policy_version')}: {line}", flush=True)
        except WindowClosed:
            print("the window was closed", flush=True)
    if recorder is not None:
        print(f"{options.video}: {recorder.frames:,} pictures")
    return played


def main(arguments: list[str] | None = None) -> int:
    """Exit status 2: it cannot be played."""
    run_dir, options = from_arguments(sys.argv[1:] if arguments is None else arguments, DemoOptions)
    try:
        run(run_dir, options)
    except (CheckpointError, EnvError, SpecError, UnknownName, OSError, gymnasium.error.Error) as error:
        print(f"headrace: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
