"""Checks every file of a stopped run against its checksum, its form and the other files; mends what can be mended."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from deploy.config import trust
from deploy.config.files import Layer, read_run
from deploy.config.layers import load_run_config, resolve
from deploy.errors import ConfigError
from deploy.launch.resume import check_whole
from deploy.launch.sums import SUMS, Sum, difference, read_sums, write_sums
from deploy.recorded.fork_point import ForkPoint
from deploy.reporting.events import RunEvent
from deploy.reporting.status_file import read_document as read_status_document
from learner.cloning import demonstration_spec
from learner.description import read_description
from learner.weights.check import check_weights, recorded_spec
from learner.weights.manifest import version_in
from replay.log import demonstrations
from replay.log.check import Finding, check_logs
from replay.log.files import is_regular, set_aside
from transport.experience import ExperienceSpec, SpecError, read_spec
from transport.files import renamed
from transport.files.documents import Damaged, LineDecoder, decode, read_bytes, read_document
from transport.files.writing import write_durably
from transport.run_dir import RunDir
from transport.sockets.keys import LIST, KeyList, KeysError, read_pair

AGAIN = "the next start writes it anew"


def check(run: RunDir) -> list[Finding]:
    """All damage, the worst first. Raises OSError."""
    found = [*_config(run), *check_weights(run)]
    spec, more = _spec(run)
    found += [
        *more,
        *(check_logs(run.segments, spec) if spec else ()),
        *(check_logs(run.human_steps, spec) if spec and run.human_steps.is_dir() else ()),
        *_demonstrations(run, spec),
        *_documents(run),
        *_lines(run),
        *_keys(run),
    ]
    return [*found, *_sums(run, {one.path for one in found})]


def refuse_code(run: RunDir) -> None:
    """Raises ConfigError where the run's settings name code and this account has not made the run: the check would import it."""
    export = run.settings("export")
    for path, read in (
        (run.config, lambda: read_run(run.config).values),
        (export, lambda: read_document(export, dict[str, Any])),
    ):
        try:
            values = read()
        except (OSError, Damaged, ConfigError):  # check() tells
            continue
        trust.check_run(values, path, run)


def mend(run: RunDir, found: list[Finding]) -> list[Finding]:
    """Repairs what can be; returns what is still damaged. Raises OSError."""
    for one in found:
        if one.repair is not None:
            one.repair()
    left = [one for one in check(run) if one.repair is not accepted]
    write_sums(run)
    return left


def accepted() -> None:
    """The repair of a file whose content may be right: nothing tells what it was."""


def _config(run: RunDir) -> Iterator[Finding]:
    try:
        if not run.config.exists():
            raise ConfigError("is lost")
        check_whole(run)
        load_run_config(run, trusted=True)
    except ConfigError as error:
        export = run.settings("export")
        if _is_unchanged(run, run.config):
            yield Finding(export, f"does not have the settings of {run.config.name}: {AGAIN}", repair=lambda: set_aside(export))
            return
        try:
            _config_bytes(run)
        except (OSError, Damaged, ConfigError):
            yield Finding(run.config, str(error), "the run's settings, which settings/export.json does not have either")
        else:
            yield Finding(run.config, str(error), repair=lambda: _replace(run.config, _config_bytes(run)))


def _config_bytes(run: RunDir) -> bytes:
    """config.toml from what the processes of the run were given. Raises ConfigError, Damaged, OSError."""
    tree = read_document(run.settings("export"), dict[str, Any])
    resolve([Layer("settings/export.json", tree)], written=True)
    return tomli_w.dumps({"format": renamed.FORMAT} | tree).encode()


def _replace(path: Path, content: bytes) -> None:
    if os.path.lexists(path):
        set_aside(path)
    write_durably(path, content)


def _spec(run: RunDir) -> tuple[ExperienceSpec | None, list[Finding]]:
    try:
        return read_spec(read_bytes(run.spec)), []
    except (OSError, SpecError) as error:
        why = "is lost" if isinstance(error, FileNotFoundError) else str(error)
    if (recorded := recorded_spec(run)) is not None:
        return read_spec(recorded), [Finding(run.spec, why, repair=lambda: _replace(run.spec, recorded))]
    why += f": {AGAIN}, and replay's log cannot be checked before that"
    return None, [Finding(run.spec, why, repair=(lambda: set_aside(run.spec)) if os.path.lexists(run.spec) else accepted)]


def _demonstrations(run: RunDir, spec: ExperienceSpec | None) -> Iterator[Finding]:
    if spec is None or not run.demonstrations.is_dir():
        return
    try:
        demonstrations.check(run.demonstrations, demonstration_spec(spec))
    except (ValueError, OSError) as error:
        why = str(error).partition(": `headrace")[0]
        yield Finding(run.demonstrations, f"{why}: {AGAIN}", repair=lambda: set_aside(run.demonstrations))


def _documents(run: RunDir) -> Iterator[Finding]:
    """Files that one decoder reads. Without them the run goes on."""
    checks: dict[Path, tuple[Callable[[bytes], object], str]] = {
        run.spaces: (lambda data: decode(data, dict[str, Any]), ""),
        run.policy: (read_description, ""),
        run.device: (lambda data: decode(data, dict[str, Any]), ""),
        run.status: (_status, "figures and the state of processes; steps are counted by replay and its metrics"),
        run.curriculum: (lambda data: decode(data, dict[str, Any]), "the level of the curriculum: it begins at the first"),
        run.fork_point: (lambda data: decode(data, ForkPoint), "of which run this one is a fork"),
        run.announced: (_version, "the newest version: versions go on after that of the newest checkpoint"),
        **{path: (lambda data: decode(data, dict[str, Any]), "") for path in sorted((run.path / "settings").glob("*.json"))},
        run.videos / "videos.json": (lambda data: decode(data, list[Any]), "the list of videos"),
    }
    for path, (read, lost) in checks.items():
        try:
            if os.path.lexists(path):
                read(read_bytes(path))
        except (OSError, ValueError) as error:  # a CheckpointError is a ValueError
            why = f"{str(error) or 'is damaged'}" + ("" if lost else f": {AGAIN}")
            yield Finding(path, why, lost, lambda path=path: set_aside(path))  # type: ignore[misc]


def _version(data: bytes) -> None:
    if version_in(data) is None:
        raise Damaged("holds no version of a policy")


def _status(data: bytes) -> None:
    if read_status_document(data) is None:
        raise Damaged("is no status of a run")


def _lines(run: RunDir) -> Iterator[Finding]:
    """Files of JSON lines: lines that are something else are lost."""
    records, events = LineDecoder(dict[str, Any]), LineDecoder(RunEvent)
    for path in sorted((*(run.path / "metrics").glob("*.jsonl*"), *run.path.glob("*.jsonl*"))):
        if ".aside" in path.name:
            continue
        if not is_regular(path):
            yield Finding(path, "is not a regular file", repair=lambda path=path: set_aside(path))  # type: ignore[misc]
            continue
        lines = read_bytes(path).splitlines()
        decoder = events if path.name.startswith(run.events.name) else records
        sound = [line for line in lines if decoder([line])]
        if len(sound) < len(lines):
            kept = b"".join(line + b"\n" for line in sound)
            why, lost = "has lines that are none", f"{len(lines) - len(sound):,} of {len(lines):,} lines"
            yield Finding(path, why, lost, lambda path=path, kept=kept: _replace(path, kept))  # type: ignore[misc]


def _keys(run: RunDir) -> Iterator[Finding]:
    if not run.key_folder.is_dir():
        return
    try:
        KeyList(run.key_folder / LIST).by_name()
        for path in sorted(run.key_folder.glob("*.secret")):
            read_pair(run.key_folder, path.stem)
    except KeysError as error:
        yield Finding(run.key_folder, f"{error}; `headrace keys {run.name} --renew` makes new ones")


def _sums(run: RunDir, known: set[Path]) -> Iterator[Finding]:
    try:
        sums = read_sums(run)
    except Damaged as error:
        yield Finding(run.path / SUMS, str(error), "the checksums of files that have none of their own", accepted)
        return
    for name, one in sums.items():
        path = run.path / name
        if path in known or not (why := difference(path, one)):
            continue
        if path == run.config and _can_be_rebuilt(run, one):
            yield Finding(path, why, repair=lambda path=path: _replace(path, _config_bytes(run)))  # type: ignore[misc]
        else:
            yield Finding(path, why, "what the file was: its content cannot be told from the right one", accepted)


def _can_be_rebuilt(run: RunDir, known: Sum) -> bool:
    """True where the settings of the processes give the config.toml that the run ended with."""
    try:
        content = _config_bytes(run)
    except (OSError, Damaged, ConfigError):
        return False
    return Sum(len(content), hashlib.sha256(content).hexdigest()) == known


def _is_unchanged(run: RunDir, path: Path) -> bool:
    """True where the file is as it was when the run ended."""
    try:
        known = read_sums(run).get(str(path.relative_to(run.path)))
    except (OSError, Damaged):
        return False
    return known is not None and not difference(path, known)
