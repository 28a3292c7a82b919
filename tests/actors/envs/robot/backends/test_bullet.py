"""What only PyBullet can get wrong: clients, memory, motors that remember."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from actors.envs.robot.env import ReachEnv
from actors.errors import EnvError
from deploy.children import child_environment
from tests.actors.envs.robot import arms

pybullet = pytest.importorskip("pybullet", reason="pybullet is not installed: pip install 'headrace[robot]'")


def clients() -> int:
    """How many worlds this process has."""
    return sum(bool(pybullet.getConnectionInfo(client)["isConnected"]) for client in range(16))


def test_many_arms_are_one_client_and_closing_leaves_none() -> None:
    before = clients()
    env = ReachEnv()
    assert clients() == before  # nothing is loaded before it is needed
    made = env.simulators(5)
    env.reset(seed=0)
    assert clients() == before + 2
    made.close()
    made.close()
    env.close()
    assert clients() == before


def test_two_worlds_do_not_touch_each_other() -> None:
    env = ReachEnv()
    one, other = env.simulators(1), env.simulators(1)
    for made in (one, other):
        made.reset(np.zeros(1, np.int64), [3])
    one.step(np.ones((1, 6)))
    still = other.step(np.zeros((1, 6)))
    assert np.abs(other._velocity).max() < 1e-3 < np.abs(one._velocity).max() and not still.terminated[0]
    one.close()
    other.close()


def test_an_episode_starts_at_rest_whatever_was_before() -> None:
    env = ReachEnv()
    made = env.simulators(2)
    made.reset(np.arange(2), [1, 2])
    for _ in range(10):
        made.step(np.ones((2, 6)))
    made.reset(np.array([0]), [None])
    start = made._q[0].copy()
    made.step(np.array([np.zeros(6), np.ones(6)]))
    assert np.abs(made._q[0] - start).max() < 1e-3  # neither a speed nor a motor's target is left
    assert np.abs(made._velocity[1]).max() > 1
    made.close()


@pytest.mark.slow
def test_arms_stand_apart() -> None:
    env = ReachEnv()
    made = env.simulators(9)
    bodies, client = made.arms._bodies, made.arms.client  # type: ignore[attr-defined]
    places = np.array([pybullet.getBasePositionAndOrientation(body, physicsClientId=client)[0] for body in bodies])
    gaps = [np.linalg.norm(a - b) for i, a in enumerate(places) for b in places[:i]]
    assert min(gaps) > 2 * 1.4 and np.abs(places[:, 2]).max() < 0.2
    made.close()


@pytest.mark.slow
def test_targets_joints_touch_nothing_in_pybullets_eyes_either() -> None:
    env = ReachEnv()
    made = env.simulators(1)
    made.reset(np.zeros(1, np.int64), [0])
    client = made.arms.client  # type: ignore[attr-defined]
    touching = 0
    for q in env.targets.joints[:500].astype(np.float64):
        made.arms.place(np.zeros(1, np.int64), q[None])
        pybullet.performCollisionDetection(physicsClientId=client)
        contacts = pybullet.getContactPoints(physicsClientId=client)
        touching += any(contact[8] < 0 for contact in contacts)
    assert touching == 0
    made.close()


def test_a_file_that_pybullet_cannot_load_is_one_line_and_leaves_no_client(tmp_path: Path) -> None:
    before = clients()
    env = ReachEnv(urdf=str(arms.written(tmp_path, arms.urdf())))
    (tmp_path / "arm.urdf").write_text("<robot/>")
    with pytest.raises(EnvError, match="PyBullet cannot load it"):
        env.simulators(1)
    assert clients() == before


def grown(resets: int) -> int:
    """Bytes that this process gains by so many resets, after some to warm up."""
    env, process = ReachEnv(), psutil.Process()
    for number in range(200 + resets):
        if number == 200:
            before = process.memory_info().rss
        env.reset()
        env.step(env.action_space.sample())
    env.close()
    return process.memory_info().rss - before


def grown_alone(resets: int) -> int:
    """The same in a process that has nothing else to free or to fill."""
    code = f"from tests.actors.envs.robot.backends.test_bullet import grown; print(grown({resets}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=child_environment())
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_resets_do_not_grow_memory() -> None:
    assert grown_alone(1_000) < 5_000_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_thousand_resets_do_not_grow_memory() -> None:
    assert grown_alone(20_000) < 20_000_000


def test_its_import_prints_nothing_and_leaves_both_streams_open() -> None:
    code = (
        "import sys; from actors.envs.robot.backends.bullet import import_quietly\n"
        "assert import_quietly() is import_quietly() is sys.modules['pybullet']\n"
        "print('out'); print('err', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=child_environment())
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
