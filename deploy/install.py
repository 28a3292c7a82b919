"""Makes the environment that Headrace runs in: `python3 deploy/install.py`, or `make install`.

Standard library only, and no syntax newer than Python 3.8, so that an old `python3` can still report what is missing. uv installs
at the versions of constraints.txt: the one on the PATH, otherwise one that pip puts into the environment; pip installs what uv
cannot. A stamp records what the environment was made from: a second call does nothing, an interrupted one is repeated.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `python -I` does not add the script's folder

from learner.devices import builds  # noqa: E402

OLDEST, NEWEST = (3, 11), (3, 14)
NES, BULLET = {"mario", "retro"}, "robot"  # the extras with nes-py and with PyBullet
USUAL = "mario,retro,atari,box2d,mujoco,robot,video,window,picture,web,docs,dev"
# Variables that make pip or uv install elsewhere or other versions, or Python import other modules.
MISLEADING = "PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX UV_TARGET UV_PREFIX UV_OVERRIDE".split()
PACKAGES = "transport replay learner actors deploy headrace".split()
LIMITS = "constraints.txt"  # in the environment, where all commands run: several paths in one variable are separated by spaces
SETTINGS = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off", "UV_NO_PROGRESS": "1"}
SETTINGS.update({f"{tool}_{kind}": LIMITS for tool in ("PIP", "UV") for kind in ("CONSTRAINT", "BUILD_CONSTRAINT")})
# uv takes the first index that has a package, unless it is told to compare all of them, as pip does.
LIKE_PIP = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_COMPILE_BYTECODE": str(int("PIP_NO_COMPILE" not in os.environ))}
SOURCES = {"UV_DEFAULT_INDEX": "PIP_INDEX_URL", "UV_INDEX": "PIP_EXTRA_INDEX_URL", "UV_FIND_LINKS": "PIP_FIND_LINKS"}
NO_NETWORK = re.compile(r"(?i)dns error|name resolution|NewConnectionError|network is unreachable|connection refused|timed? ?out")
NO_COMPILER = (
    "Mario's emulator (nes-py) is built from source and needs g++ (Debian, Ubuntu: sudo apt install g++). "
    "Without Mario: make install EXTRAS=atari,box2d,mujoco,robot,video,window,picture,web,docs,dev"
)
NO_PYTHON = (
    "Headrace needs Python 3.11 to 3.14 with the modules venv and ensurepip, and finds none.\n"
    "On Debian and Ubuntu: sudo apt install python3.11 python3.11-venv; elsewhere: https://www.python.org/downloads/"
)
NO_PYBULLET = "There is no wheel of PyBullet for this Python; the robot has another backend: --env.backend kinematic"
NOT_ON_WINDOWS = "Windows has no PyBullet and no stable-retro, and nes-py from Python 3.13 on: docs/start/windows.md"


class Environment:
    """The virtual environment at `folder`, and the stamp that records what it contains: FOLDER DIGEST EXTRAS TORCH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stamp, self.log = folder, folder / "headrace-installed", folder / "install.log"
        self.python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def read_stamp(self) -> str:
        return self.stamp.read_text(encoding="utf-8").strip() if self.stamp.is_file() else ""

    def make(self, extras: list[str]) -> tuple[int, int]:
        """Makes the folder, or keeps a finished one that was made in this place, and gives the version of its Python."""
        stamp, interpreter = self.read_stamp(), str(self.python)
        kept = python_version(interpreter) if stamp.rsplit(" ", 3)[0] == str(self.folder) else None
        interpreter, version = (interpreter, kept) if kept else find_python()
        if NES & set(extras) and version < (3, 13) and os.name == "posix" and not shutil.which("g++"):
            sys.exit(NO_COMPILER)
        if "directml" in extras and version >= (3, 13):
            sys.exit("DirectML is for Python 3.11 and 3.12: begin with one of them, py -3.12 deploy\\install.py …")
        if not stamp and self.folder.exists() and any(self.folder.iterdir()):
            sys.exit(f"{self.folder} was not made by this installer: move it away, or name another folder with --venv")
        if not kept and self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stamp.write_text("unfinished", encoding="utf-8")
        self.log.write_text("", encoding="utf-8")
        if not kept and not self.run("virtual environment", [interpreter, "-I", "-m", "venv", str(self.folder)]):
            self.fail("The virtual environment could not be made.")
        return version

    def install(self, label: str, *arguments: str) -> bool:
        """Installs packages with uv, otherwise with pip. Returns whether one of them succeeded."""
        uv = shutil.which("uv") or shutil.which("uv", path=str(self.python.parent))
        if uv and self.run(label, [uv, "pip", "install", "--python", str(self.python), *arguments]):
            return True
        pip = [str(self.python), "-I", "-m", "pip", "install", *arguments]
        return "--torch-backend" not in arguments and self.run(f"{label}, with pip" if uv else label, pip)

    def compile(self) -> None:
        """Compiles Headrace's own modules: no installer does so for an editable package, and Python keeps the bytecode of a first
        run only where it may write beside them."""
        if "PIP_NO_COMPILE" not in os.environ:
            folders = [str(ROOT / name) for name in PACKAGES]
            self.run("bytecode", [str(self.python), "-I", "-m", "compileall", "-q", *folders])

    def run(self, label: str, command: list[str]) -> bool:
        """Runs a command, whose output goes to the log. Returns whether it succeeded."""
        started = time.monotonic()
        print(f"  {label} …", end=" ", flush=True)
        with open(self.log, "ab", buffering=0) as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            status = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ(), cwd=self.folder)
        print("did not work" if status else f"done in {time.monotonic() - started:.0f} s", flush=True)
        return status == 0

    def fail(self, what: str) -> None:
        """Ends with a message that shows how the log ends."""
        lines = [line[:400] for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        tail = [line for line in lines if re.search(r"(?i)\b(error|fatal|retrying|no space)\b", line)] or lines
        cause = " No network: a package index cannot be reached." if NO_NETWORK.search("".join(lines)) else ""
        sys.exit("\n  | ".join([f"Not installed: {what}{cause} The log, {self.log}, ends:", *tail[-8:]]))


def environ() -> dict[str, str]:
    """The user's environment, with pip's sources of packages for uv and without what would mislead either."""
    own = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    same = {name: own[pip].replace(" ", "," if "LINKS" in pip else " ") for name, pip in SOURCES.items() if pip in own}
    return {**LIKE_PIP, **same, **own, **SETTINGS}


def python_version(interpreter: str) -> tuple[int, int] | None:
    """The version of an interpreter that runs and can make environments, which on Debian takes another package."""
    probe = [interpreter, "-I", "-c", "import ensurepip, sys, venv; print(*sys.version_info[:2])"]
    try:
        major, minor = map(int, subprocess.run(probe, capture_output=True, text=True, timeout=30, check=True).stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return major, minor


def find_python() -> tuple[str, tuple[int, int]]:
    """Python 3.11 where there is one, except on Windows, where `py -3.13` has chosen; otherwise this one, or a newer one."""
    reference, *others = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], NEWEST[1] + 1)]
    for interpreter in [None if os.name == "nt" else reference, sys.executable, *others, shutil.which("python3")]:
        version = python_version(interpreter) if interpreter else None
        if interpreter and version and OLDEST <= version <= NEWEST:
            return interpreter, version
    return sys.exit(NO_PYTHON)


def install(environment: Environment, extras: list[str], build: str, torch: str, wanted: str) -> None:
    """Makes the environment and installs everything into it, or exits with the reason and the remedy."""
    started, choice = time.monotonic(), builds.choose(builds.look(), build)
    if choice.build == builds.ROCM and choice.note:
        sys.exit(choice.note)
    version = environment.make(extras)
    machine = "Python {}.{}, torch for {}".format(*version, "DirectML" if "directml" in extras else choice.build)
    print(f"Installing Headrace ({machine}), which takes minutes; progress in {environment.log}", flush=True)
    # DirectML installs the torch that it needs.
    line = "" if "directml" in extras or torch == builds.NEWEST else f"torch=={torch}\n"
    limits = re.sub(r"(?m)^torch==.*\n", line, (ROOT / LIMITS).read_text(encoding="utf-8"))
    (environment.folder / LIMITS).write_text(limits, encoding="utf-8")
    if not shutil.which("uv"):
        environment.install("uv", "uv")
    attempts = builds.sources(choice.build, torch) if "directml" not in extras else []
    if build == "auto" and torch != builds.TORCH:  # the table of builds is about that one; uv knows all
        attempts.insert(0, (f"torch {torch}, as uv chooses", [builds.requirement(torch), "--torch-backend", "auto"]))
    if attempts and not any(environment.install(label, *words) for label, words in attempts):
        environment.fail(f"torch for {choice.build} could not be installed; without a GPU: --torch cpu.")
    apart = BULLET in extras and os.name != "nt"  # there is no wheel for every Python, and the robot has another backend
    needed = ",".join(extra for extra in extras if extra != BULLET or not apart)
    if not environment.install(f"Headrace and {needed}", "--editable", f"{ROOT}[{needed}]" if needed else str(ROOT)):
        environment.fail("Headrace could not be installed.")
    if apart and not environment.install("PyBullet, for the robot", "--only-binary", "pybullet", "pybullet"):
        print(NO_PYBULLET)
    environment.compile()
    environment.stamp.write_text(wanted, encoding="utf-8")
    if os.name == "nt" and {*NES, BULLET} & set(extras):
        print(NOT_ON_WINDOWS)
    if choice.note and "directml" not in extras:
        print(f"No GPU will be used: {choice.note}")
    print(f"Installed in {time.monotonic() - started:.0f} s: {environment.python.with_name('headrace')}")


def main() -> None:
    """Installs unless it is done already. Exits with status 1 if something is missing, 2 for bad usage."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # read by hand: Python has tomllib only since 3.11
    known = re.findall(r"(?m)^([\w-]+) = \[", project.partition("[project.optional-dependencies]")[2].partition("\n[")[0])
    parser = argparse.ArgumentParser(description="Make the environment that Headrace runs in.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", metavar="FOLDER", help="where to make it (default: .venv)")
    parser.add_argument("--extras", help=f"of: {', '.join(known)} (default: as before, or {USUAL})")
    parser.add_argument("--torch", choices=builds.NAMES, help="the build (default: as before, or by the GPU and its driver)")
    parser.add_argument("--torch-version", help=f"or {builds.NEWEST} (default: as before, or {builds.TORCH})")
    options = parser.parse_args()
    environment = Environment(Path(os.path.abspath(options.venv)))
    names, before = environment.read_stamp().rsplit(" ", 3)[2:] or [USUAL, "auto"]
    extras = sorted({name.strip() for name in (names if options.extras is None else options.extras).split(",") if name.strip()})
    for name in extras:
        if name not in known:
            parser.error(f"there is no extra {name!r}; there are: {', '.join(known)}")
    build, _, version = before.partition("-")
    build, version = options.torch or build, options.torch_version or version or builds.TORCH
    sources = [ROOT / "pyproject.toml", ROOT / LIMITS, Path(__file__), Path(builds.__file__)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    torch = build if version == builds.TORCH else f"{build}-{version}"
    wanted = f"{environment.folder} {digest.hexdigest()} {','.join(extras)} {torch}"
    with open(ROOT / "pyproject.toml", "rb") as lock:  # one installation at a time; Windows has no such locks
        if os.name == "posix":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        if environment.read_stamp() != wanted or not environment.python.exists():
            install(environment, extras, build, version, wanted)


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyboardInterrupt) as error:
        sys.exit(f"Not installed: {error or 'interrupted; the next call starts from the beginning'}")
