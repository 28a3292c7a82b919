"""What control groups leave to a process of the machine's processors and memory."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from transport import cgroups, system
from transport.cgroups import Group

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's own files")

GB = 10**9
CACHED = {2: "active_file", 1: "total_inactive_file"}


def write(folder: Path, version: int, cores: float | None, limit: int | None, used: int, cached: int) -> None:
    """The files of a group, as the kernel writes them. None: no limit."""
    folder.mkdir(parents=True, exist_ok=True)
    quota = None if cores is None else int(cores * 100_000)
    if version == 2:
        (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} 100000\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{-1 if quota is None else quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    none = "max" if version == 2 else 2**63 - 4096
    (folder / cgroups.LIMIT[version]).write_text(f"{none if limit is None else limit}\n")
    (folder / cgroups.USED[version]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{CACHED[version]} {cached}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_the_limits_of_a_group_and_of_those_around_it_hold(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = tmp_path / "pod", tmp_path / "pod" / "container"
    monkeypatch.setattr(cgroups, "groups", lambda controller: [Group(version, inner, tmp_path)])
    monkeypatch.setattr(system, "own_cores", lambda: list(range(64)))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=9 * GB, total=20 * GB))
    assert cgroups.processor_quota() == math.inf and not list(cgroups.memory_limits()), "there are no such files"
    assert (system.core_count(), system.free_memory(), system.total_memory()) == (64, 9 * GB, 20 * GB)

    write(inner, version, cores=2.5, limit=None, used=GB, cached=0)
    assert cgroups.processor_quota() == 2.5 and system.core_count() == 3
    assert system.total_memory() == 20 * GB and system.free_memory() == 9 * GB
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


ODD = (
    b"36 35 0:30 / /media/\xe4\xe2\x80\xa8\x1c rw - ext4 /dev/sdb1 rw\nodd\n"  # a name that is not UTF-8, and a line that is none
)


@pytest.mark.parametrize(
    ("own", "mounts", "found"),
    [
        (  # Docker, version 1: the container sees its own group at the top of the mount
            b"4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n0::/\n",
            b"31 23 0:28 /docker/ab {} rw - cgroup cgroup rw,cpu,cpuacct\n"
            b"32 23 0:29 /docker/ab /elsewhere rw - cgroup cgroup rw,memory\n",
            Group(1, Path(), Path()),
        ),
        (b"0::/\n", b"31 23 0:28 / {} rw - cgroup2 cgroup rw,nsdelegate\n", Group(2, Path(), Path())),  # a namespace of its own
        (b"0::/a.slice/b c\n", b"31 23 0:28 / {} rw - cgroup2 cgroup2 rw\n", Group(2, Path("a.slice/b c"), Path())),
        (b"0::/a\\x2db/c\n", rb"31 23 0:28 /a\134x2db {} rw - cgroup2 cgroup2 rw" + b"\n", Group(2, Path("c"), Path())),
        (b"0::/elsewhere\n", b"31 23 0:28 /mine {} rw - cgroup2 cgroup2 rw\n", None),
        (b"", b"", None),
    ],
    ids=["docker 1", "namespace 2", "systemd", "escaped", "not mounted", "empty"],
)
def test_groups_are_found_by_what_the_kernel_says(
    own: bytes, mounts: bytes, found: Group | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "self").write_bytes(own)
    (tmp_path / "mounts").write_bytes(ODD + mounts.replace(b"{}", bytes(tmp_path / "top")))
    monkeypatch.setattr(cgroups, "GROUPS", str(tmp_path / "{}"))
    monkeypatch.setattr(cgroups, "MOUNTS", tmp_path / "mounts")
    top = tmp_path / "top"
    cgroups._mounts.cache_clear()
    try:
        expected = [] if found is None else [Group(found.version, top / found.folder, top)]
        assert cgroups.groups("cpu") == expected
    finally:
        cgroups._mounts.cache_clear()
