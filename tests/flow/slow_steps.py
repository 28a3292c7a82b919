"""A wrapper that makes every step of a simulator take longer, so that a whole run leaves the cores to the tests beside it."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

STEP_SECONDS = 0.001


class SlowSteps(gymnasium.Wrapper):
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS)
        return self.env.step(action)
