"""A wrapper for simulators of a whole run that share the cores with other tests: the run mostly waits for them."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

STEP_SECONDS = 0.001


class Slow(gymnasium.Wrapper):
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS)
        return self.env.step(action)
