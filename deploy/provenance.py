"""Where a result comes from, machine, source and versions, and how it is published: without names of users."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from deploy.children import ROOT
from transport.system import core_count, processor, total_memory

PACKAGES = ("headrace", "torch", "numpy", "gymnasium")
SPEED_TRIES = 7
SPEED_TURNS = 500_000  # about 20 ms


def machine() -> dict[str, Any]:
    """The machine that runs are measured on, without names of hosts or users."""
    return {
        "cpu": processor(),
        "cores": core_count(),
        "memory_gb": round(total_memory() / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def core_speed() -> float:
    """Millions of turns of an empty Python loop that one core makes in a second, the fastest of several tries. On a machine that
    is shared with others it changes from minute to minute."""
    best = math.inf
    for _ in range(SPEED_TRIES):
        began = time.perf_counter()
        for _ in range(SPEED_TURNS):
            pass
        best = min(best, time.perf_counter() - began)
    return round(SPEED_TURNS / best / 1e6, 1)


def commit(folder: Path = ROOT) -> str | None:
    """The commit of the source tree, "+" where files of it were changed; None for an installed package, or without git."""
    if not (folder / ".git").exists():
        return None
    try:
        said = [
            subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return said[0] + ("+" if said[1] else "")


def short(commit: str) -> str:
    """A commit as people read it; the "+" of changed files stays."""
    return commit[:12] + ("+" if commit.endswith("+") else "")


def versions() -> dict[str, str]:
    """The versions of this interpreter and its libraries."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def strict_json(value: Any, indent: int | None = None) -> str:
    """JSON without NaN and infinities, which become null; folders of this user become ~ and ."""
    return json.dumps(_strict(value), allow_nan=False, indent=indent) + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and Path(value).is_absolute():
        for folder, short in ((os.getcwd(), "."), (os.path.expanduser("~"), "~")):
            if Path(value).is_relative_to(folder):
                return str(Path(short) / Path(value).relative_to(folder))
    return value
