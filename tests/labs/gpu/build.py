"""Compiles device.cpp against this environment's torch, once per version of either."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
CACHE = Path(__file__).resolve().parents[3] / "build" / "labs"


def obstacle() -> str:
    """Why the stand-in cannot be made here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "the stand-in for a GPU is made for Linux"
    if shutil.which("g++") is None:
        return "the stand-in for a GPU is compiled by g++, which is not installed: sudo apt install g++"
    import torch

    if torch.version.cuda or torch.version.hip:
        return "this torch was built for real GPUs, and takes no other: `headrace bench gpu --quick` checks one"
    return ""


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def library() -> Path:
    """The compiled device; half a minute of one core where it is not in the cache."""
    version = importlib.metadata.version("torch")
    name = hashlib.sha256(SOURCE.read_bytes() + version.encode() + str(torch_folder()).encode()).hexdigest()[:16]
    path = CACHE / f"gpu-{name}.so"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = Path(folder) / path.name
            subprocess.run(_command(made), check=True)
            os.replace(made, path)
    return path


def _command(made: Path) -> list[str]:
    torch = torch_folder()
    include = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
    link = [f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", f"-Wl,-rpath,{torch / 'lib'}"]
    return ["g++", "-O1", "-shared", "-fPIC", "-std=c++20", *include, str(SOURCE), "-o", str(made), *link]
