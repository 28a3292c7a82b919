"""`headrace export`: writes a run's policy and its configuration to one file, and a card beside it."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.evaluation.options import PlayOptions
from deploy.cli.common import DONE, REFUSED, add_trust, complain
from deploy.cli.policies.common import child, refreshed, with_weights
from deploy.config import options, trust
from deploy.errors import ConfigError
from deploy.views.sharing.card import HEAD, video_beside, write_card
from deploy.views.sharing.named import policy_file
from learner.saving.export import read_exported
from learner.weights.checkpoint import CheckpointError
from transport.files.documents import read_bytes
from transport.files.writing import is_special
from transport.run_dir import RunDir

DESCRIPTION = """\
Write the policy of a run and its configuration to one file. Beside safetensors there is a card in Markdown: what the policy was
trained on, how, how well it does, and how to load it.

  headrace export mario-ppo mario.safetensors --best     mario.safetensors and mario.md
  headrace export mario-ppo mario.onnx                   for any runtime of ONNX: plain observations in, actions out
  headrace export lander lander.h                        a C header without dependencies, of a policy that reads vectors
  headrace export lander.safetensors lander.onnx         from an exported file

The form follows from the name, unless --format says it. ONNX and C are compared with the policy on 10,000 random observations
before they are written.
"""
SAFETENSORS, ONNX, C = "safetensors", "onnx", "c"
FORMATS = {".onnx": ONNX, ".h": C}


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument(
        "run", metavar="RUN | FILE", help="name or folder of a run, a file of `headrace export`, hub:OWNER/NAME or zoo:NAME"
    )
    target.add_argument("out", metavar="OUT", help="the file to write, such as policy.safetensors, policy.onnx or policy.h")
    target.add_argument("--format", choices=(SAFETENSORS, ONNX, C), help="the form of the file (default: by its name)")
    target.add_argument(
        "--int8", action="store_true", help="ONNX: products in int8, by onnxruntime's quantiser; says how many actions differ"
    )
    options.add_fields(target, PlayOptions, ("best",))
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    out = Path(parsed.out)
    form = parsed.format or FORMATS.get(out.suffix, SAFETENSORS)
    file = policy_file(parsed.run)
    if parsed.int8 and form != ONNX:
        raise ConfigError("--int8 is for ONNX: name the file OUT.onnx")
    if file and parsed.best:
        raise ConfigError(f"--best is for a run: {file} holds one policy")
    if file and form == SAFETENSORS:
        raise ConfigError(f"{file} is a policy already: name OUT.onnx or OUT.h")
    if file and not parsed.trusted:
        trust.check_exported({"algorithm": read_config(file).get("algorithm", {})}, file, f"add {trust.FLAG}")
    folder = None if file else with_weights(parsed)
    if folder is None or form != SAFETENSORS:
        return _convert(folder, file, out, "int8" if parsed.int8 else form, parsed.best)
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


def read_config(file: Path) -> dict[str, Any]:
    """The settings in an exported file. Raises ConfigError."""
    try:
        return read_exported(file)[2]
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def _convert(folder: RunDir | None, file: Path | None, out: Path, form: str, best: bool) -> int:
    """Writes the policy of a run or of an exported file in another form; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="headrace-export-") as name:
        exported = file or Path(name) / "exported.safetensors"
        if folder is not None and (status := export(folder, exported, best, quiet=True)) != DONE:
            return status
        return child("actors.exports.write", form, str(exported), str(out))


def export(folder: RunDir, out: Path, best: bool, quiet: bool = False) -> int:
    """Writes the file; returns the exit status. `quiet`: says only what went wrong."""
    refreshed(folder)
    return child("learner.saving.export", str(folder.path), str(folder.best if best else folder.latest), str(out), quiet=quiet)
