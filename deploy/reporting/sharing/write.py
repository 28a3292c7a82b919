"""Writes the card of an exported policy, and what goes along with it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from actors.evaluation.video.kept import read_videos
from deploy.reporting.sharing.card import card
from deploy.reporting.sharing.facts import Facts, of_file, of_run, published
from learner.weights.checkpoint import write
from transport.run_dir import RunDir, write_atomically


class Parcel(NamedTuple):
    """What is sent: files by the names that they get, and a line about them."""

    files: dict[str, Path]
    about: str


def write_card(policy: Path, out: Path, run: RunDir, repository: str = "") -> list[Path]:
    """Writes the card of a file that has been exported from `run`, and copies a video beside it where there is one that may be
    published. Returns what has been written. Raises CheckpointError, OSError."""
    facts = of_run(policy, run)
    found = video_of(run, facts.policy_version)
    if found is None:
        write_atomically(out, card(facts, policy.name, "", repository).encode())
        return [out]
    film = out.with_suffix(found.suffix)
    shutil.copyfile(found, film)
    write_atomically(out, card(facts, policy.name, film.name, repository).encode())
    return [out, film]


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
    files = {"policy.safetensors": folder / "policy.safetensors", "README.md": folder / "README.md"}
    write(files["policy.safetensors"], weights, published(weights, metadata))
    ours, beside = files["README.md"], policy.with_suffix(".md")
    if run is not None:
        for path in write_card(files["policy.safetensors"], ours, run, repository)[1:]:
            files[path.name] = path
    elif beside.is_file():
        text = beside.read_text(encoding="utf-8")
        ours.write_text(text.replace(policy.name, "policy.safetensors"), encoding="utf-8")
        film = policy.with_suffix(".mp4")
        if film.is_file() and f"]({film.name})" in text:
            files[film.name] = film
    else:
        ours.write_text(card(facts, "policy.safetensors", "", repository), encoding="utf-8")
    return Parcel(files, about(facts))


def about(facts: Facts) -> str:
    return f"Policy v{facts.policy_version} for {facts.config['env']['id']} by {facts.config['algorithm']['name']}"
