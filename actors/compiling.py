"""Compiles C on the user's machine, where there is a compiler."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from transport.files.writing import replace
from transport.system import cache_folder

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O2", "-shared", "-fPIC")
SECONDS = 120.0


def compiler() -> list[str] | None:
    """The command of $CC, or of the first compiler there is; None where there is none. Raises OSError for a $CC that is none."""
    try:
        if chosen := shlex.split(os.environ.get("CC", "")):
            return chosen
    except ValueError as error:
        raise OSError(f"the environment variable CC is no command: {error}") from error
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    return None if found is None else [found]


def shared_library(source: Path) -> Path:
    """The library made of a C file. It is compiled once, into a folder of the user's cache that nobody else may write to, since
    it is code. Raises OSError, in one line, where that fails."""
    if os.name != "posix":
        raise OSError("it is compiled on Linux and macOS alone")
    chosen = compiler()
    if chosen is None:
        raise OSError("there is no C compiler: install gcc or clang")
    command = [*chosen, *FLAGS]
    digest = hashlib.blake2b(repr((command, platform.platform())).encode() + source.read_bytes(), digest_size=8).hexdigest()
    path = cache_folder() / "compiled" / f"{source.stem}-{digest}.so"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.parent.stat()
    if found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022:
        raise OSError(f"{path.parent} may be written by others: remove it, or let HEADRACE_CACHE name another folder")
    if path.is_file():
        return path
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=path.parent) as folder:
        made = Path(folder, path.name)
        try:
            done = subprocess.run(
                [*command, str(source), "-o", str(made)], capture_output=True, text=True, errors="replace", timeout=SECONDS
            )
        except subprocess.SubprocessError as error:
            raise OSError(f"{command[0]} failed: {error}") from error
        except FileNotFoundError as error:
            raise OSError(f"there is no compiler {command[0]}") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit {done.returncode}"]
            raise OSError(f"{command[0]} refuses {source.name}: {lines[0]}")
        replace(made, path)  # whole, whoever else compiles it
    return path


def can_be_loaded(source: Path) -> bool:
    """Whether there is the library of a C file, or it can be made now, and this system allows its code to run."""
    try:
        ctypes.CDLL(str(shared_library(source)))
    except OSError:
        return False
    return True
