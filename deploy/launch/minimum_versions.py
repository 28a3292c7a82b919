"""The oldest versions of libraries that read bytes from outside. Older ones have known vulnerabilities."""

from __future__ import annotations

import re

import msgpack

from learner.devices import known
from transport.sockets.authenticator import library

MINIMUM = {  # package: the oldest version that is accepted, and why
    "msgpack": ((1, 2, 1), "input from outside can crash older ones (GHSA-6v7p-g79w-8964)"),
    "torch": ((2, 4), "older ones are not supported"),
}
MINIMUM_LIBZMQ = (4, 3, 5)
SAFE_TORCH_LOAD = (2, 10)  # the torch in which CVE-2025-32434 (2.6) and CVE-2026-24747 of torch.load are fixed


def too_old() -> list[str]:
    """A line with the remedy for each installed library that is too old. Missing packages are not reported here."""
    found = []
    for package, (minimum, why) in MINIMUM.items():
        version = installed(package)
        if version and number(version) < minimum:
            found.append(f"{package} {version} is too old: {why}; pip install '{package}>={_text(minimum)}'")
    libzmq, encrypts = library()
    if libzmq < MINIMUM_LIBZMQ:
        found.append(
            f"libzmq {_text(libzmq)} is too old: {_text(MINIMUM_LIBZMQ)} is the oldest that is safe; pip install --upgrade pyzmq"
        )
    if not encrypts:
        found.append("libzmq was built without CURVE; pip install pyzmq, whose wheels include CURVE")
    return found


def torch_load() -> str:
    """A line about torch.load of the installed torch."""
    version = installed("torch")
    state = "fixed in this one" if version and number(version) >= SAFE_TORCH_LOAD else "this one has the flaw"
    return f"torch.load before {_text(SAFE_TORCH_LOAD)} can run code from a file ({state}); Headrace never calls it"


def installed(package: str) -> str | None:
    """The version of a package of MINIMUM, or None. Each says it itself: importlib.metadata takes a twentieth of a launch."""
    if package == "msgpack":
        return _text(msgpack.version)
    torch = known.installed()
    return torch.version if torch else None


def number(version: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13, 0)."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading.group().split("."))) if leading else ()


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
