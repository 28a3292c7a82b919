"""The record: what one row of experience is, and how rows travel together as a chunk.

A *row* t of a stream holds observation_t, action_t and the reward, terminated and truncated that result from action_t.
A *chunk* is `length` consecutive rows of one stream, self-contained: it carries the `stack - 1` rows before that a
stacked observation needs and the `n_step` rows after that an n-step target needs.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
import numpy as np

Codec = Literal["none", "lz4", "zstd"]
Columns = dict[str, np.ndarray]  # one array per column, axis 0 = row
ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"  # the fields of an environment with goals
HINDSIGHT_GOAL, HINDSIGHT_REWARD = "hindsight_goal", "hindsight_reward"  # columns that tell a row with other goals
INITIAL_PRIORITY = "initial_priority"  # a remembered column: how much there may be to learn from a new item, NaN where unknown
STORED_DTYPES = ("|u1", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4")


class SpecError(ValueError):
    """A spec that cannot be: the message says which part of it and why."""


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column of a row as it rests on the wire, in replay and on its way to the device.

    value = stored * scale + offset. An image is "|u1" with scale 1/255; a joint angle may be "|u1" over its limits;
    scale 1 and offset 0 mean stored as it is. `shape` is that of one row.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float = 1.0
    offset: float = 0.0
    codec: Codec = "none"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row at rest."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def quantised(self) -> bool:
        """Whether stored integers stand for scaled values."""
        return self.scale != 1.0 or self.offset != 0.0

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Turns values [..., *shape] into what rests. An array already of the rest type (a frame) is taken as stored."""
        rest = np.dtype(self.dtype)
        if values.dtype == rest:
            return values
        if not self.quantised:
            return values.astype(rest)
        stored = np.rint((values.astype(np.float64) - self.offset) / self.scale)
        if rest.kind in "iu":
            limits = np.iinfo(rest)
            stored = np.clip(stored, limits.min, limits.max)
        return stored.astype(rest)

    def decode(self, stored: np.ndarray) -> np.ndarray:
        """Turns what rests [..., *shape] into float32 values (or leaves an unquantised array alone)."""
        if not self.quantised:
            return stored
        return stored.astype(np.float32) * np.float32(self.scale) + np.float32(self.offset)


class Categorical(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="categorical"):
    """One of n actions, 0 … n-1."""

    n: int


class Continuous(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="continuous"):
    """A vector of reals; low and high are the bounds of each entry.

    What rests, and what a policy chooses, is unbounded; the environment is given it `bounded`. So a probability can be computed
    of what rests without inverting a tanh.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def bounded(self, action: np.ndarray) -> np.ndarray:
        """From [..., A] unbounded to [..., A] float32 between low and high: low + (tanh + 1) / 2 (high - low)."""
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        bounded: np.ndarray = low + (np.tanh(action, dtype=np.float32) + 1) * (0.5 * (high - low))
        return bounded


class ExperienceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Everything that actors, replay and learner must agree on about a row. Built once, by the pre-flight of a run.

    `fields` are the observation's; `remembered` names what the algorithm remembers of each row, one float32 each; the other
    columns follow from `action`. `chunk_length` is a power of two. With each row go `hindsight` goals that its episode achieved
    later, and the reward that the row would have earned for each.
    """

    fields: tuple[Field, ...]
    action: Categorical | Continuous
    chunk_length: int
    stack: int = 1
    n_step: int = 1
    remembered: tuple[str, ...] = ()
    hindsight: int = 0

    def __post_init__(self) -> None:
        """Refuses what no process could work with."""
        length = self.chunk_length
        if length < 1 or length & (length - 1):
            raise SpecError(f"chunk_length must be a power of two, not {length}")
        if not 1 <= self.stack <= 64:
            raise SpecError(f"stack must be 1 to 64, not {self.stack}")
        if not 1 <= self.n_step <= 64:
            raise SpecError(f"n_step must be 1 to 64, not {self.n_step}")
        if not self.fields:
            raise SpecError("an observation needs at least one field")
        if self.hindsight:
            self._check_goals()
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise SpecError(f"column names must differ: {', '.join(names)}")
        for field in self.fields:
            if field.dtype not in STORED_DTYPES:
                raise SpecError(f"field {field.name}: dtype {field.dtype} is not one of {', '.join(STORED_DTYPES)}")
            if any(size < 1 for size in field.shape):
                raise SpecError(f"field {field.name}: shape {field.shape} has an empty axis")

    def _check_goals(self) -> None:
        """Refuses hindsight where there is nothing to look back at."""
        if not 1 <= self.hindsight <= 16:
            raise SpecError(f"hindsight must be 0 to 16, not {self.hindsight}")
        shapes = [field.shape for field in self.fields if field.name in (ACHIEVED_GOAL, DESIRED_GOAL)]
        if len(shapes) != 2 or shapes[0] != shapes[1]:
            raise SpecError(f"hindsight needs the fields {ACHIEVED_GOAL} and {DESIRED_GOAL}, of one shape")
        if self.n_step != 1:
            raise SpecError(f"hindsight needs n_step 1, not {self.n_step}: rewards between belong to another goal")

    @cached_property
    def columns(self) -> tuple[Field, ...]:
        """Every column of a row, in wire order: the observation's fields, then the rest."""
        if isinstance(self.action, Categorical):
            action = Field("action", (), "<i4")
        else:
            action = Field("action", (len(self.action.low),), "<f4")
        return (
            *self.fields,
            action,
            Field("reward", (), "<f4"),
            Field("terminated", (), "|u1"),
            Field("truncated", (), "|u1"),
            Field("valid", (), "|u1"),  # 0: the row has no action, it only holds an episode's last observation
            Field("episode_step", (), "<i4"),  # rows since the reset: how far back a stack may look
            Field("policy_version", (), "<i4"),
            *(Field(name, (), "<f4") for name in self.remembered),
            *self.hindsight_columns,
        )

    @cached_property
    def hindsight_columns(self) -> tuple[Field, ...]:
        """The columns that tell a row with other goals: [k, *shape of a goal] as goals rest, and [k] rewards; or none."""
        if not self.hindsight:
            return ()
        goal = self.field(DESIRED_GOAL)
        told = msgspec.structs.replace(goal, name=HINDSIGHT_GOAL, shape=(self.hindsight, *goal.shape))
        return (told, Field(HINDSIGHT_REWARD, (self.hindsight,), "<f4"))

    def field(self, name: str) -> Field:
        """The observation's field of that name."""
        return next(field for field in self.fields if field.name == name)

    @cached_property
    def large(self) -> tuple[Field, ...]:
        """The columns that are compressed, each for itself."""
        return tuple(column for column in self.columns if column.codec != "none")

    @cached_property
    def small(self) -> tuple[Field, ...]:
        """The columns that travel raw, packed together."""
        return tuple(column for column in self.columns if column.codec == "none")

    @property
    def history(self) -> int:
        """Rows before the first item of a chunk."""
        return self.stack - 1

    def rows(self, length: int) -> int:
        """Rows of a chunk of `length` items."""
        return self.history + length + self.n_step

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row at rest, all columns."""
        return sum(column.row_bytes for column in self.columns)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a full chunk at rest."""
        return self.rows(self.chunk_length) * self.row_bytes

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that differ when anything in the spec differs; compared in every greeting."""
        document = msgspec.to_builtins(self)
        for late in ("remembered", "hindsight"):
            if not document[late]:  # specs of runs from before there was such a thing keep their digest
                del document[late]
        return hashlib.blake2b(msgspec.json.encode(document), digest_size=8).hexdigest()

    def empty(self, *axes: int) -> Columns:
        """Uninitialised columns with the given leading axes."""
        return {column.name: np.empty((*axes, *column.shape), np.dtype(column.dtype)) for column in self.columns}

    def round_trip(self, name: str, values: np.ndarray) -> np.ndarray:
        """What the learner will see of `values`: a policy must act on this, or its log-probabilities would be wrong."""
        field = self.field(name)
        return field.decode(field.encode(values))


@dataclass(frozen=True)
class Chunk:
    """`length` items of one stream with the rows around them.

    Each column is [spec.rows(length), *shape]; item i is row `spec.history + i`. `stream` is the environment's index
    within its actor.
    """

    stream: int
    length: int
    columns: Columns


class Transition(NamedTuple):
    """An n-step transition; numpy or torch alike. B is the batch axis; an observation is a dict by field name.

    observation[name], next_observation[name]: [B, stack, *shape] as stored; a network dequantises. action: [B] int64 or [B, A].
    reward: [B] sum of gamma^k r_{t+k}. discount: [B] gamma^m, 0 where the episode terminated (not where truncated).
    """

    observation: object
    action: object
    reward: object
    discount: object
    next_observation: object


def bounded(spec: ExperienceSpec, action: np.ndarray) -> np.ndarray:
    """What an environment is given of actions that rest: an index as it is, reals within their bounds."""
    return action if isinstance(spec.action, Categorical) else spec.action.bounded(action)


def read_spec(text: bytes) -> ExperienceSpec:
    """Reads a spec from JSON. Raises SpecError with the reason."""
    try:
        return msgspec.json.decode(text, type=ExperienceSpec)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # ValidationError included
        raise SpecError(f"not a spec: {error}") from error
