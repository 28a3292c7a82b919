"""The values that a sweep may choose for one setting."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
from msgspec import Struct

from deploy.config.files import Tree
from deploy.config.values import split_message
from deploy.errors import ConfigError

SCALARS = (str, int, float, bool)


class Range(Struct, frozen=True, forbid_unknown_fields=True):
    """From `low` to `high`, both included, or one of `choices`. Without a point in `low` and `high`, whole numbers are chosen."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False  # as likely between 1 and 10 as between 10 and 100
    step: int | float | None = None
    choices: list[Any] | None = None

    @property
    def whole(self) -> bool:
        """True where only whole numbers are chosen."""
        return isinstance(self.low, int) and isinstance(self.high, int) and isinstance(self.step, int | None)

    @property
    def ends(self) -> list[Any]:
        """The values that are checked before the first trial: every choice, or the lowest and the highest value."""
        return list(self.choices) if self.choices is not None else list(dict.fromkeys((self.low, self.last)))

    @property
    def last(self) -> float:
        """The highest value that steps from `low` reach."""
        assert self.low is not None and self.high is not None
        if not self.step:
            return self.high
        steps = math.floor((self.high - self.low) / self.step + 1e-9)  # 0.3 / 0.1 is a little below 3
        return min(self.low + steps * self.step, self.high)

    @property
    def labels(self) -> dict[Any, Any]:
        """The choices by what Optuna stores for them: a choice that is a list or a table is stored as JSON."""
        return {choice if isinstance(choice, SCALARS) else json.dumps(choice): choice for choice in self.choices or []}

    def complaint(self) -> str:
        """The mistake in it, in words; empty if there is none."""
        if self.choices is not None:
            if {self.low, self.high, self.step} != {None} or self.log:
                return "write either choices, or low and high"
            return "" if len(self.labels) == len(self.choices) > 0 else "choices must be different, and at least one"
        if self.low is None or self.high is None:
            return "write low and high, or choices"
        if not all(math.isfinite(number) for number in (self.low, self.high, self.step or 0)):
            return "low, high and step must be finite"
        if self.low > self.high:
            return f"low ({self.low}) must not be above high ({self.high})"
        if self.log and (self.low <= 0 or self.step is not None):
            return "with log, low must be above 0 and there is no step"
        return "" if self.step is None or self.step > 0 else f"step must be above 0, got {self.step}"


def read_ranges(table: Tree, origin: str, prefix: str = "") -> dict[str, Range]:
    """The ranges of a [search] table by their keys, which may be quoted ("learner.learning_rate") or not. Raises ConfigError."""
    found: dict[str, Range] = {}
    for name, value in table.items():
        key = f"{prefix}{name}"
        if not isinstance(value, dict):
            raise ConfigError(f"{origin}: search.{key}: expected {{low = …, high = …}} or {{choices = […]}}, got {value!r}")
        if value and all(isinstance(inner, dict) for inner in value.values()):
            found |= read_ranges(value, origin, f"{key}.")
            continue
        try:
            found[key] = msgspec.convert(value, Range)
        except msgspec.ValidationError as error:
            text, field = split_message(error)
            raise ConfigError(f"{origin}: search.{key}{f'.{field}' if field else ''}: {text}") from error
        if complaint := found[key].complaint():
            raise ConfigError(f"{origin}: search.{key}: {complaint}")
    return found
