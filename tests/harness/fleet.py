"""Real replay and actor processes; the test is the learner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import tomli_w
import torch
from torch.nn import Linear, Sequential

from actors.config import ActorsConfig, EnvConfig
from actors.envs.make import env_section, make_env
from actors.envs.spec import experience_spec
from actors.trust import FLAG
from benchmarks.common.settings import write_settings
from deploy.config.run import DeployConfig
from learner.algorithms.base import join
from learner.algorithms.dqn.algorithm import Dqn
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.config import INFERENCE, LearnerConfig
from learner.networks.describe import describe
from learner.serving.publish import WeightPublisher
from replay.client.sampler import Sampler
from replay.config import ReplayConfig
from tests.flow.counting_env import ACTIONS
from tests.harness.waiting import ROOT, obeys, wait_until
from transport.experience import Unit, write_spec
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir

VERSION_VALUE, STEP_VALUE = 100.0, 7.0


def q_value(version: int, step: int, action: int) -> float:
    """What a published version says of an action where observations are vectors: value + advantage - mean advantage."""
    return VERSION_VALUE * version + STEP_VALUE * step + float(action == version % ACTIONS) - 1 / ACTIONS


class Fleet:
    """One run without a supervisor: the test is the learner."""

    def __init__(
        self,
        path: Path,
        env: EnvConfig,
        actors: ActorsConfig,
        replay: ReplayConfig,
        n_step: int,
        unit: Unit = "transitions",
        network: str = "auto",
    ) -> None:
        """Writes the run's files and publishes version 0. epsilon is 0: the weights decide the action."""
        self.run_dir = RunDir(path)
        self.run_dir.create()
        self.algorithm = DqnConfig(n_step=n_step, hidden=8, epsilon_base=0.0, network=network)
        sections = {
            "env": env_section(env),
            "actors": actors,
            "replay": replay,
            "algorithm": self.algorithm,
            "learner": LearnerConfig(),
            "deploy": DeployConfig(record_seconds=0.5),
        }
        document = {"seed": 0, "total_steps": 0} | msgspec.to_builtins(sections)
        self.run_dir.config.write_text(tomli_w.dumps(document))
        given = experience_spec(make_env(env), env, replay.codec)
        self.spec = join(given, msgspec.structs.replace(Dqn(self.algorithm).needs(given), unit=unit))
        self.run_dir.spec.write_bytes(write_spec(self.spec))
        write_settings(self.run_dir, document)
        self.network = q_network(self.spec, self.algorithm)
        self.run_dir.policy.write_bytes(msgspec.json.encode(describe(self.network)))  # so actors act without torch, as in a run
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
        self.start(f"actor-{index}", "actors", str(self.run_dir.path), "--actor", str(index), FLAG)

    def start_inference(self) -> None:
        """The inference process of this machine."""
        self.start(INFERENCE, "learner.serving.inference", str(self.run_dir.path), INFERENCE)

    def sampler(self, batch_size: int, shared: bool = True) -> Sampler:
        """A learner's connection; waits until replay is bound."""
        wait_until(lambda: self.run_dir.endpoint("replay") is not None, what="replay bound")
        address = self.run_dir.endpoint("replay")
        assert address is not None
        sampler = Sampler(address, "learner", new_incarnation(), self.spec, batch_size, 3, shared)
        self.samplers.append(sampler)
        return sampler

    def ask_to_stop(self, name: str) -> subprocess.Popen[bytes]:
        """SIGTERM, as soon as it ends in order by that: while it still imports, the signal would kill it."""
        process = self.processes[name]
        wait_until(lambda: process.poll() is not None or obeys(process.pid), what=f"{name} has begun")
        process.send_signal(signal.SIGTERM)
        return process

    def stop(self, name: str) -> int:
        """Asks a process to end, and waits for it."""
        code = self.ask_to_stop(name).wait(60)
        del self.processes[name]
        return code if os.name == "posix" else 0  # Windows ends a process at once, with a status of its own

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(60)

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
            process.wait(60)
        if self.publisher is not None:
            self.publisher.close()
        self.run_dir.remove_sockets()
