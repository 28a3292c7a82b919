"""Rows, chunks and columns of experience, and the spec that all processes of a run share.

A *row* t of a stream holds observation_t, action_t and the reward, terminated and truncated that result from action_t.
A *chunk* holds `length` consecutive items of one stream and is self-contained: it also carries the rows before them that frame
stacking and burn-in need, and the `n_step` rows after them that n-step targets need.

Each column is declared once, here or by an algorithm. The wire format, replay's memory, batches and checks derive from it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from transport.files.documents import DECODE_ERRORS, decode

Codec = Literal["none", "lz4", "zstd"]
# What replay samples: single steps, repeatedly; whole chunks, repeatedly; or whole chunks once, oldest first.
Unit = Literal["transitions", "sequences", "rollouts"]
Columns = dict[str, np.ndarray]  # one array per column; axis 0 is the row, except for columns with one value per chunk
ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"  # fields of goal environments, as in Gymnasium-Robotics
ACTION_MASK = "action_mask"  # field that says which actions are allowed: [n] uint8, 0 is forbidden; networks do not see it
STORED_DTYPES = ("|u1", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4")
SPEC_FORMAT = 2  # format number of spec.json
MOST_STARTS = 64  # of a chunk


class SpecError(ValueError):
    """An invalid spec; the message names the part that is wrong and why."""


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column as it is stored on the wire, in replay and in batches: value = stored * scale + offset.

    An image is "|u1" with scale 1/255; a joint angle may be "|u1" over its limits; scale 1 and offset 0 store values unchanged.
    `shape` is the shape of one row.

    `once`: a chunk has one value, that of row stack-1 (a recurrent state, the priority of a sequence).
    `rests`: replay keeps the column. False: it is sent and logged, but used up when replay inserts the chunk (initial priority).
    `taken`: the rows that a transition t takes from it: "window" t-stack+1 … t+n; "steps" t … t+n-1; "row" t; "none".
    `check`: what replay rejects: "finite" NaN and infinity; "reward" also large values; "natural" negative values; "any" nothing.
    `default`: the value in rows without action and in demonstrations. None: only the policy can give it (0 without action).
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
        """Bytes of one stored row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def is_image(self) -> bool:
        """An image, [C, H, W] or [H, W] in uint8. Every other field is a vector, whatever its shape."""
        return self.dtype == "|u1" and len(self.shape) in (2, 3)

    @property
    def quantised(self) -> bool:
        return self.scale != 1.0 or self.offset != 0.0

    def rows(self, rows: int) -> int:
        """The number of values in a chunk of `rows` rows."""
        return 1 if self.once else rows

    def chunk_shape(self, rows: int) -> tuple[int, ...]:
        """The shape of its array in a chunk of `rows` rows."""
        return self.shape if self.once else (rows, *self.shape)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """From values [..., *shape] to stored values. An array that already has the stored dtype (a frame) is returned."""
        dtype = np.dtype(self.dtype)
        if values.dtype == dtype:
            return values
        if not self.quantised:
            return values.astype(dtype)
        stored = np.rint((values.astype(np.float64) - self.offset) / self.scale)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            stored = np.clip(stored, limits.min, limits.max)
        return stored.astype(dtype)

    def decode(self, stored: np.ndarray) -> np.ndarray:
        """From stored values [..., *shape] to float32; an array that is not quantised is returned as it is."""
        if not self.quantised:
            return stored
        return stored.astype(np.float32) * np.float32(self.scale) + np.float32(self.offset)


def observed(
    name: str, shape: tuple[int, ...], dtype: str, scale: float = 1.0, offset: float = 0.0, codec: Codec = "none"
) -> Column:
    return Column(name, shape, dtype, scale, offset, codec, taken="window")


PERSON = 2**31 - 1  # in the column policy_version: a person chose the action
# Columns of every row besides observation and action.
ROW_COLUMNS = (
    Column("reward", (), "<f4", taken="steps", check="reward"),
    Column("terminated", (), "|u1", taken="none", check="any"),
    Column("truncated", (), "|u1", taken="none", check="any"),
    Column("valid", (), "|u1", taken="none", check="any"),  # 0: a row without action that holds an episode's last observation
    Column("episode_step", (), "<i4", taken="none", check="natural"),  # rows since the reset: a frame stack ends there
    Column("policy_version", (), "<i4", check="natural"),
)
# Arrays that a batch has besides the columns; no column may have one of these names.
DERIVED_ARRAYS = ("observation_index", "next_index", "steps", "probability", "key", "length")


class Categorical(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, repr_omit_defaults=True, tag="categorical"
):
    """Discrete actions 0 … n-1."""

    n: int
    masked: bool = False  # the field ACTION_MASK says which are allowed; a mask of zeros (no action is taken there) allows all


class MultiCategorical(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="multicategorical"):
    """Several choices at once: entry i of an action is 0 … sizes[i] - 1."""

    sizes: tuple[int, ...]


class Continuous(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="continuous"):
    """A vector of real numbers; `low` and `high` are the bounds of each entry.

    The policy's output and the stored action are unbounded; the environment gets the result of `bounded`. So the log-probability
    of a stored action needs no inverse of tanh.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def bounded(self, action: np.ndarray) -> np.ndarray:
        """From [..., A] unbounded to [..., A] float32 in the bounds: low + (tanh(action) + 1) / 2 * (high - low)."""
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        bounded: np.ndarray = low + (np.tanh(action, dtype=np.float32) + 1) * (0.5 * (high - low))
        return bounded


class ExperienceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Everything that actors, replay and learner must agree on about a row. The pre-flight of a run makes it once.

    `fields`: columns of the observation. `extras`: columns that the algorithm adds. `chunk_length`: a power of two. `burn_in`:
    rows before the items of a chunk, in addition to those of the frame stack. `goals`: hindsight goals per row (columns among
    the extras).
    """

    fields: tuple[Column, ...]
    action: Categorical | MultiCategorical | Continuous
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
            raise SpecError(f"burn_in must be 0 for transitions, not {self.burn_in}: only whole chunks have a burn-in")
        if not self.visible:
            raise SpecError("an observation needs at least one field")
        self._check_mask()
        if self.goals:
            self._check_goals()
        self._check_columns()

    def _check_columns(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise SpecError(f"column names must differ: {', '.join(names)}")
        for field in self.fields:
            if field.taken != "window" or field.once or not field.rests:
                raise SpecError(f'field {field.name}: a column of the observation needs taken="window", rests=True, once=False')
        for column in self.columns:
            if column.dtype not in STORED_DTYPES:
                raise SpecError(f"column {column.name}: dtype {column.dtype} is not one of {', '.join(STORED_DTYPES)}")
            if any(size < 1 for size in column.shape):
                raise SpecError(f"column {column.name}: shape {column.shape} has an empty axis")
            if column.once and column.taken in ("window", "steps"):
                raise SpecError(f'column {column.name}: once=True cannot be combined with taken="{column.taken}"')
        for column in self.extras:
            if column.name in DERIVED_ARRAYS:
                raise SpecError(f"column {column.name}: every batch already has an array of that name; choose another name")

    def _check_mask(self) -> None:
        found = [(field.shape, field.dtype) for field in self.fields if field not in self.visible]
        if isinstance(self.action, Categorical) and self.action.masked and found != [((self.action.n,), "|u1")]:
            raise SpecError(f"masked actions need a field {ACTION_MASK} of shape ({self.action.n},) and dtype |u1")

    def _check_goals(self) -> None:
        if not 1 <= self.goals <= 16:
            raise SpecError(f"goals must be 0 to 16, not {self.goals}")
        shapes = [field.shape for field in self.fields if field.name in (ACHIEVED_GOAL, DESIRED_GOAL)]
        if len(shapes) != 2 or shapes[0] != shapes[1]:
            raise SpecError(f"hindsight needs the fields {ACHIEVED_GOAL} and {DESIRED_GOAL} with the same shape")
        if self.n_step != 1:
            raise SpecError(f"hindsight needs n_step 1, not {self.n_step}: the rewards in between belong to another goal")

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns in wire order: the observation's fields, action, ROW_COLUMNS, extras."""
        if isinstance(self.action, Categorical):
            action = Column("action", (), "<i4")
        elif isinstance(self.action, MultiCategorical):
            action = Column("action", (len(self.action.sizes),), "<i4")
        else:
            action = Column("action", (len(self.action.low),), "<f4")
        return (*self.fields, action, *ROW_COLUMNS, *self.extras)

    @cached_property
    def visible(self) -> tuple[Column, ...]:
        """The observation's fields that networks see: all but the mask of actions."""
        masked = isinstance(self.action, Categorical) and self.action.masked
        return tuple(field for field in self.fields if not (masked and field.name == ACTION_MASK))

    @property
    def has_images(self) -> bool:
        return any(field.is_image for field in self.fields)

    @property
    def is_single_discrete(self) -> bool:
        """The observation is a single Discrete value: [n] int8, one-hot. No other kind of field is int8."""
        return [field.dtype for field in self.visible] == ["|i1"]

    @cached_property
    def resting(self) -> tuple[Column, ...]:
        """The columns that replay stores, in wire order."""
        return tuple(column for column in self.columns if column.rests)

    def field(self, name: str) -> Column:
        return next(field for field in self.fields if field.name == name)

    @cached_property
    def large(self) -> tuple[Column, ...]:
        """The columns that are compressed, each separately."""
        return tuple(column for column in self.columns if column.codec != "none")

    @cached_property
    def small(self) -> tuple[Column, ...]:
        """The columns that are sent uncompressed, together in one part."""
        return tuple(column for column in self.columns if column.codec == "none")

    def small_bytes(self, rows: int) -> int:
        """Bytes of these columns in a chunk of `rows` rows."""
        each_row, once = self._small_bytes
        return each_row * rows + once

    @cached_property
    def _small_bytes(self) -> tuple[int, int]:
        """(bytes of one row, bytes that a chunk has once) of the small columns."""
        once = sum(column.row_bytes for column in self.small if column.once)
        return sum(column.row_bytes for column in self.small) - once, once

    @property
    def history(self) -> int:
        """Rows before the first item of a chunk."""
        return self.stack - 1 + self.burn_in

    def rows(self, length: int) -> int:
        """Rows of a chunk of `length` items."""
        return self.history + length + self.n_step

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one stored row, without the columns that a chunk has once."""
        return sum(column.row_bytes for column in self.columns if not column.once)

    def stored_bytes(self, length: int) -> int:
        """Bytes of a chunk of `length` items, all columns, uncompressed."""
        return self.row_bytes * self.rows(length) + self._once_bytes

    @cached_property
    def _once_bytes(self) -> int:
        return sum(column.row_bytes for column in self.columns if column.once)

    @cached_property
    def chunk_bytes(self) -> int:
        """Bytes of a full chunk, uncompressed."""
        return self.stored_bytes(self.chunk_length)

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits of a hash of the spec; compared in every greeting."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()


def column_bytes(columns: tuple[Column, ...], rows: int) -> int:
    """Bytes of these columns in a chunk of `rows` rows."""
    return sum(column.row_bytes * column.rows(rows) for column in columns)


class Start(msgspec.Struct, frozen=True, array_like=True):
    """An episode that began with a seed. `item`: of its chunk. `level`: of the curriculum; -1: there is none."""

    item: Annotated[int, Meta(ge=0, lt=65_536)]
    seed: Annotated[int, Meta(ge=0, lt=2**31)]
    level: Annotated[int, Meta(ge=-1, lt=2**31)] = -1


@dataclass(frozen=True)
class Chunk:
    """`length` items of one stream, with the rows around them.

    Each column is [spec.rows(length), *shape], or [*shape] for `once` columns. Item i is row `spec.history + i`. `stream` is the
    index of the environment within its actor. `starts`: the episodes among its items that began with a seed.
    """

    stream: int
    length: int
    columns: Columns
    starts: tuple[Start, ...] = ()


def bounded(spec: ExperienceSpec, action: np.ndarray) -> np.ndarray:
    """From stored actions to the environment's actions: indices unchanged, real numbers in their bounds."""
    return spec.action.bounded(action) if isinstance(spec.action, Continuous) else action


def write_spec(spec: ExperienceSpec) -> bytes:
    return msgspec.json.encode({"format": SPEC_FORMAT, **msgspec.to_builtins(spec)})


def read_spec(text: bytes) -> ExperienceSpec:
    """Decodes spec.json. Raises SpecError."""
    try:
        document = decode(text, dict[str, Any])
        found = document.pop("format", 1)
        if found != SPEC_FORMAT:
            raise SpecError(
                f"the experience spec has format {found!r:.40}, this version of headrace reads format {SPEC_FORMAT}: "
                "use the version that wrote it, or start the run again with --fresh"
            )
        return msgspec.convert(document, ExperienceSpec)
    except SpecError:
        raise
    except DECODE_ERRORS as error:
        raise SpecError(f"not an experience spec: {error}") from error
