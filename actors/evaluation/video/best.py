"""Videos of the best policies of a run: one episode of each, a bounded number of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import gymnasium
import numpy as np

from actors.agent import policy_seed
from actors.config import ActorSettings, EnvConfig, EvaluatorConfig
from actors.envs.base import EnvPlace
from actors.envs.make import open_family
from actors.envs.vector import VectorEnv
from actors.errors import in_one_line
from actors.evaluation.evaluate import load_policy, play
from actors.evaluation.video.film import Recorder, make_filmed, rate, stride, video_writer
from actors.evaluation.video.kept import Video, add_video, read_videos
from actors.evaluation.video.overlay import ExplainedPlayer, Overlay
from transport.files.writing import replace, tidy
from transport.run_dir import RunDir

MOST_SECONDS = 60.0  # of a video
MOST_RATE = 30.0  # pictures per second; of an environment with more, some are left out, because each takes time
SHARE = 0.1  # of the evaluator's time that goes into videos: after a video there is none for a while
CHEAP = ("-preset", "veryfast", "-threads", "1")  # options of ffmpeg


class BestVideos:
    """Films the best policy now and then, in a rendered environment of its own."""

    def __init__(
        self,
        settings: ActorSettings,
        config: EvaluatorConfig,
        run_dir: RunDir,
        seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises EnvError where the environment has no pictures, or imageio-ffmpeg is not installed."""
        self._settings, self._run_dir, self._kept, self._clock = settings, run_dir, config.videos, clock
        self._next = clock()
        self._filmed = max((video.policy_version for video in read_videos(run_dir)), default=-1)
        family = open_family(settings.env)
        self._may_be_published = family.pictures_may_be_published
        self._overlay = Overlay("")
        self._recorder: Recorder | None = None

        def make(config: EnvConfig, *, evaluation: bool) -> gymnasium.Env:
            place = EnvPlace(env_index=settings.process.actors.envs_per_actor, seed=seed)  # after those of the evaluation
            return make_filmed(config, self._show, evaluation, self._overlay, MOST_RATE, place)

        self._env = VectorEnv(settings.env, settings.spec, 1, [seed], config, make)
        self._rate = rate(self._env.example, family.frames_per_step)
        self._rate /= stride(self._rate, MOST_RATE)
        video_writer(run_dir.videos, self._rate)  # raises EnvError now if imageio-ffmpeg is missing
        for partial in run_dir.videos.glob(".*.mp4"):  # of an evaluator that was killed
            tidy(partial)

    def due(self, version: int) -> bool:
        """True if this version, the best, is to be filmed now."""
        return version > self._filmed and self._clock() >= self._next

    def film(self, go_on: Callable[[], bool]) -> None:
        """Plays one episode with the best weights and keeps its video. `go_on` is called after each step; where it is False,
        nothing is kept. Raises EnvError, CheckpointError, OSError."""
        began = self._clock()
        policy, metadata = load_policy(self._run_dir, self._settings, best=True)
        policy.assign(policy_seed(self._settings.process.seed), 0, 1, 1)
        player = ExplainedPlayer(self._settings.spec, policy, self._overlay)
        self._filmed = int(metadata["policy_version"])
        self._record(self._filmed, player, go_on)
        self._next = self._clock() + (self._clock() - began) * (1 / SHARE - 1)

    def _record(self, version: int, player: ExplainedPlayer, go_on: Callable[[], bool]) -> None:
        folder = self._run_dir.videos
        folder.mkdir(exist_ok=True)
        file, part = folder / f"best-v{version}.mp4", folder / f".best-v{version}.{os.getpid()}.mp4"
        self._overlay.title = f"{self._settings.env.id} - {self._settings.algorithm.name} v{version}"
        self._recorder = Recorder(video_writer(part, self._rate, CHEAP))
        total, whole = 0.0, False
        try:
            for ended in play(self._env, player, 1):
                if not go_on():
                    return
                total = ended[0].total_reward if ended else self._overlay.total
                if whole := bool(ended) or self._recorder.frames >= MOST_SECONDS * self._rate:
                    break
        finally:
            self._recorder.close()
            self._recorder = None
            if not whole:
                tidy(part)
        replace(part, file)
        add_video(self._run_dir, Video(file.name, version, total, self._may_be_published), self._kept)

    def close(self) -> None:
        self._env.close()

    def _show(self, frame: np.ndarray) -> None:
        if self._recorder is not None:
            self._recorder.show(frame)


def open_videos(
    settings: ActorSettings, config: EvaluatorConfig, run_dir: RunDir, seed: int, say: Callable[[str], None]
) -> BestVideos | None:
    """The recorder of videos; None, after a line by `say`, if the environment cannot be filmed."""
    try:
        return BestVideos(settings, config, run_dir, seed)
    except Exception as error:  # an environment may raise anything where it is made to be filmed
        beside = ", which need an environment beside that of evaluations" * (settings.process.actors.envs_per_actor == 1)
        say(f"there will be no videos{beside}: {in_one_line(error)}")
        return None
