"""The machine of a run is lost; its folder goes on at another address, and the hosts find it by its name."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.harness.spread import Spread
from tests.harness.waiting import gone
from transport.system import is_free

NAME, PORTS = "trunk.test", 4
FIRST, SECOND = "127.0.0.2", "127.0.0.3"


def with_names(names: Path) -> list[str]:
    """The beginning of a command for which `names` is /etc/hosts."""
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(names)]


def can_have_names(folder: Path) -> bool:
    (folder / "names").write_text("")
    command = [*with_names(folder / "names"), "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True).returncode == 0


def free_ports() -> int:
    """The first of several ports that nobody uses at the two addresses."""
    while True:
        with socket.socket() as probe:
            probe.bind((FIRST, 0))
            port = int(probe.getsockname()[1])
        if port + PORTS < 2**16 and all(is_free(host, port + number) for host in (FIRST, SECOND) for number in range(PORTS)):
            return port


@pytest.fixture
def runs() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.flow
@pytest.mark.slow
@pytest.mark.alone
def test_hosts_find_a_run_that_goes_on_at_another_address_by_its_name(tmp_path: Path, runs: ExitStack) -> None:
    if os.name != "posix" or not can_have_names(tmp_path):
        pytest.skip("needs root, to give a command an /etc/hosts of its own")
    names, port = tmp_path / "names", free_ports()
    names.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n{FIRST} {NAME}\n")

    def make(folder: str, address: str, *settings: str) -> Spread:
        (tmp_path / folder).mkdir(exist_ok=True)
        at = ["--deploy.bind", address, "--deploy.advertise", NAME, "--deploy.port", str(port)]
        made = Spread(tmp_path / folder, "tests.chaos.simulator:slow_vector", *at, *settings)
        made.prefix = with_names(names)
        runs.callback(made.close)
        return made

    before = make("first", FIRST)
    assert before.command("invite", "mine", "--hosts", "3", "--shared").returncode == 0
    before.start()
    before.join("shared", "--allow", "tests")
    before.until(lambda: len(before.at_work()) == 2, "both actors at work")
    assert set(before.at_work().values()) == {"host-2"}, "the first two have tickets of their own"
    before.until(lambda: before.collected("actor-0") and before.collected("actor-1"), "records of both")
    assert before.run_dir.endpoint("replay") == f"tcp://{NAME}:{port + 3}"
    pids, steps = {name: before.pid(name) for name in ("actor-0", "actor-1")}, before.status["steps"]
    before.kill()

    (tmp_path / "second").mkdir()
    (tmp_path / "first" / "runs").rename(tmp_path / "second" / "runs")
    names.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n{SECOND} {NAME}\n")
    after = make("second", SECOND, "--trust-config")  # at its new place the folder may be anyone's
    after.start()
    after.until(lambda: len(after.at_work()) == 2, "both actors at work again")
    assert {name: after.pid(name) for name in pids} == pids and not any(map(gone, pids.values())), "they are adopted"
    after.until(lambda: after.status["steps"] > steps + 100, "steps go on")
    assert after.interrupt() == 0 and before.agents["shared"].wait(60) == 0
    verdict = check(after.run_dir.segments, after.spec, before.histories)
    assert verdict.sound and verdict.lives == 2, verdict.text
