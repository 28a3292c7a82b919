"""Makes the environment that Headrace runs in: `python3 deploy/install.py`, or `make install`.

Standard library only, and no syntax newer than Python 3.8, so that an old `python3` can still report what is missing. It
selects a Python and the torch build for this machine, and installs Headrace in place at the versions of constraints.txt. uv
installs the packages, in half of pip's time: the one on the PATH, else one that pip puts into the environment. pip installs what
uv cannot. A stamp in the environment records what it was made from and with which options: a second call without other options
does nothing, an interrupted one is repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `python -I` has no place of the script's on it

from learner.devices import builds  # noqa: E402

CONSTRAINTS = ROOT / "constraints.txt"
OLDEST, REFERENCE, NEWEST = (3, 11), (3, 11), (3, 14)
UNFINISHED = "unfinished"
USUAL = "mario,retro,atari,box2d,mujoco,robot,video,window,picture,web,docs,dev"
PIP_ONLY = {"--retries", "--timeout"}  # options of pip, each with a value, that uv does not have
# Where pip looks for packages: its variable, uv's, and what separates several values in uv's.
SOURCES = [
    ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", " "),
    ("PIP_EXTRA_INDEX_URL", "UV_INDEX", " "),
    ("PIP_FIND_LINKS", "UV_FIND_LINKS", ","),
]
PROBE = """
import json, sys
try:
    from ensurepip import version
    from venv import EnvBuilder as complete
except ImportError:  # Debian has them in a separate package
    complete = None
print(json.dumps([sys.version_info[:2], sys.executable, bool(complete)]))
"""
NO_COMPILER = """\
No C++ compiler: the Super Mario Bros. emulator (nes-py) is built from source and needs g++.
On Debian and Ubuntu: sudo apt install g++
Or go without Mario: make install EXTRAS=atari,box2d,mujoco,robot,video,window,picture,web,docs,dev"""
NO_PYBULLET = "There is no wheel of PyBullet for this Python, so the robot has its other backend: --env.backend kinematic."
NOT_ON_WINDOWS = (
    "Of PyBullet and stable-retro there is no wheel for Windows, of nes-py only for Python 3.13 and later: docs/start/windows.md"
)


class InstallError(Exception):
    """What prevents the installation, and the remedy."""


class Environment:
    """The virtual environment at `folder`, and the stamp that records what it contains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.stamp = folder / "headrace-installed"
        self.log = folder / "install.log"

    def holds(self, wanted: str) -> bool:
        """Whether a finished installation of `wanted` is here."""
        return self.read_stamp() == wanted and self.python.exists()

    def read_stamp(self) -> str:
        """The fingerprint of what is installed, UNFINISHED, or nothing."""
        try:
            return self.stamp.read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def write_stamp(self, text: str) -> None:
        """Replaces the stamp in one step."""
        fresh = self.stamp.with_suffix(".new")
        fresh.write_text(text + "\n", encoding="utf-8")
        os.replace(fresh, self.stamp)

    def can_be_updated(self, wanted: str) -> bool:
        """Whether a finished installation is here that was made in this folder: the scripts of a moved one do not work."""
        return self.python.exists() and self.read_stamp().rsplit(" ", 3)[0] == wanted.rsplit(" ", 3)[0]

    def options(self) -> list[str]:
        """The extras and the torch of the installation that is here; nothing where there is none."""
        return self.read_stamp().rsplit(" ", 3)[2:]

    def prepare(self, keep: bool) -> None:
        """Empties the folder unless its content is to be kept, and marks it unfinished."""
        if not self.read_stamp() and self.folder.exists() and any(self.folder.iterdir()):
            raise InstallError(
                f"{self.folder} exists and was not made by this installer.\n"
                "Move it away, or choose another folder: python3 deploy/install.py --venv FOLDER"
            )
        if not keep and self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_stamp(UNFINISHED)
        self.log.write_text("", encoding="utf-8")

    def run(self, label: str, command: list[str]) -> bool:
        """Runs a command. Its output goes to the log, its progress to the terminal. Returns whether it succeeded."""
        with open(self.log, "ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=install_environ(), cwd=ROOT)
            try:
                return wait_showing(label, process)
            finally:
                process.wait()  # after Ctrl-C, which the command has received as well

    def install(self, uv: str, label: str, *arguments: str) -> bool:
        """Installs packages, with pip where `uv` is empty. Returns whether it succeeded."""
        return self.run(label, install_command(uv, self.python, arguments))

    def own_uv(self) -> str:
        """Installs uv into the environment. Returns its path, or nothing where it cannot be installed."""
        self.install("", "uv", f"uv=={pinned('uv')}")
        return shutil.which("uv", path=str(self.python.parent)) or ""

    def failure(self, what: str) -> InstallError:
        """An error that shows how the log ends."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        tail = [line for line in lines if re.search(r"(?i)\b(error|fatal|retrying|no space)\b", line)] or lines
        shown = "\n".join(f"  | {line[:400]}" for line in tail[-8:])
        return InstallError(f"{what} The log ends:\n{shown}\nAll of it: {self.log}")


def wait_showing(label: str, process: subprocess.Popen[bytes]) -> bool:
    """Waits and shows the seconds: on one line of a terminal, or on a few lines of a file. Returns whether it succeeded."""
    before, end, pause_seconds = ("\r", "", 0.5) if sys.stdout.isatty() else ("", "\n", 20.0)
    started = time.monotonic()
    while True:
        try:
            succeeded = process.wait(timeout=pause_seconds) == 0
        except subprocess.TimeoutExpired:
            print(f"{before}  {label} … {time.monotonic() - started:.0f} s", end=end, flush=True)
            continue
        outcome = f"done in {time.monotonic() - started:.0f} s" if succeeded else "did not work"
        print(f"{before}  {label} … {outcome}", flush=True)
        return succeeded


def install_command(uv: str, python: Path, arguments: Sequence[str]) -> list[str]:
    """`pip install` with these arguments, or the same command of uv, the program at `uv`.

    uv repeats and limits its requests by itself. Among several indices it takes the first that has a package, unless it is told
    to look for the best version in all of them, as pip does.
    """
    if not uv:
        return [str(python), "-I", "-m", "pip", "install", *arguments]
    words, kept = iter(arguments), []
    for word in words:
        if word in PIP_ONLY:
            next(words)
        else:
            kept.append(word)
    return [uv, "pip", "install", "--python", str(python), "--index-strategy", "unsafe-best-match", *kept]


def install_environ() -> dict[str, str]:
    """The user's environment without the variables that make pip or uv install elsewhere or import other modules. uv gets the
    package sources of pip's variables, and compiles bytecode unless PIP_NO_COMPILE is set."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_CONSTRAINT"}
    dropped |= {"UV_TARGET", "UV_PREFIX", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_OVERRIDE", "UV_SYSTEM_PYTHON", "UV_PYTHON"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    for name, same, separator in SOURCES:
        if name in kept:
            kept.setdefault(same, separator.join(kept[name].split()))
    if "PIP_NO_COMPILE" not in kept:
        kept.setdefault("UV_COMPILE_BYTECODE", "1")
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off", "UV_NO_PROGRESS": "1"}


def find_python() -> tuple[tuple[int, int], str, bool]:
    """The interpreter to use: Python 3.11 where there is one, except on Windows, where `py -3.13` has chosen; else this one, else
    another that is new enough."""
    others = [f"python3.{minor}" for minor in range(OLDEST[1] + 1, NEWEST[1] + 1)]
    rest = [found for name in [*others, "python3"] for found in on_path(name)]
    first = [] if os.name == "nt" else on_path("python{}.{}".format(*REFERENCE))
    candidates = [*first, sys.executable, *rest]
    bare = None
    for candidate in dict.fromkeys(candidates):
        found = probe(candidate)
        if found and OLDEST <= found[0] <= NEWEST:
            if found[2]:
                return found
            bare = bare or found
    if bare:
        name = "python{}.{}".format(*bare[0])
        raise InstallError(
            f"{bare[1]} lacks the modules venv and ensurepip.\nOn Debian and Ubuntu: sudo apt install {name}-venv\n"
            f"On other systems: install the package of {name} that holds `ensurepip`."
        )
    raise InstallError(
        "Headrace needs Python {}.{} to {}.{}; here is only {}.{}.\n".format(*OLDEST, *NEWEST, *sys.version_info[:2])
        + "On Debian and Ubuntu: sudo apt install python3.11 python3.11-venv\nOn other systems: https://www.python.org/downloads/"
    )


def on_path(name: str) -> list[str]:
    """Every program of that name on PATH: the first may be a version manager's stub without a Python behind it."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return [found for found in (shutil.which(name, path=folder) for folder in folders if folder) if found]


def probe(interpreter: str | Path) -> tuple[tuple[int, int], str, bool] | None:
    """(version, executable, whether it can make environments) of an interpreter. None where it does not run."""
    try:
        answer = subprocess.run([interpreter, "-I", "-c", PROBE], capture_output=True, text=True, timeout=30, check=True)
        (major, minor), executable, complete = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return (major, minor), executable, complete


def lacks_compiler(extras: list[str], version: tuple[int, int]) -> bool:
    """Mario's emulator is built from source before Python 3.13; its build calls g++ by name."""
    return bool(extras_with("nes-py", extras)) and version < (3, 13) and os.name == "posix" and not shutil.which("g++")


def choose_python(environment: Environment, extras: list[str], wanted: str) -> tuple[str, tuple[int, int], bool]:
    """The interpreter to use, its version, and whether it is the environment's. Raises InstallError with all that is missing."""
    missing = []
    kept = probe(environment.python) if environment.can_be_updated(wanted) else None
    version, interpreter = REFERENCE, ""
    try:
        version, interpreter, _ = kept or find_python()
    except InstallError as error:
        missing.append(str(error))
    if lacks_compiler(extras, version):
        missing.append(NO_COMPILER)
    if missing:
        raise InstallError("\n\n".join(missing))
    return interpreter, version, kept is not None


def pinned(name: str) -> str:
    """The version of a package in constraints.txt."""
    return re.findall(rf"(?m)^{name}==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"))[0]


def write_constraints(folder: Path, extras: list[str], torch: str) -> Path:
    """Writes the constraints of the installation, with this version of torch. DirectML installs the torch that it needs."""
    text = CONSTRAINTS.read_text(encoding="utf-8")
    line = "" if "directml" in extras or torch == builds.NEWEST else f"torch=={torch}\n"
    path = folder / "constraints.txt"
    path.write_text(re.sub(r"(?m)^torch==.*\n", line, text), encoding="utf-8")
    return path


def install(environment: Environment, extras: list[str], build: str, torch: str, wanted: str) -> None:
    """Makes the environment. Raises InstallError with the reason and the remedy."""
    started = time.monotonic()
    interpreter, version, keep = choose_python(environment, extras, wanted)
    choice = builds.choose(builds.look(), build)
    if choice.build == builds.ROCM and choice.note:
        raise InstallError(choice.note)
    if "directml" in extras and version >= (3, 13):
        raise InstallError("DirectML is for Python 3.11 and 3.12: begin with one of them, py -3.12 deploy\\install.py …")
    environment.prepare(keep)
    machine = "Python {}.{}, torch for {}".format(*version, "DirectML" if "directml" in extras else choice.build)
    # Of all that `make install` brings, on a fast network. For the CPU it was measured, for a GPU it follows from the size.
    usually = "1 to 4 minutes" if choice.build in (builds.CPU, builds.MPS) else "5 minutes and more, for several GB"
    print(f"Installing Headrace into {shown(environment.folder)} ({machine}): usually {usually}", flush=True)
    own_choice = build == "auto" and torch != builds.TORCH  # the table is about another torch: uv knows what each is built for
    if not keep and not environment.run("virtual environment", [interpreter, "-I", "-m", "venv", str(environment.folder)]):
        raise environment.failure("The virtual environment could not be made.")
    uv = shutil.which("uv") or environment.own_uv()
    try:
        install_packages(environment, uv, extras, choice.build, torch, own_choice)
    except InstallError:
        if not uv:
            raise
        print("uv could not install all; trying pip", flush=True)
        install_packages(environment, "", extras, choice.build, torch)
    environment.write_stamp(wanted)
    if os.name == "nt" and extras_with("nes-py", extras) + extras_with("pybullet", extras):
        print(NOT_ON_WINDOWS, flush=True)
    if choice.note and "directml" not in extras:
        print(f"No GPU will be used: {choice.note}", flush=True)
    print(f"Installed in {time.monotonic() - started:.0f} s: {shown(environment.python.with_name('headrace'))}", flush=True)


def install_packages(
    environment: Environment, uv: str, extras: list[str], build: str, torch: str, own_choice: bool = False
) -> None:
    """Installs torch, Headrace and the extras, with pip where `uv` is empty. Where `own_choice`, uv chooses torch's build. Raises
    InstallError."""
    limits = write_constraints(environment.folder, extras, torch)
    under = ["--constraint", str(limits)]
    tool = "uv" if uv else "pip"
    if not uv and not environment.install(uv, "pip", f"pip=={pinned('pip')}"):
        raise environment.failure("pip could not be updated.")
    if "directml" not in extras:
        (label, first), *others = builds.sources(build, torch)
        attempts = [(uv, label, first), *((uv, *other) for other in others)]
        if uv:  # pip also has configuration files, with sources that uv does not know
            attempts.insert(1, ("", f"{label}, with pip", first))
        if uv and own_choice:
            attempts.insert(0, (uv, f"torch {torch}, as uv chooses", [builds.requirement(torch), "--torch-backend", "auto"]))
        if not any(environment.install(program, label, *arguments, *under) for program, label, arguments in attempts):
            raise environment.failure(f"{tool} could not install torch for {build}; without a GPU: --torch cpu.")
    # There is no wheel for every Python, and the robot has another simulator.
    apart = [] if os.name == "nt" else extras_with("pybullet", extras)
    needed = [extra for extra in extras if extra not in apart]
    label = "Headrace, its libraries, and: " + ", ".join(needed) if needed else "Headrace and its libraries"
    project = f"{ROOT}[{','.join(needed)}]" if needed else str(ROOT)
    if not environment.install(uv, label, "--editable", project, *under, "--build-constraint", str(limits)):
        raise environment.failure(f"{tool} could not install Headrace.")
    bullet = ["--only-binary", "pybullet", "pybullet"]
    if apart and not environment.install(uv, "PyBullet, for the robot", *bullet, *under):
        print(NO_PYBULLET, flush=True)


def shown(path: Path) -> str:
    """A path as the user would type it here."""
    return str(path.relative_to(Path.cwd()) if Path.cwd() in path.parents else path)


def fingerprint(folder: Path, extras: list[str], torch: str) -> str:
    """What an installation is made from: its folder, a digest of its sources, its extras and its torch."""
    digest = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__), Path(builds.__file__)):
        digest.update(path.read_bytes())
    return f"{folder} {digest.hexdigest()} {','.join(extras)} {torch}"


def known_extras() -> dict[str, list[str]]:
    """The packages of each extra under [project.optional-dependencies], and headrace[…] for extras that it contains; by hand,
    since Python has tomllib only since 3.11."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    names, lists = re.findall(r"(?m)^([\w-]+) = \[", section), re.split(r"(?m)^[\w-]+ = \[", section)[1:]
    return {name: re.findall(r'"([\w.-]+(?:\[[\w,-]+\])?)', lists[index]) for index, name in enumerate(names)}


def extras_with(package: str, extras: list[str]) -> list[str]:
    """Those of `extras` that contain a package, or an extra that does."""
    known = known_extras()

    def contains(extra: str) -> bool:
        inner = [name for found in known.get(extra, ()) for name in re.findall(r"^headrace\[(.+)\]$", found)]
        return package in known.get(extra, ()) or any(contains(name) for names in inner for name in names.split(","))

    return [extra for extra in extras if contains(extra)]


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Allows one installation in this folder at a time, where the system has file locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(ROOT / "pyproject.toml", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another installation is running here; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Installs unless it is done already. Returns the exit status: 1 where something is missing, 2 for bad usage."""
    parser = argparse.ArgumentParser(description="Make the environment that Headrace runs in.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", metavar="FOLDER", help="where to make it (default: .venv)")
    parser.add_argument("--extras", help=f"of: {', '.join(known_extras())} (default: those installed before, else {USUAL})")
    parser.add_argument(
        "--torch", choices=builds.NAMES, help="the build (default: as before, else auto, by the GPU and its driver)"
    )
    parser.add_argument("--torch-version", help=f"or {builds.NEWEST} (default: as before, else {builds.TORCH})")
    options = parser.parse_args()
    environment = Environment(Path(os.path.abspath(options.venv)))
    before = environment.options() or [USUAL, "auto"]
    names = before[0] if options.extras is None else options.extras
    extras = sorted({name.strip() for name in names.split(",") if name.strip()})
    for name in extras:
        if name not in known_extras():
            parser.error(f"there is no extra {name!r}; there are: {', '.join(known_extras())}")
    build, _, version = before[1].partition("-")
    build, version = options.torch or build, options.torch_version or version or builds.TORCH
    wanted = fingerprint(environment.folder, extras, build if version == builds.TORCH else f"{build}-{version}")
    if environment.holds(wanted):
        return 0
    try:
        with only_one():
            if not environment.holds(wanted):
                install(environment, extras, build, version, wanted)
    except (InstallError, OSError) as error:
        print(f"\nNot installed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted: the next call starts again from the beginning.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
