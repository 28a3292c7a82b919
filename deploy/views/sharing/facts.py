"""The facts on the card of an exported policy: read from the exported file, and from its run where there is one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actors.figures import EVALUATION
from deploy.config.files import Tree, publishable, without_paths
from deploy.config.trust import code_in
from deploy.provenance import commit, versions
from deploy.recorded.configuration import OF_A_RUN, SECRET, settings_of
from deploy.recorded.history import steps_in
from deploy.recorded.run import RecordedRun
from deploy.runs import read_steps
from learner.saving.export import read_exported
from learner.weights.checkpoint import CheckpointError, Weights, read
from transport.experience import ExperienceSpec, SpecError, read_spec
from transport.files.documents import LineDecoder, decode, read_bytes
from transport.run_dir import RunDir

ELSEWHERE = ("deploy.", "evaluator.")  # settings that do not change what is learned
SINGLE = ("episode_returns", "seed")  # of the episodes themselves, which `headrace eval` records
lines_in = LineDecoder(Tree)
EVALUATOR, COMMAND = "the run's evaluator", "headrace eval"


class Measured(NamedTuple):
    """Figures of this policy, acting greedily. Older versions have recorded no `_min` and `_max`."""

    by: str  # EVALUATOR or COMMAND
    episodes: int
    figures: Mapping[str, Any]  # of an evaluation; `return_std`, `_min` and `_max` are those of single episodes
    selected: bool = False  # the same episodes selected the policy among those of the run


class CardFacts(NamedTuple):
    """The facts of a card."""

    digest: str  # of the weights

    config: Tree  # the env, algorithm, … tables, without paths of this machine
    spec: ExperienceSpec
    policy_version: int
    parameters: int
    software: Mapping[str, str]  # versions, and the commit of the source tree, at the export
    names_code: bool  # the settings name code that is not built in
    steps: int | None = None  # environment steps of training
    changed: Mapping[str, Any] = {}  # settings that differ from the preset, or from the default where there is none
    measured: Measured | None = None


def of_file(path: Path) -> tuple[CardFacts, Weights, dict[str, str]]:
    """Reads an exported file: its facts, weights and metadata. Raises CheckpointError."""
    weights, metadata, config = read_exported(path)
    try:
        spec = read_spec(metadata["spec"].encode())
        known = {section: config[section] for section in ("env", "algorithm")}
    except (SpecError, KeyError) as error:
        raise CheckpointError(f"{path} was exported by another version of Headrace: export a run of this version") from error
    software = versions() | ({"commit": found} if (found := commit()) else {})
    count = sum(array.size for array in weights.values())
    version = int(metadata.get("policy_version", -1))
    return (
        CardFacts(digest_of(weights), publishable(config), spec, version, count, software, bool(code_in(known))),
        weights,
        metadata,
    )


def digest_of(weights: Weights) -> str:
    """SHA-256 of the weights: their names, types, shapes and numbers, whatever else is in the file."""
    found = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def of_run(path: Path, run: RunDir) -> CardFacts:
    """The facts about a file that has been exported from this run. Raises CheckpointError."""
    facts = of_file(path)[0]
    recorded = RecordedRun(run)
    recorded.read()
    changed = {
        one.key: without_paths(one.value)
        for one in settings_of(run)
        if one.differs and one.key not in OF_A_RUN and not one.key.startswith(ELSEWHERE) and not SECRET.search(one.key)
    }
    version = facts.policy_version
    measured = by_command(run, version) or of_best(run, version) or by_evaluator(recorded, version)
    return facts._replace(steps=steps_of(recorded, version), changed=changed, measured=measured)


def steps_of(recorded: RecordedRun, version: int) -> int | None:
    """The environment steps that had been done when the learner published this version, as exact as its records are."""
    versions, steps = recorded.grid.column("learner.policy_version"), steps_in(recorded.grid)
    there = np.isfinite(versions)
    if not there.any():
        return None
    newest = (recorded.newest.get("learner") or {}).get("policy_version") or 0.0
    if version >= newest:
        return read_steps(recorded.run) or None
    return int(np.interp(version, versions[there], steps[there]))


def by_command(run: RunDir, version: int) -> Measured | None:
    """The measurement of this version by `headrace eval`: of several the one with most episodes."""
    try:
        found = [line for line in lines_in(read_bytes(run.evaluated).splitlines()) if line.get("policy_version") == version]
        best = max(found, key=lambda line: int(line["episodes"]), default=None)
        return None if best is None else measured_by(COMMAND, best)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged
        return None


def of_best(run: RunDir, version: int) -> Measured | None:
    """The evaluation that selected this version as the best of the run."""
    try:
        metadata = read(run.best)[1]
        if int(metadata["policy_version"]) != version:
            return None
        return measured_by(EVALUATOR, decode(metadata["evaluation"], Tree))._replace(selected=True)
    except (CheckpointError, KeyError, ValueError):  # there is none, or a file of an older version
        return None


def by_evaluator(recorded: RecordedRun, version: int) -> Measured | None:
    """The measurement of this version by the evaluator, if it is in its records, which are less frequent than evaluations. Those
    of older versions of Headrace have no spread."""
    for one in recorded.evaluations:
        if one.figures["policy_version"] == version and one.figures["return_std"] is not None:
            return measured_by(EVALUATOR, one.figures)
    return None


def measured_by(whom: str, record: Mapping[str, Any]) -> Measured:
    """The figures of an evaluation's record. Raises KeyError, TypeError for a damaged one."""
    shown = [figure for figure in EVALUATION if figure.card]
    names = (name for one in shown for name in (one.name, *(f"{one.stem}_{part}" for part in ("std", "min", "max"))))
    single = {name: record[name] for name in SINGLE if name in record}
    return Measured(whom, int(record["episodes"] or 0), {name: record.get(name) for name in names} | single)


def published(weights: Weights, metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of an exported file, with the configuration that may be published."""
    return {**metadata, "config": json.dumps(publishable(json.loads(metadata["config"])))}
