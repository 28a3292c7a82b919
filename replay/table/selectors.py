"""The built-in selectors, and finding the configured one."""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec
import numpy as np
from msgspec import Meta, Struct

from replay.config import ReplayConfig
from replay.table.base import Selector, SelectorState
from replay.table.sum_tree import SumTree
from transport.names import UnknownName, find

SMALLEST_PRIORITY = 1e-6  # an item with a TD error of zero must stay drawable
MOST_PRIORITY = 1e39  # of a float32, raised to the exponent or not
SELECTORS = {
    "prioritised": "replay.table.selectors:Prioritised",
    "uniform": "replay.table.selectors:Uniform",
}
MEMBERS = ("Config", "insert", "evict", "sample", "update", "state", "resume", "restore")  # of every selector


class PrioritisedConfig(Struct, frozen=True, forbid_unknown_fields=True):
    priority_exponent: Annotated[float, Meta(ge=0, le=1)] = 0.6  # alpha; 0 draws uniformly


class PrioritisedNumbers(Struct, frozen=True, forbid_unknown_fields=True):
    """The saved state of Prioritised, without its leaves."""

    exponent: Annotated[float, Meta(ge=0, le=1)]
    highest: Annotated[float, Meta(gt=0, le=MOST_PRIORITY)]  # the highest priority so far, raised to the exponent
    random: dict[str, Any]  # the state of the random generator


class Prioritised:
    """Draws proportionally to priority ** exponent; an item with unknown priority gets the highest priority so far.

    Schaul et al. 2016 (arXiv 1511.05952), section 3.3, with stratified sampling (appendix B.2.1).
    """

    Config: type[Struct] = PrioritisedConfig

    def __init__(self, leaves: int, random: np.random.Generator, config: PrioritisedConfig) -> None:
        self._tree = SumTree(leaves)
        self._exponent = config.priority_exponent
        self._random = random
        self._highest = 1.0  # already raised to the exponent
        self._saved_exponent = 0.0  # of the state that is restored; 0: the state has no priorities

    @property
    def total(self) -> float:
        """The sum of all priorities raised to the exponent."""
        return self._tree.total

    def insert(self, first: int, drawable: np.ndarray, priorities: np.ndarray) -> None:
        known = drawable & ~np.isnan(priorities)
        raised = self._raise(priorities[known])  # first, because the highest may be among them
        values = np.where(drawable, self._highest, 0.0)
        values[known] = raised
        self._tree.set_block(first, values)

    def evict(self, first: int, length: int) -> None:
        self._tree.set_block(first, np.zeros(length))

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """One draw from each of `count` equal strata of the cumulative priority."""
        total = self._tree.total
        strata = (np.arange(count) + self._random.random(count)) * (total / count)
        leaves = self._tree.find(strata)
        return leaves, self._tree.get(leaves) / total

    def update(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        if self._exponent:
            self._tree.set(leaves, self._raise(priorities))

    def _raise(self, priorities: np.ndarray) -> np.ndarray:
        """Priorities raised to the exponent; updates the highest."""
        raised = np.maximum(priorities.astype(np.float64), SMALLEST_PRIORITY) ** self._exponent
        self._highest = max(self._highest, float(raised.max(initial=0.0)))
        return raised

    def state(self) -> SelectorState:
        """The values are priorities raised to the exponent."""
        numbers = PrioritisedNumbers(self._exponent, self._highest, dict(self._random.bit_generator.state))
        return SelectorState(self._tree.all(), msgspec.to_builtins(numbers))

    def resume(self, numbers: dict[str, Any]) -> None:
        saved = msgspec.convert(numbers, PrioritisedNumbers)
        np.random.PCG64(0).state = saved.random  # type: ignore[assignment]  # raises for an invalid state
        self._random.bit_generator.state = saved.random
        self._saved_exponent = saved.exponent if self._exponent else 0.0  # uniform selectors have no priorities
        if self._saved_exponent:
            self._highest = float(self._converted(np.array(saved.highest)))

    def restore(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """Exact, unless the exponent has changed since."""
        if self._saved_exponent:
            self._tree.set(leaves, self._converted(values))

    def _converted(self, values: np.ndarray) -> np.ndarray:
        return values if self._saved_exponent == self._exponent else values ** (self._exponent / self._saved_exponent)


class UniformConfig(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Uniform(Prioritised):
    """Draws all items with the same probability: Prioritised with exponent 0."""

    Config: type[Struct] = UniformConfig

    def __init__(self, leaves: int, random: np.random.Generator, config: UniformConfig) -> None:
        super().__init__(leaves, random, PrioritisedConfig(0.0))


def find_selector(name: str) -> type[Selector]:
    """Raises UnknownName."""
    found = find(name, SELECTORS, "selector")
    if missing := [member for member in MEMBERS if not hasattr(found, member)]:
        raise UnknownName(f"{name} is not a selector: it has no {', '.join(missing)}; see the Selector protocol in headrace")
    return cast(type[Selector], found)


def selector_config(config: ReplayConfig) -> Struct:
    """The options of the configured selector. Options that are also keys of the section [replay] default to the values there.

    Raises ValueError, in one line.
    """
    try:
        kind = find_selector(config.selector).Config
    except UnknownName as error:
        raise ValueError(f"replay.selector: {error}") from error
    shared = {name: getattr(config, name) for name in kind.__struct_fields__ if name in ReplayConfig.__struct_fields__}
    try:
        return msgspec.convert(shared | config.selector_options, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"replay.selector_options of {config.selector}: {error}") from error


def serves_shards(config: ReplayConfig) -> bool:
    """True if the configured selector is a ShardSelector. Raises UnknownName."""
    return hasattr(find_selector(config.selector), "total")


def make_selector(config: ReplayConfig, leaves: int, random: np.random.Generator) -> Selector:
    """Raises ValueError, in one line."""
    options = selector_config(config)
    return find_selector(config.selector)(leaves, random, options)
