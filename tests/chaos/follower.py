"""`python -m tests.chaos.follower ANNOUNCE PAYLOAD SIZE FILE`: follows weights, and writes down each version that it adopts."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import nn

from learner.inference.module import Module
from learner.weights.follow import WeightFollower
from transport.lifetime import die_with_parent


def main() -> int:
    """For ever."""
    die_with_parent()
    announce, payload, size, file = sys.argv[1:]
    follower = WeightFollower(announce, payload, Module(nn.Linear(int(size), int(size))))
    while True:
        follower.wait(0.05)
        if follower.poll():
            with Path(file).open("a") as versions:
                versions.write(f"{follower.version}\n")


if __name__ == "__main__":
    sys.exit(main())
