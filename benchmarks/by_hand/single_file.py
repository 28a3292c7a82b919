"""`python -m benchmarks.by_hand.single_file TASK`: deep Q-learning as single-file implementations have it.

Plain torch and numpy, replay memory included: stacks and next stacks stored whole, uniform batches, float32, the target
network's greatest value as the goal, mean squared error, Adam as it comes. So it does less than the learner: one value of the
next state, not two; no n-step returns, priorities, weights or clipping. The network is the same.
"""

from __future__ import annotations

import copy
import json
import sys
import time

import msgspec
import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

from benchmarks.by_hand.parts import mlp, nature
from benchmarks.learner.workloads import WORKLOADS, Task, Workload
from benchmarks.replay.wire import make_recording
from learner.algorithms.dqn.config import DqnConfig
from learner.devices.detection import resolve
from transport.system import keep_memory

MEMORY = 10_000  # transitions
WARM_UP_UPDATES = 5
TARGET_PERIOD = 1_000


class Memory:
    """The last transitions, whole."""

    def __init__(self, workload: Workload) -> None:
        recording, stack = make_recording(workload.kind), workload.spec().stack
        rows = np.arange(MEMORY) % len(recording)
        rows = rows[recording.valid[rows] != 0]
        following = (rows + 1) % len(recording)
        self.observation = recording.observation[recording.stack(rows, stack)]  # [N, stack, …]
        self.next_observation = recording.observation[recording.stack(following, stack)]
        self.action = recording.action[rows].astype(np.int64)
        self.reward = np.random.default_rng(0).random(len(rows), np.float32)
        self.done = recording.terminated[rows].astype(np.float32)

    def sample(self, generator: np.random.Generator, size: int, device: torch.device) -> list[torch.Tensor]:
        which = generator.integers(0, len(self.action), size)
        columns = (self.observation, self.next_observation, self.action, self.reward, self.done)
        return [torch.from_numpy(column[which]).to(device) for column in columns]


def dueling(out: torch.Tensor) -> torch.Tensor:
    """[B, 1 + n] -> Q-values [B, n], as the learner's."""
    return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)  # type: ignore[no-any-return]


def measure(task: Task) -> float:
    """Updates per second."""
    setting, workload = task.setting, WORKLOADS[task.setting.workload]
    config = workload.algorithm
    assert isinstance(config, DqnConfig)
    device = resolve(setting.device)
    torch.set_num_threads(setting.threads)
    torch.manual_seed(0)
    spec = workload.spec()
    size = spec.stack * int(np.prod(spec.fields[0].shape))
    body = nature(spec.stack, config.hidden) if workload.images else mlp(size, config.hidden)
    network = body.append(nn.Linear(config.hidden, 1 + int(spec.action.n))).to(device)  # type: ignore[union-attr]
    target, scale = copy.deepcopy(network), 1 / 255 if workload.images else 1.0
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    memory, generator = Memory(workload), np.random.default_rng(0)
    updates, begun = 0, 0.0
    while not begun or time.monotonic() < begun + task.seconds:
        observation, following, action, reward, done = memory.sample(generator, setting.batch, device)
        with torch.no_grad():
            goal = reward + config.gamma * dueling(target(following * scale)).max(1).values * (1 - done)
        q = dueling(network(observation * scale)).gather(1, action[:, None]).squeeze(1)
        loss = mse_loss(goal, q)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        if updates % TARGET_PERIOD == 0:
            target.load_state_dict(network.state_dict())
        if updates == WARM_UP_UPDATES:
            loss.item()
            begun = time.monotonic()
    loss.item()
    return (updates - WARM_UP_UPDATES) / (time.monotonic() - begun)


if __name__ == "__main__":
    keep_memory()
    print(json.dumps({"updates": measure(msgspec.json.decode(sys.argv[1], type=Task))}), flush=True)
