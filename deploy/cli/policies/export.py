"""`headrace export`: writes a run's policy and its configuration to one file, and a card beside it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from actors.evaluation.options import PlayOptions
from deploy.cli.common import DONE, REFUSED, add_trust, complain
from deploy.cli.policies.common import child, refreshed, with_weights
from deploy.config import options
from deploy.errors import ConfigError
from deploy.views.sharing.card import HEAD, video_beside, write_card
from transport.files.documents import read_bytes
from transport.files.writing import is_special
from transport.run_dir import RunDir

DESCRIPTION = """\
Write the policy of a run and its configuration to one file, and a card in Markdown beside it: what the policy was trained on,
how, how well it does, and how to load it.

  headrace export mario-dqn mario.safetensors --best     mario.safetensors and mario.md
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("run", metavar="RUN", help="name or folder of a run")
    target.add_argument("out", metavar="OUT.safetensors", help="the file to write")
    options.add_fields(target, PlayOptions, ("best",))
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    folder, out = with_weights(parsed), Path(parsed.out)
    card = out.with_suffix(".md")
    if card == out:
        raise ConfigError(f"{out} is the name of the card: name the file of the policy OUT.safetensors")
    if is_special(out):  # a device or a pipe has nothing beside it
        return export(folder, out, parsed.best)
    if is_special(card) or (card.exists() and not read_bytes(card).startswith(HEAD.encode())):
        return complain(f"{card} is there already and is no card: name another file, or move it away", REFUSED)
    status = export(folder, out, parsed.best)
    if status != DONE:
        return status
    try:
        for path in write_card(out, card, video_beside(out), folder):
            print(f"{os.path.relpath(path)}: {'the card' if path == card else 'a video'}")
    except OSError as error:
        return complain(f"cannot write {card}: {error.strerror}", REFUSED)
    return DONE


def export(folder: RunDir, out: Path, best: bool, quiet: bool = False) -> int:
    """Writes the file; returns the exit status. `quiet`: says only what went wrong."""
    refreshed(folder)
    return child("learner.saving.export", str(folder.path), str(folder.best if best else folder.latest), str(out), quiet=quiet)
