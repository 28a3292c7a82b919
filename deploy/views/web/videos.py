"""The videos of a run that the page shows: the newest, and those of the best and of the worst episode."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.evaluation.video.kept import read_videos
from transport.files.documents import read_bytes
from transport.run_dir import RunDir

TYPE = "video/mp4"
INLINE_BYTES = 50_000_000  # of the videos in a report; a browser is slow with a larger page


def shown_videos(run: RunDir) -> list[dict[str, Any]]:
    """The newest video first. `roles` says what it is: newest, best, worst. A video may be more than one of these, and where all
    returns are equal none is the best or the worst."""
    listed = read_videos(run)
    if not listed:
        return []
    picked = {"newest": listed[0]}
    best, worst = (choose(listed, key=lambda video: video.total_reward) for choose in (max, min))
    if best.total_reward > worst.total_reward:
        picked |= {"best": best, "worst": worst}
    shown = []
    for video in dict.fromkeys(picked.values()):
        path = _inside(run, video.file)
        try:
            size = path.stat().st_size if path else None
        except OSError:  # the evaluator has just deleted it
            size = None
        if size is None:
            continue
        roles = [role for role, one in picked.items() if one == video]
        facts = {"policy_version": video.policy_version, "return": video.total_reward, "public": video.may_be_published}
        shown.append({"file": video.file, "roles": roles, "bytes": size} | facts)
    return shown


def video_file(run: RunDir, name: str) -> Path | None:
    """The file of a video in the run's list; None for any other name, and for a video that is not there."""
    return _inside(run, name) if any(video.file == name for video in read_videos(run)) else None


def _inside(run: RunDir, name: str) -> Path | None:
    """A file of the folder videos/, unless it or the folder is a link."""
    path = run.videos / name
    real = run.path.resolve() / run.videos.name / name
    return path if path.is_file() and path.resolve() == real else None


def put_inside(documents: Sequence[dict[str, Any]], runs: Sequence[RunDir]) -> None:
    """Adds the files of videos to the documents of runs, as `data`: those that may be published, at most INLINE_BYTES in all."""
    left = INLINE_BYTES
    for document, run in zip(documents, runs, strict=True):
        for video in document["videos"]:
            path = video_file(run, video["file"])
            if path is None or not video["public"] or video["bytes"] > left:
                continue
            try:
                data = read_bytes(path)
            except OSError:
                continue
            left -= len(data)
            video["data"] = f"data:{TYPE};base64,{base64.b64encode(data).decode()}"
