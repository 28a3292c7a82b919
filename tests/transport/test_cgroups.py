"""What control groups leave to a process of the machine's processors and memory."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from transport import cgroups, system
from transport.cgroups import Group

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's own files")

GB = 10**9
FILES = {
    2: {"quota": "cpu.max", "limit": "memory.max", "used": "memory.current", "cached": "inactive_file"},
    1: {"limit": "memory.limit_in_bytes", "used": "memory.usage_in_bytes", "cached": "total_inactive_file"},
}


def write(folder: Path, version: int, cores: float | None, limit: int | None, used: int, cached: int) -> None:
    """The files of a group, as the kernel writes them. None: no limit."""
    folder.mkdir(parents=True, exist_ok=True)
    names, quota = FILES[version], None if cores is None else int(cores * 100_000)
    if version == 2:
        (folder / names["quota"]).write_text(f"{'max' if quota is None else quota} 100000\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{-1 if quota is None else quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    none = "max" if version == 2 else 2**63 - 4096
    (folder / names["limit"]).write_text(f"{none if limit is None else limit}\n")
    (folder / names["used"]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{names['cached']} {cached}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_the_limits_of_a_group_and_of_those_around_it_hold(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = tmp_path / "pod", tmp_path / "pod" / "container"
    monkeypatch.setattr(cgroups, "groups", lambda controller: [Group(version, inner, tmp_path)])
    monkeypatch.setattr(system, "own_cores", lambda: list(range(64)))
    assert cgroups.processor_quota() == math.inf and not list(cgroups.memory_limits()), "there are no such files"
    assert system.core_count() == 64
    whole, free = system.total_memory(), system.free_memory()

    write(inner, version, cores=2.5, limit=None, used=GB, cached=0)
    assert cgroups.processor_quota() == 2.5 and system.core_count() == 3
    assert system.total_memory() == whole and system.free_memory() == pytest.approx(free, rel=0.2)
    write(outer, version, cores=1.5, limit=3 * 10**8, used=2 * 10**8, cached=5 * 10**7)
    assert cgroups.processor_quota() == 1.5 and system.core_count() == 2
    assert system.total_memory() == 3 * 10**8 and system.free_memory() == 15 * 10**7, "dropping files frees memory"
    write(inner, version, cores=None, limit=10**8, used=2 * 10**8, cached=0)
    assert cgroups.processor_quota() == 1.5 and system.total_memory() == 10**8 and system.free_memory() == 0


def test_a_quota_above_the_cores_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 2, cores=8, limit=None, used=0, cached=0)
    monkeypatch.setattr(cgroups, "groups", lambda controller: [Group(2, tmp_path, tmp_path)])
    monkeypatch.setattr(system, "own_cores", lambda: [4, 5])
    assert system.core_count() == 2


def test_files_that_are_no_numbers_are_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cpu.max", "memory.max", "memory.current", "memory.stat"):
        (tmp_path / name).write_text("?\n")
    monkeypatch.setattr(cgroups, "groups", lambda controller: [Group(2, tmp_path, tmp_path)])
    assert cgroups.processor_quota() == math.inf and not list(cgroups.memory_limits())


def test_a_mount_whose_name_is_not_utf_8_hides_no_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    odd = b"36 35 0:30 / /media/\xe4\xe2\x80\xa8 rw - ext4 /dev/sdb1 rw\n"
    cpu = b"38 35 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    mounts.write_bytes(odd + cpu + b"37 35 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    monkeypatch.setattr(cgroups, "MOUNTS", mounts)
    cgroups._mounts.cache_clear()
    try:
        assert cgroups._mounts("memory") == ((2, "/", "/sys/fs/cgroup"),)
        assert cgroups._mounts("cpu") == ((1, "/", "/sys/fs/cgroup/cpu"), (2, "/", "/sys/fs/cgroup"))
    finally:
        cgroups._mounts.cache_clear()
