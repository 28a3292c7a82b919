"""Writes the card of an exported policy, and what goes along with it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from actors.evaluation.video.kept import read_videos
from deploy.views.sharing.card import card
from deploy.views.sharing.facts import CardFacts, of_file, of_run, published
from learner.weights.checkpoint import write
from transport.files.documents import read_bytes
from transport.files.writing import writing
from transport.run_dir import RunDir

POLICY, CARD, VIDEO = "policy.safetensors", "README.md", "replay.mp4"  # in a repository; its page shows the last two


class Parcel(NamedTuple):
    """What is sent: files by the names that they get, and a line about them."""

    files: dict[str, Path]
    about: str


def write_card(policy: Path, out: Path, film: Path, run: RunDir, repository: str = "") -> list[Path]:
    """Writes the card of a file that has been exported from `run`, and as `film` a video where there is one that may be
    published. Returns what has been written. Raises CheckpointError, OSError."""
    facts = of_run(policy, run)
    found = video_of(run, facts.policy_version)
    if found is not None:
        with found.open("rb") as source, writing(film) as file:
            shutil.copyfileobj(source, file)
    with writing(out) as file:
        file.write(card(facts, policy.name, film.name if found else "", repository).encode())
    return [out, film] if found else [out]


def video_beside(policy: Path) -> Path:
    """Where the video of an exported file is."""
    return policy.with_name(f"{policy.stem}-video.mp4")


def video_of(run: RunDir, version: int) -> Path | None:
    """The video of this version of the policy, if there is one that may be published."""
    fitting = (video for video in read_videos(run) if video.policy_version == version and video.may_be_published)
    return next((path for video in fitting if (path := run.videos / video.file).is_file()), None)


def parcel(policy: Path, folder: Path, run: RunDir | None, repository: str) -> Parcel:
    """Writes what is sent of an exported file to `folder`: the policy without paths of this machine, and the card.

    With its `run` the card is made anew. Without, it is the one beside the file, which `headrace export` has written, else one
    that knows of no evaluation. `repository` is where it goes. Raises CheckpointError, OSError.
    """
    facts, weights, metadata = of_file(policy)
    files = {name: folder / name for name in (POLICY, CARD)}
    write(files[POLICY], weights, published(weights, metadata))
    ours, beside, film = files[CARD], policy.with_suffix(".md"), video_beside(policy)
    if run is not None:
        if (folder / VIDEO) in write_card(files[POLICY], ours, folder / VIDEO, run, repository):
            files[VIDEO] = folder / VIDEO
    elif beside.is_file():
        text = read_bytes(beside).decode(errors="replace")
        if film.is_file() and film.name in text:
            files[VIDEO] = film
        ours.write_text(text.replace(film.name, VIDEO).replace(policy.name, POLICY), encoding="utf-8")
    else:
        ours.write_text(card(facts, POLICY, "", repository), encoding="utf-8")
    return Parcel(files, about(facts))


def about(facts: CardFacts) -> str:
    return f"Policy v{facts.policy_version} for {facts.config['env']['id']} by {facts.config['algorithm']['name']}"
