"""The token of this account: programs that connect to its open ports must know it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from transport.files.documents import Damaged
from transport.files.writing import patiently, replace

VARIABLE = "HEADRACE_TOKEN"  # where a client finds it first
LEAST, MOST = 16, 256  # characters


def token_file() -> Path:
    """Where the token is kept: headrace/token in XDG_CONFIG_HOME, or in ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "headrace" / "token"


def token_place() -> str:
    """Where own_token finds it."""
    return VARIABLE if os.environ.get(VARIABLE) else str(token_file())


def own_token(path: Path | None = None) -> str:
    """The token in HEADRACE_TOKEN, otherwise that of the file, which is made if there is none, for this account alone. Raises
    Damaged for a token that is too short or has other characters than visible ASCII, OSError."""
    if path is None and (given := os.environ.get(VARIABLE)):
        return _checked(given, VARIABLE)
    path = path or token_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".token.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        if not path.exists():
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(24) + "\n")
            try:
                os.link(temporary, path)  # whole, and never over the one that another process makes at the same time
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

    def read() -> bytes:
        with open(path, "rb") as file:
            return file.read(MOST + 2)

    text = patiently(read)  # another process may be deleting the temporary name of this file
    return _checked(text.decode("ascii", "replace").strip(), str(path))


def same(given: object, token: str) -> bool:
    """Compares in a time that says nothing about the token."""
    return isinstance(given, str) and secrets.compare_digest(given.encode(), token.encode())


def _checked(token: str, where: str) -> str:
    if not (LEAST <= len(token) <= MOST and token.isascii() and token.isprintable() and " " not in token):
        raise Damaged(f"{where}: a token has {LEAST} to {MOST} visible ASCII characters; delete it, and one is made")
    return token
