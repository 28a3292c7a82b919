"""An actor without a policy, and so without torch: `python -m tests.chaos.light_actor RUN_DIR --actor I --first-seed S`.

It acts at random in one environment of the rehearsals' simulator and hands over what it sees as every actor does; it starts in
half a second where a real one takes several.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from pathlib import Path

import numpy as np

from actors.chunker import Chunker
from replay.client.writer import ExperienceWriter
from tests.chaos.simulator import STEP_SECONDS, ChaosEnv
from tests.flow.counting_env import ACTIONS
from transport.experience import Chunk, read_spec
from transport.lifetime import Lifetime
from transport.run_dir import RunDir

CHUNK_SECONDS = 0.25


class LightActor:
    """Steps, cuts into chunks, sends."""

    def __init__(self, run_dir: RunDir, index: int, first_seed: int) -> None:
        self.life = Lifetime(f"actor-{index}", run_dir, lambda record: "")
        self._run_dir = run_dir
        self._spec = read_spec(run_dir.spec.read_bytes())
        self._env = ChaosEnv(image=False, step_seconds=STEP_SECONDS / 3)
        self._seed: int | None = first_seed
        self._chunker = Chunker(self._spec, 1, CHUNK_SECONDS)
        self._outbox: deque[Chunk] = deque()
        self._random = np.random.default_rng(first_seed)

    def run(self) -> None:
        life = self.life
        address = self._run_dir.wait_for_endpoint("replay", self._beat)
        if address is None:
            return
        writer = ExperienceWriter(address, life.name, life.incarnation, self._spec, 1)
        observation, _ = self._env.reset(seed=self._seed)
        life.ready()
        while not life.stopping:
            observation = self._step(observation)
            while not life.stopping:
                while self._outbox and writer.has_credit:
                    writer.insert(self._outbox.popleft())
                writer.poll(0.05 if self._outbox else 0)
                life.beat()
                if not self._outbox:
                    break
        self._outbox.extend(self._chunker.drain({"observation": observation[None]}, 0))
        deadline = time.monotonic() + life.drain_seconds
        while (self._outbox or writer.outstanding) and time.monotonic() < deadline:
            if self._outbox and writer.has_credit:
                writer.insert(self._outbox.popleft())
            writer.poll(0.02)
            life.beat()
        writer.close()

    def _beat(self) -> bool:
        self.life.beat()
        return self.life.stopping

    def _step(self, observation: np.ndarray) -> np.ndarray:
        action = int(self._random.integers(ACTIONS))
        seen, reward, terminated, truncated, _ = self._env.step(action)
        row = {"observation": observation[None]}, np.array([action]), np.array([reward], np.float32)
        ends = np.array([terminated]), np.array([truncated])
        self._outbox.extend(self._chunker.step(*row, *ends, {"observation": seen[None]}, 0, {}))
        self.life.metrics.count("steps")
        return self._env.reset()[0] if terminated or truncated else seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    for name in ("actor", "environments", "first-seed", "level"):
        parser.add_argument(f"--{name}", type=int)
    chosen = parser.parse_args()
    actor = LightActor(RunDir(chosen.run_dir), chosen.actor, chosen.first_seed)
    actor.run()
    actor.life.close()


if __name__ == "__main__":
    main()
