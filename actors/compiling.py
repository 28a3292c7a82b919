"""Compiles C files of the package on the user's machine."""

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


def compiler() -> list[str]:
    """The command of $CC, or of the first compiler there is. Raises OSError, in one line, where there is none."""
    try:
        if chosen := shlex.split(os.environ.get("CC", "")):
            return chosen
    except ValueError as error:
        raise OSError(f"the environment variable CC is no command: {error}") from error
    if found := next(filter(None, map(shutil.which, COMPILERS)), None):
        return [found]
    raise OSError("there is no C compiler: install gcc or clang")


def load(source: Path) -> ctypes.CDLL:
    """The shared library of a C file, which is compiled at its first use into the user's cache. Files there are executed, so the
    folder is refused if other accounts may write to it. Raises OSError, in one line."""
    if os.name != "posix":
        raise OSError("only Linux and macOS compile it")
    command = [*compiler(), *FLAGS]
    digest = hashlib.blake2b(repr((command, platform.platform())).encode() + source.read_bytes(), digest_size=8).hexdigest()
    path = cache_folder() / "compiled" / f"{source.stem}-{digest}.so"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.parent.stat()
    if status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
        raise OSError(f"{path.parent} may be written by others: remove it, or let HEADRACE_CACHE name another folder")
    if not path.is_file():
        with tempfile.TemporaryDirectory(prefix="compiling-", dir=path.parent) as folder:
            output = Path(folder, path.name)
            _compile(command, source, output)
            replace(output, path)  # at once, because other processes may compile it at the same time
    return ctypes.CDLL(str(path))


def _compile(command: list[str], source: Path, output: Path) -> None:
    """Raises OSError, in one line."""
    command = [*command, str(source), "-o", str(output)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.SubprocessError as error:
        raise OSError(f"{command[0]} failed: {error}") from error
    except FileNotFoundError as error:
        raise OSError(f"there is no compiler {command[0]}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit {done.returncode}"]
        raise OSError(f"{command[0]} refuses {source.name}: {lines[0]}")
