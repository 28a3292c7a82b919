"""Compiles C on the user's machine, where there is a compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from transport.system import cache_folder

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O2", "-shared", "-fPIC")
SECONDS = 120.0


def compiler() -> list[str] | None:
    """The command of $CC, or of the first compiler there is; None where there is none."""
    if chosen := shlex.split(os.environ.get("CC", "")):
        return chosen
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    return None if found is None else [found]


def shared_library(source: Path) -> Path:
    """The library made of a C file. It is compiled once, into the user's cache. Raises OSError, in one line, where that fails."""
    command = [*(compiler() or ["cc"]), *FLAGS]
    digest = hashlib.blake2b(repr((command, platform.platform())).encode() + source.read_bytes(), digest_size=8).hexdigest()
    path = cache_folder() / f"{source.stem}-{digest}.so"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=path.parent) as folder:
        made = Path(folder, path.name)
        try:
            done = subprocess.run(
                [*command, str(source), "-o", str(made)], capture_output=True, text=True, errors="replace", timeout=SECONDS
            )
        except subprocess.SubprocessError as error:
            raise OSError(f"{command[0]} failed: {error}") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit {done.returncode}"]
            raise OSError(f"{command[0]} refuses {source.name}: {lines[0]}")
        os.replace(made, path)  # noqa: PTH105  # whole, whoever else compiles it
    return path
