"""`python -m tests.chaos.breaking_learner RUN_DIR FIRST LAST`: a learner whose gradients are no numbers from FIRST to LAST.

Of several processes only rank 1's are: what it does to the others must still be the same for all.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from learner import __main__ as learner
from learner.updates.optimiser import AdamOptimiser


def main() -> int:
    """As `python -m learner RUN_DIR`."""
    first, last = int(sys.argv.pop(2)), int(sys.argv.pop(2))
    differentiate, done = AdamOptimiser._differentiate, 0

    def breaking(optimiser: AdamOptimiser, *batch: Any) -> Any:
        nonlocal done
        done += 1
        answer = differentiate(optimiser, *batch)
        gradient = optimiser.parameters[0].grad
        if first <= done <= last and os.environ.get("RANK", "1") == "1" and gradient is not None:
            gradient.view(-1)[0] = torch.nan
        return answer

    AdamOptimiser._differentiate = breaking  # type: ignore[assignment,method-assign]
    return learner.main()


if __name__ == "__main__":
    sys.exit(main())
