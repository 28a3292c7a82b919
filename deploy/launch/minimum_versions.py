"""The oldest versions of what reads bytes from outside: below them lie known holes."""

from __future__ import annotations

import importlib.metadata
import re

from transport.sockets.authenticator import library

FLOORS = {  # package -> the oldest that will do, and why
    "msgpack": ((1, 2, 1), "older ones can be made to crash by what they read (GHSA-6v7p-g79w-8964)"),
    "torch": ((2, 4), "older ones are not supported"),
}
LIBZMQ = (4, 3, 5)
LOADING = (2, 10)  # of torch: CVE-2025-32434 (2.6) and CVE-2026-24747 are fixed in its torch.load


def shortfalls() -> list[str]:
    """What is installed and too old, a line each with the fix; what is missing is not told here."""
    found = []
    for package, (floor, why) in FLOORS.items():
        version = installed(package)
        if version and number(version) < floor:
            found.append(f"{package} {version} is too old: {why}; pip install '{package}>={_text(floor)}'")
    libzmq, encrypts = library()
    if libzmq < LIBZMQ:
        found.append(
            f"libzmq {_text(libzmq)} is too old: {_text(LIBZMQ)} is the oldest that is safe; pip install --upgrade pyzmq"
        )
    if not encrypts:
        found.append("libzmq was built without CURVE; pip install pyzmq, whose wheels bring one that has it")
    return found


def torch_load() -> str:
    """What there is to say about the torch that is installed."""
    version = installed("torch")
    state = "fixed in this one" if version and number(version) >= LOADING else "this one has them"
    return f"torch.load can be made to run code before {_text(LOADING)} ({state}); Headrace never calls it"


def installed(package: str) -> str | None:
    """Its version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def number(version: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13, 0)."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading.group().split("."))) if leading else ()


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
