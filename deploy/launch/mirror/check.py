"""What `headrace up` does about a mirror.

It refuses to overwrite one, says how to restore a lost run, and gives a run's folder and its mirror the same id.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
from pathlib import Path

from deploy import runs
from deploy.config.run import RunConfig
from deploy.errors import ConfigError, Refused
from deploy.launch.mirror.note import MirrorNote, mirror_of, read_note, write_note
from transport.files.in_use import replace
from transport.run_dir import RunDir


def check(run: RunDir, config: RunConfig, resumed: bool, fresh: bool) -> None:
    """Raises ConfigError where the mirror cannot be kept there, Refused where it is that of a run whose folder is not here."""
    if not (folder := config.deploy.mirror):
        return
    target = mirror_of(run, folder)
    if not target.parent.is_dir():
        raise ConfigError(f"deploy.mirror: there is no folder {folder}; make it, or mount it")
    if target.resolve() == run.path or run.path in target.resolve().parents:
        raise ConfigError(f"deploy.mirror {folder} would be a part of the run's own folder; name one on another disk")
    if target.exists() and hasattr(os, "getuid") and target.stat().st_uid != os.getuid():
        raise ConfigError(f"deploy.mirror: {target} belongs to another user; name another folder")
    note = read_note(target)
    if note is None and target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"deploy.mirror: {target} holds something that is no mirror; name another folder")
    if fresh or note is None:
        return
    if not resumed:
        raise Refused(
            f"run {run.name} has no folder here, but a mirror {note.when}: bring it back with "
            f"`{_copy(target, runs.RUNS / run.name)}` and type the same again, or start anew with --fresh, which moves the "
            "mirror aside"
        )
    own = read_note(run.path)
    if own is None or own.id != note.id:
        raise Refused(f"{target} is the mirror of another run of this name: name another folder, or move it away")


def _copy(source: Path, target: Path) -> str:
    """The command that copies a folder."""
    if os.name == "posix":
        return shlex.join(["cp", "-a", str(source), str(target)])
    return subprocess.list2cmdline(["xcopy", "/e", "/i", "/h", str(source), str(target)])


def notice(run: RunDir) -> str:
    """What a run that goes on from its mirror has lost; empty for any other."""
    note = read_note(run.path)
    if note is None or not note.copied:
        return ""
    lost = "what came later is lost, and so is the segment that was being written then"
    after = "copied when the run had stopped" if note.complete else lost
    return f"; its folder is a copy of its mirror {note.when}: {after}"


def begin(run: RunDir, config: RunConfig, fresh: bool) -> Path | None:
    """Gives the run's folder an id to share with its mirror. With `fresh`, moves the mirror of the run before aside and returns
    where it is now. Raises OSError."""
    own, aside = read_note(run.path), None
    if own is not None and own.copied:  # that was said
        write_note(run.path, MirrorNote(own.id))
    if not config.deploy.mirror:
        return None
    target = mirror_of(run, config.deploy.mirror)
    if fresh and target.exists():
        aside = runs.aside_path(target)
        replace(target, aside)
    if own is None:
        write_note(run.path, MirrorNote(secrets.token_hex(16)))
    return aside
