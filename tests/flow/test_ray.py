"""A run whose hosts are on a real cluster of Ray, of one node on this machine."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from deploy.children import child_environment
from tests.flow import spawning_env
from tests.harness.ray_cluster import RayCluster
from tests.harness.run import World
from tests.harness.waiting import gone, wait_until

pytestmark = [
    pytest.mark.flow,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes by their parents"),
]

SETTINGS = """
--on ray --ray.places-per-host 2 --deploy.bind 127.0.0.1 --evaluator.enabled false --actors.envs-per-actor 1
--actors.chunk-seconds 0.5 --algorithm.hidden 16 --replay.min-size 64 --learner.batch-size 32 --learner.updates-per-epoch 10
--device cpu --seed 0
""".split()
PATIENCE_SECONDS = 180.0  # to start a Ray actor on a busy machine


class OnRay(World):
    """A run of two actors whose hosts Ray starts."""

    def __init__(self, folder: Path, cluster: RayCluster, env: str = "CartPole-v1") -> None:
        super().__init__(folder, env, [*SETTINGS, "--ray.address", cluster.address])
        self.environment = child_environment(TMPDIR=str(folder), **cluster.environment)

    def at_work(self) -> dict[str, str]:
        """The host of each actor that is ready."""
        processes = self.status.get("processes", [])
        return {each["name"]: each["host"] for each in processes if each["role"] == "actor" and each["state"] == "ready"}

    def until_at_work(self, actors: int, hosts: int) -> None:
        def so() -> bool:
            return len(self.at_work()) == actors and len(self.status["hosts"]) == hosts

        self.until(so, f"{actors} actors at work on {hosts} hosts", PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    made = RayCluster(cpus=4)
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path, cluster: RayCluster) -> Iterator[OnRay]:
    made = OnRay(tmp_path, cluster)
    yield made
    made.close()
    made.run_dir.remove_sockets()


def test_live_scale_a_killed_host_and_an_end_that_leaves_nothing(run: OnRay, cluster: RayCluster) -> None:
    run.start()
    run.until_at_work(2, 1)
    assert run.at_work() == {"actor-0": "host-0", "actor-1": "host-0"}
    assert run.command("scale", "4", "mine").returncode == 0
    run.until_at_work(4, 2)
    assert run.command("scale", "2", "mine").returncode == 0
    run.until_at_work(2, 1)
    host = psutil.Process(run.pid("actor-0")).ppid()
    assert "HeadraceHost" in " ".join(psutil.Process(host).cmdline())
    before = list(run.pids().values())[-2:]
    os.kill(host, signal.SIGKILL)
    run.until(lambda: run.process("actor-0")["restarts"] == 1, "its actors are gone with it")
    run.until_at_work(2, 1)
    wait_until(lambda: all(map(gone, before)), what="nothing is left of the host")
    assert run.process("actor-0")["last_exit"] == "its host host-0 has ended" and " died (" not in run.text
    assert "host-0: The actor is dead because its worker process has died; another one is started" in run.text
    steps = run.status["steps"]
    run.until(lambda: run.status["steps"] > steps + 500, "steps go on")
    (ticket, *_) = (run.run_dir.key_folder / "tickets").glob("*.ticket")
    secret = next(line.split()[1] for line in ticket.read_text().splitlines() if line.startswith("secret "))
    assert not cluster.contains(secret) and secret not in run.text
    commands = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]  # a process may end meanwhile
    assert commands and not any(secret in word for command in commands for word in command)
    children = psutil.Process(run.pid("actor-0")).ppid()
    assert run.command("down", "mine").returncode == 0 and run.ended() == 0
    assert cluster.named_actors() == []
    wait_until(lambda: gone(children), what="nothing is left of the last host")
    assert "the cluster does not answer" not in run.text


def test_hosts_outlive_a_supervisor_are_adopted_and_end_by_themselves_when_none_comes_back(
    run: OnRay, cluster: RayCluster
) -> None:
    run.settings = [*run.settings, "--deploy.orphan-seconds", "20"]
    run.start()
    run.until_at_work(2, 1)
    before = {name: run.pid(name) for name in ("actor-0", "actor-1")}
    run.kill()
    run.start()
    run.until_at_work(2, 1)
    assert {name: run.pid(name) for name in before} == before and not any(map(gone, before.values()))
    host = psutil.Process(before["actor-0"]).ppid()
    run.kill()
    wait_until(lambda: all(map(gone, [*before.values(), host])), PATIENCE_SECONDS, "hosts and actors end")
    wait_until(lambda: not cluster.named_actors(), what="the cluster has noticed")


def test_what_simulators_have_started_ends_with_a_host_that_ray_kills(tmp_path: Path, cluster: RayCluster) -> None:
    shutil.copy(Path(spawning_env.__file__), tmp_path)  # a module of the user's, in the folder where the run is started
    run = OnRay(tmp_path, cluster, "spawning_env:make")
    try:
        run.start()
        run.until_at_work(2, 1)
        host = psutil.Process(run.pid("actor-0")).parent()
        assert host is not None
        started = [each.pid for each in host.children(recursive=True) if "time.sleep(3600)" in each.cmdline()[-1]]
        assert started
        cluster.kill_actors()
        wait_until(lambda: all(map(gone, started)), what="nothing is left of the host")
        run.until(lambda: run.process("actor-0")["restarts"] == 1, "the run has noticed", PATIENCE_SECONDS)
        run.until_at_work(2, 1)
        assert run.interrupt() == 0 and cluster.named_actors() == []
    finally:
        run.close()


def test_a_host_without_room_waits_and_the_end_takes_it_back(run: OnRay, cluster: RayCluster) -> None:
    run.settings = [*run.settings, "--ray.cpus-per-place", "8"]
    run.start()
    waits = "host-0 waits for a machine: each asks Ray for 16 CPUs; 4 of the 4 CPUs of the cluster are free, and its largest"
    run.until(lambda: waits in run.text, "it is said that there is no room", PATIENCE_SECONDS)
    assert run.process("actor-0")["state"] == "waiting" and len(cluster.named_actors()) == 1
    assert run.interrupt() == 0
    assert cluster.named_actors() == [] and " died (" not in run.text and "has ended" not in run.text
