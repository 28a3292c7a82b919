"""What changes from rollout to rollout: the learning rate and the weight of the entropy."""

from __future__ import annotations

from learner.algorithms.ppo.config import PpoConfig

ADAPTATION, SMALLEST_RATE, GREATEST_RATE = 1.3, 0.01, 10.0


class Schedules:
    """`counters` are kept in checkpoints. steps: learned from so far. rate: the factor by which adaptive_kl has changed the
    learning rate."""

    def __init__(self, config: PpoConfig) -> None:
        self._config = config
        self.counters: dict[str, float] = {"steps": 0, "rate": 1.0}

    def is_enough(self, kl: float) -> bool:
        """True if the passes over this rollout end at this KL divergence."""
        return 0 < self._config.target_kl < kl

    def adapt(self, kl: float) -> None:
        """Raises the learning rate if the KL divergence of a rollout was less than half of adaptive_kl, and lowers it if it was
        more than twice that."""
        if kl > 2 * self._config.adaptive_kl:
            self.counters["rate"] = max(self.counters["rate"] / ADAPTATION, SMALLEST_RATE)
        elif kl < self._config.adaptive_kl / 2:
            self.counters["rate"] = min(self.counters["rate"] * ADAPTATION, GREATEST_RATE)

    def learning_rate_share(self) -> float:
        """The current learning rate, as a share of the configured one: schedule times adaptation."""
        return self.counters["rate"] * self._annealed(self._config.learning_rate_end)

    def ent_coef(self) -> float:
        """The current entropy coefficient, by the schedule."""
        return self._config.ent_coef * self._annealed(self._config.ent_coef_end)

    def _annealed(self, end: float) -> float:
        """Falls linearly from 1 to `end` over anneal_steps."""
        done = min(self.counters["steps"] / self._config.anneal_steps, 1.0) if self._config.anneal_steps else 0.0
        return 1.0 - done * (1.0 - end)
