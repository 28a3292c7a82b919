"""The list of the videos in a run's folder."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from transport.files.documents import Damaged, read_document
from transport.files.writing import tidy, write_atomically
from transport.run_dir import RunDir

LIST = "videos.json"
NAME = re.compile(r"best-v\d{1,18}\.mp4")


class Video(Struct, frozen=True):
    """A video of one episode. `file` is its name in the run's folder videos/."""

    file: str
    policy_version: int
    total_reward: float
    may_be_published: bool  # as the environment's family says


def read_videos(run: RunDir) -> list[Video]:
    """The videos of a run, newest first; none if there is no list of them, or a damaged one. Entries whose `file` is no
    NAME, such as a path, are left out."""
    try:
        found = read_document(run.videos / LIST, list[Video])
    except (OSError, Damaged):
        return []
    return [video for video in found if NAME.fullmatch(video.file)]


def add_video(run: RunDir, video: Video, kept: int) -> None:
    """Adds a video to the list, and deletes the oldest beyond `kept`. Raises OSError."""
    videos = [video, *(other for other in read_videos(run) if other.file != video.file)]
    write_atomically(run.videos / LIST, msgspec.json.encode(videos[:kept]))
    for old in videos[kept:]:
        tidy(run.videos / old.file)
