"""What this machine has, and what it lacks, for `headrace doctor`."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from deploy.children import child_environment, python_command
from deploy.launch.minimum_versions import too_old, torch_load
from transport.sockets.authenticator import library

Finding = tuple[str, str, str]  # what, "ok" or "lacks" or "note", and in words
DEVICE_SECONDS = 120.0
LEAST_FILES = 1024
CORE = (
    "numpy",
    "pyzmq",
    "msgpack",
    "msgspec",
    "cramjam",
    "zstandard",
    "safetensors",
    "gymnasium",
    "opencv-python-headless",
    "tensorboard",
)
EXTRAS = {
    "mario": ("nes-py", "gym-super-mario-bros"),
    "retro": ("stable-retro",),
    "atari": ("ale-py",),
    "robot": ("pybullet",),
    "video": ("imageio-ffmpeg",),
    "dev": ("pytest", "ruff", "mypy"),
}


def findings() -> Iterator[Finding]:
    """Everything that is looked at, in the order in which it matters."""
    yield _python()
    yield "system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield from _devices()
    missing = [name for name in CORE if _version(name) is None]
    yield (
        "packages",
        "lacks" if missing else "ok",
        f"missing: {', '.join(missing)}" if missing else f"all {len(CORE)} core packages",
    )
    old = too_old()
    libzmq = ".".join(map(str, library()[0]))
    yield (
        "safe versions",
        "lacks" if old else "ok",
        "; ".join(old) or f"msgpack {_version('msgpack')}, libzmq {libzmq} with CURVE",
    )
    for extra, names in EXTRAS.items():
        yield _extra(extra, names)
    yield from _resources()


def _python() -> Finding:
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] < (3, 15)
    return "python", "ok" if fits else "lacks", f"{version} ({sys.executable})" + ("" if fits else "; use 3.11 to 3.14")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> Iterator[Finding]:
    """torch and every kind of device, found by a child: importing torch takes seconds and 200 MB."""
    if _version("torch") is None:
        yield "torch", "lacks", "not installed: the learner and the actors need it"
        return
    yield "torch", "ok", str(_version("torch"))
    yield "", "ok", torch_load()
    try:
        done = subprocess.run(
            python_command("learner.devices.inventory"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEVICE_SECONDS,
            env=child_environment(),
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        yield "devices", "lacks", f"looking for them took more than {DEVICE_SECONDS:.0f} s"
        return
    except (ValueError, IndexError, OSError) as error:
        yield "devices", "lacks", f"they could not be looked for ({error})"
        return
    for device in found["kinds"]:
        if device["missing"]:
            yield device["kind"], "note", f"not to be had: {device['missing']}"
            continue
        yield device["kind"], "ok", f"{device['name']}, computes in {device['precision']}"
        yield from (("", "ok", words) for words in (device["can"], device["memory"]) if words)
    order = ", ".join(found["order"])
    yield "--device auto", "ok", f"means {found['auto']} here, the first that is to be had of {order}"
    if found["advice"]:
        yield "directml", "note", found["advice"]


def _extra(extra: str, names: tuple[str, ...]) -> Finding:
    versions = {name: _version(name) for name in names}
    if None not in versions.values():
        return extra, "ok", ", ".join(f"{name} {version}" for name, version in versions.items())
    missing = ", ".join(name for name, version in versions.items() if version is None)
    return extra, "note", f"{missing} not installed: pip install 'headrace[{extra}]'"


def _resources() -> Iterator[Finding]:
    cores, memory = psutil.cpu_count() or 1, psutil.virtual_memory()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    limited = "" if usable == cores else f", {usable} of them for this process"
    yield "cores", "ok", f"{cores}{limited}"
    yield (
        "memory",
        "ok" if memory.available > 2e9 else "lacks",
        f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free",
    )
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        little = free < 256e6
        advice = "; batches travel through it, so give a container more (--shm-size)" if little else ""
        yield "/dev/shm", "lacks" if little else "ok", f"{free / 1e6:,.0f} MB free{advice}"
    free = shutil.disk_usage(".").free
    yield "disk", "ok" if free > 1e9 else "lacks", f"{free / 1e9:.1f} GB free here ({os.getcwd()})"
    if os.name == "posix":
        import resource

        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = files < LEAST_FILES
        yield "open files", "lacks" if few else "ok", f"{files:,}" + (f"; raise it with `ulimit -n {LEAST_FILES}`" if few else "")


def show() -> None:
    """Prints all findings, each as soon as it is known, and in the end what is lacking."""
    marks = {"ok": "ok   ", "lacks": "LACKS", "note": "-    "}
    lacking = []
    for what, state, words in findings():
        print(f"{marks[state] if what else '     '} {what:<13} {words}", flush=True)
        if state == "lacks":
            lacking.append(what)
    print(
        f"Headrace lacks: {', '.join(lacking)}" if lacking else "Headrace has what it needs; - marks what is optional and absent"
    )


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    """It has none."""


def run(parsed: argparse.Namespace) -> int:
    """Says what this machine has and lacks; the status is 0 whatever is found."""
    show()
    return 0
