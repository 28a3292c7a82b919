"""A run over hosts, seen from outside: `headrace up`, and `headrace join` for each host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

from deploy.children import child_environment, python_command
from tests.chaos.history import HISTORY_VARIABLE
from tests.harness.run import World
from tests.harness.waiting import gone, wait_until

LIGHT = """
--evaluator.enabled false --actors.envs-per-actor 1 --actors.chunk-seconds 0.5 --algorithm.hidden 16 --replay.capacity 200_000
--replay.min-size 64 --learner.batch-size 32 --learner.updates-per-epoch 10 --device cpu --seed 0
""".split()
SETTINGS = ["--deploy.bind", "127.0.0.1", "--deploy.local-actors", "0", *LIGHT]


class Spread(World):
    """A run whose actors, two if `settings` do not say otherwise, are on hosts; and its hosts."""

    def __init__(self, folder: Path, env: str, *settings: str) -> None:
        super().__init__(folder, env, [*SETTINGS, *settings])
        self.histories = folder / "histories"
        self.histories.mkdir()
        self.environment = child_environment(**{HISTORY_VARIABLE: str(self.histories), "TMPDIR": str(folder)})
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        done = self.command("invite", "mine", "--hosts", "2")
        assert done.returncode == 0, done.stderr

    def join(self, name: str, *arguments: str) -> None:
        """Starts the agent of a host, with two places if `arguments` do not say otherwise."""
        address = wait_until(lambda: self.run_dir.endpoint("supervisor"), what="the supervisor's address")
        assert address is not None
        ticket = self.run_dir.key_folder / "tickets" / f"{name}.ticket"
        join = python_command("deploy.cli.main", "join", address, "--ticket", str(ticket), "--places", "2", *arguments)
        command = [*self.prefix_of(name), *join]
        with (self.folder / name).open("ab") as log:
            self.agents[name] = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def prefix_of(self, name: str) -> list[str]:
        """A command that starts the agent of this host, if not this process itself."""
        return self.prefix

    def kill_agent(self, name: str) -> None:
        agent = self.agents.pop(name)
        agent.kill()
        agent.wait()

    def of_agent(self, agent: int) -> list[int]:
        """All that an agent has started and that is alive."""
        mark = f"HEADRACE_SUPERVISOR_PID={agent}".encode()
        return [pid for pid in psutil.pids() if mark in environ(pid).split(b"\0") and not gone(pid)]

    def close(self) -> None:
        for name in list(self.agents):
            self.kill_agent(name)
        super().close()
        self.run_dir.remove_sockets()


def environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
