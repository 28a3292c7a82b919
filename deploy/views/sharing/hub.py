"""Files to and from a model repository of Hugging Face. The only file that imports huggingface_hub.

The library reads the token from HF_TOKEN or from its own login. The token appears in no argument, log or message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from learner.devices import installing

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
NO_TOKEN = "there is no token: set HF_TOKEN, or log in with `hf auth login`; the token must be allowed to write"
REASONS = {
    401: "the token is not valid: set another HF_TOKEN, or log in again with `hf auth login`",
    403: "the token is not allowed to write there",
    404: "there is no such repository, or the token is not allowed to see it",
}


READ_REASONS = REASONS | {
    401: "there is no such repository, or it is private: set HF_TOKEN, or log in with `hf auth login`",
    403: "the token is not allowed to read it",
}


class PushError(Exception):
    """Nothing was published or fetched, or not all of it; one line."""


class NotPossible(PushError):
    """Something is missing here: the library, a token, or --public."""


def push(repository: str, files: Mapping[str, Path], message: str, public: bool) -> str:
    """Creates the repository if there is none, and adds the files under their names as one commit. Returns its address.

    A new repository is private unless `public`. Files are sent to one that is public only if `public`. Raises PushError.
    """
    token = own_token()
    import huggingface_hub

    api = huggingface_hub.HfApi(token=token, library_name="headrace", library_version=version("headrace"))
    try:
        return _push(api, repository, files, message, public)
    except PushError:
        raise
    except Exception as error:  # the library and its HTTP client raise many types
        # Without the cause, whose text and frames may hold the token.
        raise PushError(f"{repository}: {said(error, token)}") from None


def pull(repository: str, folder: Path, names: Sequence[str]) -> None:
    """Fetches those of the named files that the repository has, as far as they differ from what is in the folder. A token is only
    needed where the repository is private. Raises PushError."""
    huggingface_hub = _library("pulling")
    from huggingface_hub.errors import RemoteEntryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # of files that are small
    token = huggingface_hub.get_token()
    try:
        for name in names:
            with suppress(RemoteEntryNotFoundError):
                huggingface_hub.hf_hub_download(repository, name, local_dir=folder, token=token or False)
    except Exception as error:  # as in push()
        raise PushError(f"{repository}: {said(error, token or NO_TOKEN, READ_REASONS)}") from None


def own_token() -> str:
    """The user's token. Raises NotPossible without the library or a token."""
    token = _library("headrace push").get_token()
    if not token:
        raise NotPossible(NO_TOKEN)
    return str(token)


def _library(what: str) -> Any:
    """huggingface_hub. Raises NotPossible."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub
    except ImportError as error:
        raise NotPossible(f"{what} needs huggingface_hub, which is not installed: {installing.headrace('hub')}") from error
    return huggingface_hub


def _push(api: Any, repository: str, files: Mapping[str, Path], message: str, public: bool) -> str:
    from huggingface_hub import CommitOperationAdd

    address = api.create_repo(repository, private=not public, exist_ok=True)
    hidden = bool(api.model_info(repository).private)
    if not hidden and not public:
        raise NotPossible(f"{repository} is public: add --public if everyone may have the policy, or name another repository")
    api.create_commit(
        repository,
        [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in files.items()],
        commit_message=message,
    )
    if hidden and public:
        api.update_repo_settings(repository, private=False)
    return str(address)


def said(error: Exception, token: str, reasons: Mapping[int, str] = REASONS) -> str:
    """An error of the library in one line, without the token."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in reasons:
        return reasons[status]
    if status is not None:
        text = f"the server answered {status}: {getattr(error, 'server_message', None) or error}"
    else:
        server = os.environ.get("HF_ENDPOINT", "huggingface.co")
        text = f"{server} cannot be reached, or the transfer failed: {error}"
    return " ".join(text.split()).replace(token, "(token)")[:300]
