"""The record: what one row of experience is, and how rows travel together as a chunk.

A *row* t of a stream holds observation_t, action_t and the reward, terminated and truncated that result from action_t.
A *chunk* is `length` consecutive rows of one stream, self-contained: it carries the rows before that a stacked observation and
a burn-in need, and the `n_step` rows after that an n-step target needs.

A column is declared once, here or by what an algorithm needs; the wire, replay's memory, batches and checks follow from it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np

Codec = Literal["none", "lz4", "zstd"]
Unit = Literal["transitions", "sequences", "rollouts"]  # steps drawn often; whole chunks drawn often; whole chunks once, in order
Columns = dict[str, np.ndarray]  # one array per column, axis 0 = row; without that axis where there is one value per chunk
ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"  # the fields of an environment with goals
STORED_DTYPES = ("|u1", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4")
SPEC_FORMAT = 2  # of spec.json


class SpecError(ValueError):
    """A spec that cannot be: the message says which part of it and why."""


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array of a row as it rests on the wire, in replay and on its way to the device: value = stored * scale + offset.

    An image is "|u1" with scale 1/255; a joint angle may be "|u1" over its limits; scale 1 and offset 0 mean stored as it is.
    `shape` is that of one row.

    `once`: there is one value per chunk, that of row stack-1 (a recurrent state, the priority of a sequence).
    `rests`: False for what travels and is logged, and is spent when replay inserts the chunk (an initial priority).
    `taken`: the rows that a batch of transitions has of it, for item t: t-stack+1 … t+n; t … t+n-1; t; none.
    `check`: what replay refuses: values that are not finite; rewards that are not finite or too large; negative values; nothing.
    `default`: the value in rows without action and in demonstrations; None: only the policy knows it (0 without action).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float = 1.0
    offset: float = 0.0
    codec: Codec = "none"
    once: bool = False
    rests: bool = True
    taken: Literal["window", "steps", "row", "none"] = "row"
    check: Literal["finite", "reward", "natural", "any"] = "finite"
    default: float | None = 0.0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row at rest."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def quantised(self) -> bool:
        """Whether stored integers stand for scaled values."""
        return self.scale != 1.0 or self.offset != 0.0

    def rows(self, rows: int) -> int:
        """How many of the `rows` of a chunk it has a value for."""
        return 1 if self.once else rows

    def chunk_shape(self, rows: int) -> tuple[int, ...]:
        """The shape of its array in a chunk of so many rows."""
        return self.shape if self.once else (rows, *self.shape)

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


def observed(
    name: str, shape: tuple[int, ...], dtype: str, scale: float = 1.0, offset: float = 0.0, codec: Codec = "none"
) -> Column:
    """A column of the observation."""
    return Column(name, shape, dtype, scale, offset, codec, taken="window")


# What every row has besides the observation and the action.
ROW_COLUMNS = (
    Column("reward", (), "<f4", taken="steps", check="reward"),
    Column("terminated", (), "|u1", taken="none", check="any"),
    Column("truncated", (), "|u1", taken="none", check="any"),
    Column(
        "valid", (), "|u1", taken="none", check="any"
    ),  # 0: the row has no action, it only holds an episode's last observation
    Column("episode_step", (), "<i4", taken="none", check="natural"),  # rows since the reset: how far back a stack may look
    Column("policy_version", (), "<i4", check="natural"),
)
# What a batch has besides columns, whose names no column may have.
DERIVED_ARRAYS = ("observation_index", "next_index", "steps", "probability", "key", "length")


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

    `fields` are the observation's, `extras` what the algorithm keeps of each row besides; the other columns follow from `action`.
    `chunk_length` is a power of two. `burn_in` rows come before the items of a chunk, besides the stack's. With each row go
    `goals` goals that its episode achieved later (columns among the extras).
    """

    fields: tuple[Column, ...]
    action: Categorical | Continuous
    chunk_length: int
    stack: int = 1
    n_step: int = 1
    burn_in: int = 0
    unit: Unit = "transitions"
    goals: int = 0
    extras: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        length = self.chunk_length
        if length < 1 or length & (length - 1):
            raise SpecError(f"chunk_length must be a power of two, not {length}")
        if not 1 <= self.stack <= 64:
            raise SpecError(f"stack must be 1 to 64, not {self.stack}")
        if not 1 <= self.n_step <= 64:
            raise SpecError(f"n_step must be 1 to 64, not {self.n_step}")
        if not 0 <= self.burn_in <= 1024:
            raise SpecError(f"burn_in must be 0 to 1024, not {self.burn_in}")
        if self.burn_in and self.unit == "transitions":
            raise SpecError(f"burn_in must be 0 for transitions, not {self.burn_in}: only whole chunks are unrolled")
        if not self.fields:
            raise SpecError("an observation needs at least one field")
        if self.goals:
            self._check_goals()
        self._check_columns()

    def _check_columns(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise SpecError(f"column names must differ: {', '.join(names)}")
        for field in self.fields:
            if field.taken != "window" or field.once or not field.rests:
                raise SpecError(f"field {field.name}: an observation rests, row by row, and is taken as a window")
        for column in self.columns:
            if column.dtype not in STORED_DTYPES:
                raise SpecError(f"column {column.name}: dtype {column.dtype} is not one of {', '.join(STORED_DTYPES)}")
            if any(size < 1 for size in column.shape):
                raise SpecError(f"column {column.name}: shape {column.shape} has an empty axis")
            if column.once and column.taken in ("window", "steps"):
                raise SpecError(
                    f"column {column.name}: it has one value per chunk, so no {column.taken} of rows can be taken of it"
                )
        for column in self.extras:
            if column.name in DERIVED_ARRAYS:
                raise SpecError(f"column {column.name}: a batch has an array of that name; call it something else")

    def _check_goals(self) -> None:
        if not 1 <= self.goals <= 16:
            raise SpecError(f"goals must be 0 to 16, not {self.goals}")
        shapes = [field.shape for field in self.fields if field.name in (ACHIEVED_GOAL, DESIRED_GOAL)]
        if len(shapes) != 2 or shapes[0] != shapes[1]:
            raise SpecError(f"hindsight needs the fields {ACHIEVED_GOAL} and {DESIRED_GOAL}, of one shape")
        if self.n_step != 1:
            raise SpecError(f"hindsight needs n_step 1, not {self.n_step}: rewards between belong to another goal")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Every column, in wire order: the observation's fields, action, then what every row has, then the extras."""
        if isinstance(self.action, Categorical):
            action = Column("action", (), "<i4")
        else:
            action = Column("action", (len(self.action.low),), "<f4")
        return (*self.fields, action, *ROW_COLUMNS, *self.extras)

    @cached_property
    def resting(self) -> tuple[Column, ...]:
        """The columns that replay keeps, in wire order."""
        return tuple(column for column in self.columns if column.rests)

    def field(self, name: str) -> Column:
        """The observation's field of that name."""
        return next(field for field in self.fields if field.name == name)

    @cached_property
    def large(self) -> tuple[Column, ...]:
        """The columns that are compressed, each for itself."""
        return tuple(column for column in self.columns if column.codec != "none")

    @cached_property
    def small(self) -> tuple[Column, ...]:
        """The columns that travel raw, packed together."""
        return tuple(column for column in self.columns if column.codec == "none")

    @property
    def history(self) -> int:
        """Rows before the first item of a chunk."""
        return self.stack - 1 + self.burn_in

    def rows(self, length: int) -> int:
        """Rows of a chunk of `length` items."""
        return self.history + length + self.n_step

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row at rest, all columns but those that a chunk has once."""
        return sum(column.row_bytes for column in self.columns if not column.once)

    def stored_bytes(self, length: int) -> int:
        """Bytes of a chunk of `length` items at rest, all columns."""
        return column_bytes(self.columns, self.rows(length))

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of a full chunk at rest."""
        return self.stored_bytes(self.chunk_length)

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that differ when anything in the spec differs; compared in every greeting."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()


def column_bytes(columns: tuple[Column, ...], rows: int) -> int:
    """Bytes of these columns in a chunk of so many rows."""
    return sum(column.row_bytes * column.rows(rows) for column in columns)


@dataclass(frozen=True)
class Chunk:
    """`length` items of one stream with the rows around them.

    Each column is [spec.rows(length), *shape], or [*shape] where a chunk has it once; item i is row `spec.history + i`. `stream`
    is the environment's index within its actor.
    """

    stream: int
    length: int
    columns: Columns


def bounded(spec: ExperienceSpec, action: np.ndarray) -> np.ndarray:
    """What an environment is given of actions that rest: an index as it is, reals within their bounds."""
    return action if isinstance(spec.action, Categorical) else spec.action.bounded(action)


def write_spec(spec: ExperienceSpec) -> bytes:
    """The text of spec.json."""
    return msgspec.json.encode({"format": SPEC_FORMAT, **msgspec.to_builtins(spec)})


def read_spec(text: bytes) -> ExperienceSpec:
    """Reads what write_spec() wrote. Raises SpecError with the reason."""
    try:
        document: Any = msgspec.json.decode(text)
        found = document.pop("format", 1) if isinstance(document, dict) else None
        if found is not None and found != SPEC_FORMAT:
            raise SpecError(
                f"the experience spec has format {found!r:.40}, this version of headrace reads {SPEC_FORMAT}: "
                "use the version that wrote it, or start anew with --fresh"
            )
        return msgspec.convert(document, ExperienceSpec)
    except SpecError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:  # ValidationError included
        raise SpecError(f"not a spec: {error}") from error
