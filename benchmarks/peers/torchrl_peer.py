"""torchrl at Headrace's work, in one process: it has no server. Run by a Python that has torchrl.

A frame is stored once, in a row of its own; an item is a slice of rows. Its priority is that of the slice's first row.
"""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, PrioritizedSliceSampler, TensorDictReplayBuffer

from benchmarks.common.recording import load_frames
from benchmarks.peers.common import STACK, check_windows, in_process, print_answer, read_request

SETTINGS = {"buffer": "TensorDictReplayBuffer", "sampler": "PrioritizedSliceSampler", "cache_values": True, "alpha": 0.6}
LONGEST = 256  # steps of one extend


def main() -> None:
    """Every case once."""
    wish, recording = read_request(), load_frames()
    rows = len(recording)
    circle = torch.arange(rows + LONGEST) % rows
    columns = TensorDict(
        {
            "observation": torch.from_numpy(recording.observation)[circle],
            "action": torch.from_numpy(recording.action)[circle],
            "reward": torch.arange(rows, dtype=torch.float32)[circle],
            "discount": 1 - torch.from_numpy(recording.terminated).float()[circle],
            "trajectory": torch.zeros(len(circle), dtype=torch.int64),
            ("next", "done"): torch.zeros(len(circle), 1, dtype=torch.bool),
        },
        [len(circle)],
    )
    sampler = PrioritizedSliceSampler(
        wish.capacity, SETTINGS["alpha"], 0.4, slice_len=wish.window, traj_key="trajectory", cache_values=True
    )
    storage = LazyTensorStorage(wish.capacity)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=wish.batch * wish.window)
    written = 0

    def insert(count: int) -> int:
        nonlocal written
        for begin in range(0, count, LONGEST):
            steps, first = min(LONGEST, count - begin), written % rows
            buffer.extend(columns[first : first + steps])
            written += steps
        return count

    def sample() -> int:
        batch = buffer.sample()
        buffer.update_priority(batch["index"][:: wish.window].reshape(-1), torch.rand(wish.batch))
        return wish.batch

    results = in_process(wish, insert, sample)
    batch = buffer.sample()
    row = batch["reward"].numpy().reshape(wish.batch, wish.window)[:, STACK - 1].astype(np.int64)
    check_windows(recording, row - (STACK - 1), batch["observation"].numpy().reshape(wish.batch, wish.window, 84, 84))
    action = batch["action"].numpy().reshape(wish.batch, wish.window)[:, STACK - 1]
    assert (action == recording.action[row]).all(), "an action is not what was written"
    print_answer(f"{version('torchrl')} (torch {torch.__version__})", SETTINGS, wish.batch, results)


if __name__ == "__main__":
    main()
