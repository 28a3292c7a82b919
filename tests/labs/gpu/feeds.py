"""`python -m tests.labs.gpu.feeds`: how often the host waits for a batch on devices without streams, a line of JSON."""

from __future__ import annotations

import json
from functools import partial

from tests.labs.gpu import stand_in  # isort: skip  # before torch

import torch

from learner.config import LearnerConfig
from learner.devices.capabilities import TABLE, Capabilities
from learner.feed.open import make_feed
from learner.updates.runtime import LearnerRuntime
from replay.client.base import SampledBatch
from tests.learner.feed.test_batches import UNITS, OneSlot
from transport.metrics import Metrics

OTHERS = {
    "XPU": Capabilities("XPU", adam="foreach", lerp=True, pinned_memory=True, storages=True),
    "MPS": Capabilities("MPS", lerp=True, storages=True),
    "DirectML": Capabilities("DirectML"),
}


class Sampler(OneSlot):
    """The same slot, again and again."""

    def next(self, timeout_seconds: float) -> SampledBatch:
        return SampledBatch(0, 1, self.arrays)


def main() -> None:
    assert stand_in.card is not None
    found: dict[str, dict[str, int]] = {}
    for name, able in OTHERS.items():
        TABLE["cuda"] = lambda device, able=able: able  # type: ignore[misc]
        for unit, spec in UNITS.items():
            sampler = Sampler(spec)
            runtime = LearnerRuntime(LearnerConfig(), torch.device("cuda", 0))
            feed = make_feed(sampler, spec, runtime, Metrics())  # type: ignore[arg-type]
            take = partial(feed.next, 1.0)
            take()
            _, found[f"{name} {unit}"] = stand_in.card.waits_of(take)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
