"""Films episodes: passes the pictures of an episode to a function, and writes pictures to a video file. The only file that
imports imageio-ffmpeg."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from actors.config import EnvConfig
from actors.envs.base import FIRST, EnvPlace
from actors.envs.make import make_env, open_family
from actors.errors import EnvError
from actors.evaluation.video.overlay import Overlay
from learner.devices import installing

FRAMES_PER_SECOND = 30.0  # of an environment without render_fps
MAX_FRAMES_PER_SECOND = 60.0
END_SECONDS = 1.0  # for which the last picture of an episode is shown: some episodes are shorter

Frames = Generator[None, np.ndarray, None]  # an open video: send() adds a frame, close() ends it


class Filmed(gymnasium.Wrapper):
    """Calls `show` once with the rendered frame of every observation, and `repeats` more times with the last one of an episode.

    A frame is shown when its action is known, so that an overlay has both. The frame of a reset without a step is never shown.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        show: Callable[[np.ndarray], None],
        repeats: int = 0,
        overlay: Overlay | None = None,
        every: int = 1,
    ) -> None:
        """Renders and shows one of every `every` frames of an episode."""
        super().__init__(env)
        self._show, self._repeats, self._overlay, self._every, self._step = show, repeats, overlay, every, 0
        self._frame = np.empty((0, 0, 3), np.uint8)  # of the last observation

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        if self._overlay is not None:
            self._overlay.begin()
        self._frame, self._step = picture_of(self.env), 0
        return result

    def step(self, action: Any) -> Any:
        if self._step % self._every == 0:
            self._show(self._frame if self._overlay is None else self._overlay.beside(self._frame))
        result = self.env.step(action)
        self._step += 1
        _, reward, terminated, truncated, _ = result
        if self._step % self._every == 0 or terminated or truncated:
            self._frame = picture_of(self.env)
        if self._overlay is not None:
            self._overlay.add(float(reward))
        if terminated or truncated:
            last = self._frame if self._overlay is None else self._overlay.beside(self._frame, over=True)
            for _ in range(1 + self._repeats):
                self._show(last)
        return result


def picture_of(env: gymnasium.Env) -> np.ndarray:
    """[H, W, 3] uint8. Raises EnvError."""
    frame: Any = env.render()
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] not in (3, 4):
        found = f" but an array of shape {frame.shape}" if isinstance(frame, np.ndarray) else ""
        needed = "it needs render mode rgb_array, which gives [height, width, 3]"
        raise EnvError(f"the environment's render() returns no picture{found}: {needed}")
    return np.array(frame[:, :, :3], np.uint8, order="C")  # ffmpeg takes no other order, and no transparency


def make_filmed(
    config: EnvConfig,
    show: Callable[[np.ndarray], None],
    evaluation: bool,
    overlay: Overlay | None = None,
    most_rate: float = MAX_FRAMES_PER_SECOND,
    place: EnvPlace = FIRST,
) -> gymnasium.Env:
    """Makes the environment. Its frames are passed to `show`, at most `most_rate` per second. Raises EnvError."""
    env = make_env(config, "rgb_array", evaluation, place)
    if env.render_mode != "rgb_array":
        raise EnvError(f"{config.id} cannot be filmed: its render_mode is {env.render_mode}, not rgb_array")
    family = open_family(config)
    if overlay is not None:
        overlay.names = family.action_names(env)
    speed = rate(env, family.frames_per_step)
    every = stride(speed, most_rate)
    return Filmed(env, show, round(END_SECONDS * speed) // every, overlay, every)


def video_writer(path: Path, frames_per_second: float, options: tuple[str, ...] = ()) -> Callable[[np.ndarray], Frames]:
    """A function that opens the video with its first frame [H, W, 3]. `options` are ffmpeg's. Raises EnvError where
    imageio-ffmpeg is not installed."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise EnvError(f"a video needs imageio-ffmpeg, which is not installed: {installing.headrace('video')}") from error

    def open_for(frame: np.ndarray) -> Frames:
        file = imageio_ffmpeg.write_frames(
            str(path),
            (frame.shape[1], frame.shape[0]),
            fps=frames_per_second,
            macro_block_size=2,
            ffmpeg_log_level="error",
            output_params=list(options),
        )
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
        """Raises EnvError where ffmpeg, which has printed the reason, has ended."""
        if self._file is None:
            self._file = self._open_for(frame)
        try:
            self._file.send(frame)
        except OSError as error:  # its text is the whole command of ffmpeg
            raise EnvError("ffmpeg could not write the video, and says why above: take a name such as out.mp4") from error
        self.frames += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def rate(env: gymnasium.Env, frames_per_step: int) -> float:
    """Steps per second of a video at the environment's own speed."""
    found = float((env.metadata or {}).get("render_fps") or FRAMES_PER_SECOND)
    return min(found / frames_per_step, MAX_FRAMES_PER_SECOND)


def stride(found: float, most: float) -> int:
    """Every n-th picture is shown, so that there are at most `most` per second; returns n."""
    return max(math.ceil(found / most), 1)
