"""cpprb at Headrace's work, in one process: it has no server. Run by a Python that has cpprb.

A frame is stored once: `stack_compress` keeps one copy of what consecutive windows share.
"""

from __future__ import annotations

from importlib.metadata import version

import cpprb
import numpy as np

from benchmarks.common.recording import load_frames
from benchmarks.peers.common import STACK, check_windows, in_process, print_answer, read_request

SETTINGS = {"buffer": "PrioritizedReplayBuffer", "stack_compress": True, "check_for_update": True, "alpha": 0.6}
LONGEST = 256  # steps of one add


def main() -> None:
    """Every case once."""
    wish, recording, generator = read_request(), load_frames(), np.random.default_rng(0)
    rows = len(recording)
    circle = np.arange(-(STACK - 1), rows + LONGEST + wish.n_step) % rows
    # [R + LONGEST, 84, 84, W]: the window of every row, without copying
    windows = np.lib.stride_tricks.sliding_window_view(recording.observation[circle], wish.window, axis=0)
    discount = (1 - recording.terminated).astype(np.float32)
    reward = np.arange(rows, dtype=np.float32)
    fields = {
        "observation": {"shape": (84, 84, wish.window), "dtype": np.uint8},
        "action": {"dtype": np.int32},
        "reward": {"shape": wish.n_step, "dtype": np.float32},
        "discount": {"shape": wish.n_step, "dtype": np.float32},
    }
    buffer = cpprb.PrioritizedReplayBuffer(
        wish.capacity, fields, alpha=SETTINGS["alpha"], check_for_update=True, stack_compress="observation"
    )
    written = 0

    def insert(count: int) -> int:
        nonlocal written
        for begin in range(0, count, LONGEST):
            steps = min(LONGEST, count - begin)
            first = written % rows
            at = np.arange(first, first + steps) % rows
            following = (at[:, None] + np.arange(wish.n_step)) % rows
            buffer.add(
                observation=windows[first : first + steps],
                action=recording.action[at],
                reward=reward[following],
                discount=discount[following],
            )
            written += steps
        return count

    def sample() -> int:
        batch = buffer.sample(wish.batch, beta=0.4)
        buffer.update_priorities(batch["indexes"], generator.random(wish.batch))
        return wish.batch

    results = in_process(wish, insert, sample)
    batch = buffer.sample(wish.batch, beta=0.4)
    row = batch["reward"][:, 0].astype(np.int64)
    check_windows(recording, row - (STACK - 1), np.moveaxis(batch["observation"], -1, 1))
    assert (batch["action"][:, 0] == recording.action[row]).all(), "an action is not what was written"
    print_answer(version("cpprb"), SETTINGS, wish.batch, results)


if __name__ == "__main__":
    main()
