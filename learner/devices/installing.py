"""How what is missing is installed: commands for this very interpreter, to be shown to people."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from learner.devices import builds

TREE = Path(__file__).resolve().parent.parent.parent
PACKAGES = {"zmq": "pyzmq", "cv2": "opencv-python-headless"}  # whose modules are called otherwise


def headrace(extra: str = "") -> str:
    """The command that installs an extra; without one, all that Headrace requires."""
    option, place = _source()
    quote = '"' if sys.platform == "win32" else "'"  # cmd.exe knows no other
    wanted = f"{place}[{extra}]" if extra else place
    return f"{_pip()}{option} {quote}{wanted}{quote}" if extra or " " in place else f"{_pip()}{option} {place}"


def torch(build: str = "") -> str:
    """The command that installs a build of torch, also over another one; without a name the build for this machine."""
    build = build or builds.choose(builds.look()).build
    if build == builds.MPS:
        return headrace("torch")
    return f"{_pip()} torch=={builds.TORCH}+{build} --extra-index-url {builds.INDEX}{build}"


def missing_package(error: str) -> str:
    """The advice where Python did not find a module that Headrace requires; empty where the text says something else."""
    found = re.search(r"No module named '(\w+)", error)
    name = PACKAGES.get(found[1], found[1].replace("_", "-")) if found else ""
    required = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in _requirements()}
    if name == "torch":
        return f"torch is not installed: {headrace('torch')}"
    return f"{name} is not installed: {headrace()}" if name in required else ""


def _requirements() -> list[str]:
    from importlib import metadata  # takes long

    try:
        return [line for line in metadata.requires("headrace") or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        return []


def _pip() -> str:
    """`pip install` of this interpreter; only in an active environment is it the one on the PATH."""
    if Path(shutil.which("pip") or "pip").parent == Path(sys.executable).parent:
        return "pip install"
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def _source() -> tuple[str, str]:
    """An option of pip and what it installs: the source tree that Headrace runs in or was installed from, otherwise its name."""
    if (TREE / "pyproject.toml").exists():
        return " -e", "." if Path.cwd() == TREE else str(TREE)
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        told = metadata.distribution("headrace").read_text("direct_url.json") or ""
    except metadata.PackageNotFoundError:
        told = ""
    folder = re.search(r'"url": ?"(file:[^"]+)"', told) if '"dir_info"' in told else None
    return "", url2pathname(urlsplit(folder[1]).path) if folder else "headrace"
