"""`headrace doctor`: checks what this machine has and lacks."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Literal, NamedTuple

import psutil

from deploy.children import last_error, python_command, run_child
from deploy.launch.minimum_versions import too_old, torch_load
from learner.devices import installing
from transport.sockets.authenticator import library
from transport.system import core_count, free_memory, total_memory

DEVICE_SECONDS = 120.0
MIN_OPEN_FILES = 1024
DISTRIBUTION = "headrace"
DIRECTML = "directml"  # the kind of device, and the extra that brings it
MARKS = {"ok": "ok   ", "lacks": "LACKS", "note": "-    "}


class Check(NamedTuple):
    """The result of one check; an empty name continues the one before."""

    name: str
    state: Literal["ok", "lacks", "note"]
    text: str
    command: str = ""  # what to run next


def checks() -> Iterator[Check]:
    """All checks, the most important first."""
    yield _python()
    yield Check("system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield from _devices()
    packages = required_packages()
    yield _core(packages.pop("", []))
    old = too_old()
    libzmq = ".".join(map(str, library()[0]))
    safe = f"msgpack {_version('msgpack')}, libzmq {libzmq} with CURVE"
    yield Check("safe versions", "lacks" if old else "ok", "; ".join(old) or safe)
    packages.pop(DIRECTML, None)  # its device says so
    for extra, names in sorted(packages.items()):
        yield _extra(extra, names)
    yield from _resources()


def required_packages() -> dict[str, list[str]]:
    """The packages that Headrace requires, under "", and those of each extra, under its name. Empty where it is not installed."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    from packaging.requirements import Requirement  # tensorboard brings it

    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        found = re.search(r"""extra\s*==\s*['"]([\w.-]+)""", requirement)
        extra, wanted = found[1] if found else "", Requirement(requirement)
        listed = packages.setdefault(extra, [])
        fits = wanted.marker is None or wanted.marker.evaluate({"extra": extra})
        if fits and wanted.name not in (*listed, DISTRIBUTION):  # an extra may contain another
            listed.append(wanted.name)
    return packages


def _python() -> Check:
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] < (3, 15)
    return Check("python", "ok" if fits else "lacks", f"{version} ({sys.executable})" + ("" if fits else "; use 3.11 to 3.14"))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _core(names: list[str]) -> Check:
    if not names:
        unknown = "Headrace is not installed as a package, so what it requires is unknown"
        return Check("packages", "note", unknown, installing.headrace())
    if missing := [name for name in names if _version(name) is None]:
        return Check("packages", "lacks", f"not installed: {', '.join(missing)}", installing.headrace())
    return Check("packages", "ok", f"all {len(names)} required packages")


def _devices() -> Iterator[Check]:
    """torch and every kind of device, found by another process: importing torch takes seconds and 200 MB."""
    if _version("torch") is None:
        yield Check("torch", "note", "not installed: dense networks learn by numpy, all others need it", installing.torch())
        return
    yield Check("torch", "ok", str(_version("torch")))
    yield Check("", "ok", torch_load())
    try:
        done = run_child(python_command("learner.devices.inventory"), DEVICE_SECONDS)
        found = json.loads((done.stdout.strip().splitlines() or [""])[-1])
    except subprocess.TimeoutExpired:
        yield Check("devices", "lacks", f"the search for devices took more than {DEVICE_SECONDS:.0f} s")
        return
    except ValueError:  # it has died
        yield Check("devices", "lacks", f"the search for devices failed: {last_error(done)}")
        return
    except OSError as error:
        yield Check("devices", "lacks", f"the search for devices could not be started: {error}")
        return
    yield Check("", "ok", f"built for {found['built']}", found["next"])
    for device in found["kinds"]:
        if device["missing"]:
            yield Check(device["kind"], "note", f"not available: {device['missing']}")
            if device["kind"] == DIRECTML and found["advice"]:
                yield Check("", "note", found["advice"])
            continue
        yield Check(device["kind"], "ok", f"{device['name']}, computes in {device['precision']}")
        yield from (Check("", "ok", text) for text in (device["can"], device["memory"]) if text)
    order = ", ".join(found["order"])
    yield Check("--device auto", "ok", f"means {found['auto']} here, the first available of {order}")


def _extra(extra: str, names: list[str]) -> Check:
    if not names:
        return Check(extra, "note", f"nothing of it is for Python {platform.python_version()} on {platform.system()}")
    versions = {name: _version(name) for name in names}
    if None not in versions.values():
        return Check(extra, "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))
    missing = ", ".join(name for name, version in versions.items() if version is None)
    return Check(extra, "note", f"{missing} not installed: {installing.headrace(extra)}")


def _resources() -> Iterator[Check]:
    cores, usable, free = psutil.cpu_count() or 1, core_count(), free_memory()
    limited = "" if usable == cores else f", of which this process may use {usable}"
    yield Check("cores", "ok", f"{cores}{limited}")
    yield Check("memory", "ok" if free > 2e9 else "lacks", f"{free / 1e9:.1f} of {total_memory() / 1e9:.1f} GB free")
    free = shutil.disk_usage(".").free
    yield Check("disk", "ok" if free > 1e9 else "lacks", f"{free / 1e9:.1f} GB free here ({os.getcwd()})")
    if os.name == "posix":
        import resource

        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = files < MIN_OPEN_FILES
        advice = f"; raise the limit with `ulimit -n {MIN_OPEN_FILES}`" if few else ""
        yield Check("open files", "lacks" if few else "ok", f"{files:,}{advice}")


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    pass


def run(parsed: argparse.Namespace) -> int:
    """Prints each check as soon as it is done. The status is 0 whatever is lacking."""
    lacking, commands = [], []
    for check in checks():
        print(f"{MARKS[check.state] if check.name else '     '} {check.name:<13} {check.text}", flush=True)
        if check.state == "lacks":
            lacking.append(check.name)
        commands += [check.command] if check.command else []
    if lacking:
        print(f"Headrace lacks: {', '.join(lacking)}")
    else:
        print("Headrace has all that it needs; lines with - are about optional parts that are absent")
    print(f"next: {commands[0] if commands else 'headrace up --env CartPole-v1'}")
    return 0
