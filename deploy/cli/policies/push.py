"""`headrace push`: sends a policy and its card to a model repository."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from actors.evaluation.options import PlayOptions
from deploy.cli.common import DONE, FAILED, REFUSED, add_trust, complain
from deploy.cli.policies.common import with_weights
from deploy.cli.policies.export import export
from deploy.config import options
from deploy.errors import ConfigError
from deploy.views.sharing import hub
from deploy.views.sharing.card import make_upload
from learner.weights.checkpoint import CheckpointError

USAGE_LINE = "headrace push [RUN | FILE.safetensors] OWNER/NAME [--best] [--public]"
DESCRIPTION = """\
Send a policy and its card to a model repository of Hugging Face, which is made private where there is none.

  headrace push mario-ppo me/mario --best        the best weights of a run
  headrace push mario.safetensors me/mario       what `headrace export` has written, with the card beside it
  headrace push me/mario --public                the run that is up, or the most recent one, for everyone

The token is that of HF_TOKEN, or of `hf auth login`. HF_ENDPOINT names another server.
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument(
        "run", nargs="?", metavar="RUN | FILE", help="a run, or a file of `headrace export` (default: the run that is up)"
    )
    target.add_argument("repository", metavar="OWNER/NAME", help="the repository")
    options.add_fields(target, PlayOptions, ("best",))
    target.add_argument("--public", action="store_true", help="let everyone see the repository; without it, it is private")
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    if not hub.REPOSITORY.fullmatch(parsed.repository):
        raise ConfigError(f"{parsed.repository!r} is not a repository: write OWNER/NAME")
    file = Path(parsed.run) if parsed.run and Path(parsed.run).is_file() else None
    if file and parsed.best:
        raise ConfigError("--best is for a run: a file holds one policy")
    folder = None if file else with_weights(parsed)
    try:
        hub.own_token()
    except hub.NotPossible as error:
        return complain(str(error), REFUSED)
    with tempfile.TemporaryDirectory(prefix="headrace-push-") as name:
        policy = file or Path(name) / "exported.safetensors"
        if folder is not None and (status := export(folder, policy, parsed.best, quiet=True)) != DONE:
            return status
        try:
            made = make_upload(policy, Path(name), folder, parsed.repository)
            address = hub.push(parsed.repository, made.files, made.about, parsed.public)
        except CheckpointError as error:
            raise ConfigError(str(error)) from error
        except hub.PushError as error:
            return complain(str(error), REFUSED if isinstance(error, hub.NotPossible) else FAILED)
    print(f"{address}: {made.about}, {'public' if parsed.public else 'private'}")
    return DONE
