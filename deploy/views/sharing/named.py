"""Policies by name: a file, one of a model repository, or one of the zoo, which comes with Headrace."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.errors import ConfigError
from deploy.views.sharing import hub
from deploy.views.sharing.card import CARD, POLICY
from transport.names import nearest

HUB, ZOO = "hub:", "zoo:"
FOLDER, SUFFIX = Path(__file__).parent / "zoo", ".safetensors"  # made by benchmarks/learning/zoo.py


def policy_file(name: str) -> Path | None:
    """The file of `hub:OWNER/NAME`, which is downloaded, of `zoo:NAME`, or of a path; None where there is none, as for the name
    of a run. Raises ConfigError."""
    if found := _with_card(name):
        return found[0]
    return path if (path := Path(name)).is_file() else None


def card_file(name: str) -> Path:
    """The card of `hub:OWNER/NAME` or `zoo:NAME`, or the file of a path. Raises ConfigError."""
    found = _with_card(name)
    return found[1] if found else Path(name)


def zoo() -> list[str]:
    """The names of the policies that come with Headrace."""
    return sorted(ZOO + path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def _with_card(name: str) -> tuple[Path, Path] | None:
    """The files of a policy in a model repository or in the zoo, and of its card; None for other names. Raises ConfigError."""
    if name.startswith(HUB):
        repository = name.removeprefix(HUB)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "hub"
        folder = pulled(repository, cache / repository.replace("/", "--"))
        return folder / POLICY, folder / CARD
    if name.startswith(ZOO):
        if name not in zoo():
            raise ConfigError(f"the zoo has no policy {name}; {nearest(name, zoo())}")
        file = FOLDER / (name.removeprefix(ZOO) + SUFFIX)
        return file, file.with_suffix(".md")
    return None


def pulled(repository: str, folder: Path) -> Path:
    """The folder, with the policy of a repository and its card. Raises ConfigError."""
    if not hub.REPOSITORY.fullmatch(repository):
        raise ConfigError(f"{repository!r} is not a repository: write OWNER/NAME")
    try:
        hub.pull(repository, folder, (POLICY, CARD))
    except hub.PushError as error:
        raise ConfigError(str(error)) from error
    if not (folder / POLICY).is_file():
        raise ConfigError(f"{repository} has no {POLICY}: it holds no policy of Headrace")
    return folder
