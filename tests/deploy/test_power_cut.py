"""After a power cut at any moment of its supervisor a run goes on, and knows its steps but for the last ten seconds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from actors.envs.preflight.parent import PreflightResult
from deploy import settings
from deploy.cli import main as cli
from deploy.config.files import write_config
from deploy.config.layers import load_run_config
from deploy.launch import preflight, resume
from deploy.launch.fsck import check as damage
from deploy.launch.resume import steps_done
from deploy.launch.sums import forget_sums, write_sums
from deploy.process_spec import ProcessSpec
from deploy.reporting.remote import RemoteActors
from deploy.supervision import reports
from deploy.supervision.curriculum import Curriculum
from deploy.supervision.processes import ProcessState
from learner.serving.publish import announced
from tests.deploy.cli.test_main import Service, quiet_world
from tests.harness.folder import SPEC, stopped_run
from tests.harness.power import Disk, Held
from transport.files.writing import write_atomically, write_durably
from transport.run_dir import RunDir

__all__ = ["quiet_world"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows cannot fsync folders")
FOLDERS = ("", "settings", "checkpoints", "metrics")
Whole = tuple[Held, ...]  # by folder


class Cut:
    """What the disk may hold, and the steps that it must still tell of."""

    def __init__(self, held: Whole, steps: int) -> None:
        self.held, self.steps = held, steps


class Recorded:
    """The folders of a run while its supervisor writes to them."""

    def __init__(self, run: RunDir, monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
        kept.mkdir()
        self._disks = [Disk(run.path / name, monkeypatch, kept / (name or "run")) for name in FOLDERS]

    def cuts(self, steps: int) -> Iterator[Cut]:
        """One folder may hold anything that it can, while the others hold all or nothing of what is not synced."""
        for disk in self._disks:
            disk.look()
        found = [list(disk.held()) for disk in self._disks]
        for number, options in enumerate(found):
            for others in (0, -1):
                for one in options:
                    yield Cut(tuple(one if n == number else each[others] for n, each in enumerate(found)), steps)


def supervised(run: RunDir, monkeypatch: pytest.MonkeyPatch, kept: Path) -> Iterator[Cut]:
    """What a supervisor writes, from its start to its stop: a run that scales and counts its steps."""
    config, done = load_run_config(run), steps_done(run)
    disk = Recorded(run, monkeypatch, kept)
    write_durably(run.config, write_config(config))
    forget_sums(run)
    settings.write(run, config)
    yield from disk.cuts(done)
    slots = [ProcessState(ProcessSpec("replay", "replay", "replay", ()))]
    supervisor: Any = SimpleNamespace(
        slots=slots, stopping=False, finished=False, exit_status=0, reason="", all_ready=True, silent_seconds=lambda _: None
    )
    log: Any = SimpleNamespace(line=print, bottleneck=print)
    orders: Any = SimpleNamespace(paused_since=None, because="", paused=False, answered=[])
    curriculum = Curriculum(run.curriculum)
    made = reports.Reports(run, config, log, supervisor, RemoteActors(lambda: 0.0, lambda *_: None), curriculum, orders)
    record = json.loads(run.metrics("replay").read_bytes().splitlines()[-1])
    for second in range(1, 7):
        now = done + 100 * second
        record |= {"time": record["time"] + 1, "inserted_steps": record["inserted_steps"] + 100}
        with run.metrics("replay").open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")
        made._next_status = 0.0
        made._next_point = 0.0 if second % 3 == 0 else 1e18
        made.turn(config, now, 1)
        write_atomically(run.announced, str(second).encode())
        synced = done + 100 * (second - second % 3)
        if second == 4:
            config = structs.replace(config, actors=structs.replace(config.actors, count=3))
            settings.write(run, config)
            yield from disk.cuts(synced)
            write_durably(run.config, write_config(config))
        yield from disk.cuts(synced)
    supervisor.finished = True
    made.write_status(config, now, 1)
    yield from disk.cuts(now)
    write_sums(run)
    yield from disk.cuts(now)


def rebuilt(cut: Cut, base: Path, target: Path) -> RunDir:
    """The folder as the disk has it; `base` has the files that nothing changes."""
    shutil.copytree(base, target)
    for name, held in zip(FOLDERS, cut.held, strict=True):
        for path in (target / name).iterdir():
            if path.is_file():
                path.unlink()
        for file, content in held.items():
            (target / name / file).write_bytes(content)
    return RunDir(target)


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_a_power_cut_at_any_moment_leaves_a_run_that_goes_on(
    every: int, quiet_world: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "preflight", lambda config, *more: PreflightResult(SPEC, options={}))
    monkeypatch.setattr(resume, "check_spec", lambda *given: None)  # the folder's environment is made up
    monkeypatch.setattr(reports, "Sinks", lambda *given: SimpleNamespace(write=print, close=print))
    run = stopped_run(Path("base/q"))
    (run.segments / "state.npz").unlink()  # as of a run whose experience is not kept: replay does not tell its steps
    write_sums(run)
    base = Path(shutil.copytree(run.path, tmp_path / "sound"))
    with monkeypatch.context() as recording:
        found = list(supervised(run, recording, tmp_path / "kept"))
    different = list({repr([sorted(held.items()) for held in cut.held]): cut for cut in found}.values())
    assert len(different) > 100
    weights = sorted(path.name for path in (base / "checkpoints").glob("*.safetensors"))
    for cut in different[::every]:
        left = rebuilt(cut, base, tmp_path / "runs" / "q")
        assert steps_done(left) >= cut.steps, (steps_done(left), cut.steps)
        assert announced(left) >= -1
        assert not [one for one in damage(left) if "when the run ended" in one.problem]
        capsys.readouterr()
        status = cli.main(["up", "--run", "q"])
        said = capsys.readouterr()
        assert status == 0 and "resuming run q" in said.out, said.err
        assert Service.made.pop()[1].actors.count in (2, 3)
        assert sorted(path.name for path in left.checkpoints.glob("*.safetensors")) == weights
        shutil.rmtree(left.path)
