"""Real replay and actor processes around a stand-in for the learner, and the checker of what reaches it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import tomli_w
import torch
from torch.nn import Linear, Sequential

from actors.config import ActorsConfig, EnvConfig
from actors.envs.make import make_env
from actors.envs.spec import experience_spec
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.config import LearnerConfig
from learner.weights.publish import WeightPublisher
from replay.client import SampledBatch, Sampler
from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.table.layout import array_name
from replay.table.table import Table
from tests.flow.counting_env import ACTIONS, REWARD_BASE, code, ends_by_termination, episode_length, mix, reward_of
from tests.replay.examples import every_item
from transport.experience import Chunk, ExperienceSpec, Unit, write_spec
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir

VERSION_VALUE, STEP_VALUE = 100.0, 7.0
ROOT = Path(__file__).resolve().parents[2]


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> None:
    """Waits for a predicate, not for a while."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def q_value(version: int, step: int, action: int) -> float:
    """What a published version says of an action where observations are vectors: value + advantage - mean advantage."""
    return VERSION_VALUE * version + STEP_VALUE * step + float(action == version % ACTIONS) - 1 / ACTIONS


class Fleet:
    """One run without a supervisor: the test is the learner."""

    def __init__(
        self, path: Path, env: EnvConfig, actors: ActorsConfig, replay: ReplayConfig, n_step: int, unit: Unit = "transitions"
    ) -> None:
        """Writes the run's files and publishes version 0. epsilon is 0: the weights decide the action."""
        self.run_dir = RunDir(path)
        self.run_dir.create()
        self.algorithm = DqnConfig(n_step=n_step, hidden=8, epsilon_base=0.0)
        sections = {"env": env, "actors": actors, "replay": replay, "algorithm": self.algorithm, "learner": LearnerConfig()}
        document = {"seed": 0, "total_steps": 0} | {name: msgspec.to_builtins(section) for name, section in sections.items()}
        self.run_dir.config.write_text(tomli_w.dumps(document))
        self.spec = experience_spec(
            make_env(env), env, replay.codec, msgspec.structs.replace(self.algorithm.needs, n_step=n_step, unit=unit)
        )
        self.run_dir.spec.write_bytes(write_spec(self.spec))
        self.network = q_network(self.spec, self.algorithm)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.version = -1
        self.publisher: WeightPublisher | None = None
        self.serve_weights()
        self.samplers: list[Sampler] = []

    def serve_weights(self) -> None:
        """Binds (anew: a supervisor sweeps a run's sockets as it starts) and publishes the next version."""
        if self.publisher is not None:
            self.publisher.close()
        bind = self.run_dir.bind_address
        self.publisher = WeightPublisher(bind("weights"), bind("payload"), new_incarnation())
        self.publish()
        self.run_dir.write_endpoint("weights", self.publisher.addresses[0])
        self.run_dir.write_endpoint("payload", self.publisher.addresses[1])

    def publish(self) -> None:
        """The next version, whose policy always takes the action version mod ACTIONS; q_value() says its Q-values."""
        self.version += 1
        network = self.network
        assert isinstance(network.head, Sequential) and isinstance(network.body.torso, Sequential)
        head, layers = network.head[0], network.body.torso
        assert isinstance(head, Linear)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
            head.bias[1 + self.version % ACTIONS] = 1.0  # entry 0 of a dueling head is the value
            head.bias[0] = VERSION_VALUE * self.version
            step_place = 8 * (self.spec.stack - 1) + 5  # of the newest observation, where it is the counting environment's
            first, second = (layer for layer in layers if isinstance(layer, Linear)) if len(layers) > 3 else (None, None)
            if first is not None and second is not None and step_place < first.in_features:
                first.weight[0, step_place] = 1.0  # passed on
                second.weight[0, 0] = 1.0
                head.weight[0, 0] = STEP_VALUE
        assert self.publisher is not None
        self.publisher.publish(self.network, self.version)

    def start(self, name: str, *arguments: str) -> None:
        """Starts `python -m …` as the process `name`."""
        environment = os.environ | {"HEADRACE_SUPERVISOR_PID": str(os.getpid()), "OMP_NUM_THREADS": "1"}
        log = open(self.run_dir.log(name), "ab")
        command = [sys.executable, "-m", *arguments]
        self.processes[name] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        log.close()

    def start_replay(self) -> None:
        """The replay server."""
        self.start("replay", "replay", str(self.run_dir.path))

    def start_actor(self, index: int) -> None:
        """One actor."""
        self.start(f"actor-{index}", "actors", str(self.run_dir.path), "--actor", str(index))

    def sampler(self, batch_size: int, shared: bool = True) -> Sampler:
        """A learner's connection; waits until replay is bound."""
        wait_until(lambda: self.run_dir.endpoint("replay") is not None, 30, "replay bound")
        address = self.run_dir.endpoint("replay")
        assert address is not None
        sampler = Sampler(address, "learner", new_incarnation(), self.spec, batch_size, 3, shared)
        self.samplers.append(sampler)
        return sampler

    def ask_to_stop(self, name: str) -> subprocess.Popen[bytes]:
        """SIGTERM."""
        self.processes[name].send_signal(signal.SIGTERM)
        return self.processes[name]

    def stop(self, name: str) -> int:
        """Asks a process to end, and waits for it."""
        code = self.ask_to_stop(name).wait(15)
        del self.processes[name]
        return code

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(15)

    def log(self, name: str) -> str:
        """What a process printed."""
        return self.run_dir.log(name).read_text()

    def steps_taken(self, name: str) -> int:
        """Steps in the last metrics record of an actor."""
        records = self.run_dir.metrics(name).read_bytes().splitlines()
        return int(msgspec.json.decode(records[-1]).get("steps", 0))

    def close(self) -> None:
        """Ends everything."""
        for sampler in self.samplers:
            sampler.close()
        for process in self.processes.values():
            process.kill()
            process.wait(15)
        if self.publisher is not None:
            self.publisher.close()
        self.run_dir.remove_sockets()


class Checker:
    """Proves of every row of every batch that it is what an actor saw. Remembers which items came, and under which version."""

    def __init__(self, spec: ExperienceSpec, known_policy: bool = True) -> None:
        """Nothing seen yet. A known policy takes the action version mod ACTIONS."""
        self.spec = spec
        self.stack, self.n_step = spec.stack, spec.n_step
        self.image = spec.fields[0].dtype == "|u1"
        self.known_policy = known_policy
        self.seen: dict[tuple[int, int, int], int] = {}  # (identity, episode, step) -> times
        self.shortened: set[tuple[int, int, int]] = set()  # bootstrapped early: right only where a stream was drained
        self.versions: dict[int, dict[tuple[int, int], int]] = {}  # identity -> (episode, step) -> policy_version
        self.keys: dict[int, tuple[tuple[int, int, int], int]] = {}  # item key -> (identity, episode, step), action

    def check(self, batch: SampledBatch) -> None:
        """Every item of a batch."""
        arrays = batch.arrays
        assert (arrays["probability"] > 0).all()
        for b in range(len(arrays["key"])):
            self._item({name: array[b] for name, array in arrays.items()})

    def check_rollouts(self, batch: SampledBatch) -> None:
        """Every item of whole chunks, by way of a table."""
        for b, length in enumerate(batch.arrays["length"].tolist()):
            rows = slice(0, self.spec.rows(length))
            columns = {column.name: batch.arrays[array_name(self.spec, column)][b][rows] for column in self.spec.resting}
            table = Table(self.spec, ReplayConfig(min_size=1, capacity=self.spec.chunk_length), seed=0)
            table.skip_to(int(batch.arrays["key"][b]))
            if table.insert(Chunk(0, length, columns)):
                self.check(SampledBatch(0, 0, every_item(table)))

    def _decode(self, row: np.ndarray) -> tuple[int, int, int, int]:
        flat = row.reshape(-1)
        name = flat[:8].astype(np.uint8)
        if self.image:
            assert (flat == np.resize(name, flat.shape)).all(), "torn frame"
        high, low, episode_high, episode_low, step_high, step_low, action, checksum = (int(number) for number in name)
        assert mix(*(int(number) for number in name[:7])) & 255 == checksum, "not an observation"
        return high * 256 + low, episode_high * 256 + episode_low, step_high * 256 + step_low, action

    def _item(self, item: dict[str, np.ndarray]) -> None:
        rows = item["observation/observation"]  # [W, *shape]
        identity, episode, step, _ = self._decode(rows[item["observation_index"][-1]])
        length, terminates = episode_length(identity, episode), ends_by_termination(identity, episode)
        m = int(item["steps"])
        assert step < length and 1 <= m <= min(self.n_step, length - step)
        if m < min(self.n_step, length - step):
            self.shortened.add((identity, episode, step))
        assert bool(item["terminated"]) == (terminates and step + m == length)
        self._check_stack(rows, item["observation_index"], identity, episode, step)
        if not item["terminated"]:
            self._check_stack(rows, item["next_index"], identity, episode, step + m)
        action = int(item["action"])
        for k in range(m):
            reward = float(item["reward"][k])
            taken = int(reward) // REWARD_BASE
            assert reward == reward_of(identity, episode, step + k, taken)
            if k == 0:
                assert taken == action
            if not (terminates and step + k + 1 == length):  # the observation that followed names the action as well
                following = self._decode(rows[self.stack + k])
                assert following == (identity, episode, step + k + 1, taken)
        version = int(item["policy_version"])
        if self.known_policy and version > 0:  # version 0 explores
            assert action == version % ACTIONS
        name = (identity, episode, step)
        self.seen[name] = self.seen.get(name, 0) + 1
        self.keys[int(item["key"])] = name, action
        self.versions.setdefault(identity, {})[episode, step] = version

    def _check_stack(self, rows: np.ndarray, index: np.ndarray, identity: int, episode: int, step: int) -> None:
        """Oldest first, never across the reset, byte for byte."""
        for place, at in enumerate(index):
            age = max(step - (self.stack - 1 - place), 0)
            found = self._decode(rows[at])
            assert found[:3] == (identity, episode, age)
            if age == 0:
                assert (rows[at].reshape(-1)[:8] == code(identity, episode, 0, ACTIONS)).all()

    def check_nothing_lost_or_doubled(self) -> None:
        """Of every stream: each step of each episode exactly once, from the first on, without a gap."""
        assert set(self.seen.values()) == {1}, "an item came twice"
        for identity in {name[0] for name in self.seen}:
            expected = (0, 0)
            in_time = sorted(name[1:] for name in self.seen if name[0] == identity)
            assert {name[1:] for name in self.shortened if name[0] == identity} <= set(in_time[-self.n_step :])
            for episode, step in in_time:
                assert (episode, step) == expected, f"stream {identity}: {expected} is missing"
                expected = (episode, step + 1) if step + 1 < episode_length(identity, episode) else (episode + 1, 0)

    def check_none_shortened(self) -> None:
        """Before any stream has ended, every item reaches n steps or its episode's end."""
        assert not self.shortened

    def check_versions_rise(self) -> None:
        """Of every stream: versions never fall with time."""
        for versions in self.versions.values():
            in_time = [versions[moment] for moment in sorted(versions)]
            assert in_time == sorted(in_time)


def check_log(run_dir: RunDir, spec: ExperienceSpec, checker: Checker) -> Table:
    """Checks every item that a run has on disk, once, oldest first."""
    config = ReplayConfig(min_size=1, capacity=400_000)
    table = Table(spec, config, seed=0)
    journal = Journal(run_dir.segments, table, config, lambda: True)
    checker.check(SampledBatch(0, 0, every_item(table)))
    journal.close(journal.counters)
    return table
