"""Policies by name: a file, or one of a model repository."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.errors import ConfigError
from deploy.views.sharing import hub
from deploy.views.sharing.card import CARD, POLICY

HUB = "hub:"


def policy_file(name: str) -> Path | None:
    """The file of `hub:OWNER/NAME`, which is downloaded, or of a path; None where there is none, as for the name of a run.
    Raises ConfigError."""
    if name.startswith(HUB):
        repository = name.removeprefix(HUB)
        return pulled(repository, cache() / repository.replace("/", "--")) / POLICY
    return path if (path := Path(name)).is_file() else None


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


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "hub"
