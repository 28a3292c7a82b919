"""`headrace pull`: fetches a policy and its card from a model repository."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from deploy.cli.common import DONE
from deploy.errors import ConfigError
from deploy.views.sharing.card import CARD, POLICY
from deploy.views.sharing.named import HUB, pulled

USAGE_LINE = "headrace pull OWNER/NAME [FOLDER]"
DESCRIPTION = """\
Fetch a policy and its card from a model repository of Hugging Face.

  headrace pull me/cartpole                    the folder cartpole, with policy.safetensors and README.md
  headrace verify cartpole/README.md           whether the policy does what its card says
  headrace eval hub:me/cartpole                eval, demo and `headrace up --policy` take the name itself, too
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("repository", metavar="OWNER/NAME", help="the repository")
    target.add_argument("folder", metavar="FOLDER", nargs="?", help="where to write (default: NAME)")


def run(parsed: argparse.Namespace) -> int:
    repository = parsed.repository.removeprefix(HUB)
    folder = Path(parsed.folder or repository.rpartition("/")[2])
    if there := [name for name in (POLICY, CARD) if (folder / name).exists()]:
        raise ConfigError(f"{folder / there[0]} is there already: name another folder")
    pulled(repository, folder)
    for name in (POLICY, CARD):
        if (folder / name).is_file():
            print(folder / name)
    return DONE
