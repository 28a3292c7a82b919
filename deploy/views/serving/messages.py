"""What clients send and get: JSON or MessagePack, decoded under limits."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from actors.datasets.base import Space
from actors.envs.foreign.plain_data import count_of, decode, read_batch, read_one
from actors.envs.spec import flatten_batch
from replay.config import LARGEST
from transport.experience import Columns, ExperienceSpec
from transport.files.documents import reason

MOST_ROWS = 256  # of a request
BODY_BYTES, MOST_BODY_BYTES = 64 << 10, 16 << 20  # of a request, at least and at most, by the size of an observation
LETTERS = 6  # of JSON for a byte of an observation
MSGPACK = "application/msgpack"
MSGPACKS = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")


class Refusal(Exception):
    """A request that is not answered: an HTTP status and a line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class ActRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One observation, or a batch of them; what the action before has led to; and where in an episode that is."""

    observation: Any = UNSET
    observations: Any = UNSET  # with one more axis in front
    deterministic: bool = True
    session: Annotated[str, Meta(pattern=r"^[!-~]{1,64}\Z")] | UnsetType = UNSET
    first: bool = False  # the observation begins an episode
    step: Annotated[int, Meta(ge=0, lt=2**62)] | UnsetType = UNSET  # counts a session's requests: a repeated one has the same
    reward: float | None = None  # of the action before
    terminated: bool = False  # the episode has ended: `observation` is the first of the next, or absent
    truncated: bool = False
    final_observation: Any = UNSET  # of an episode that was truncated

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class Greeting(Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a WebSocket whose request had no token: browsers cannot set that header."""

    token: str


def read_message(data: bytes, binary: bool, kind: type[Any]) -> Any:
    """`binary`: MessagePack. Raises Refusal."""
    try:
        return decode(data, binary, kind)
    except ValueError as error:
        raise Refusal(400, f"not a message: {error}") from error


class ObservationReader:
    """Turns observations of a space into stored rows."""

    def __init__(self, spec: ExperienceSpec, space: Space) -> None:
        self._spec, self._space = spec, space
        self._floats = [field.name for field in spec.fields if np.dtype(field.dtype).kind == "f"]
        plain = sum(int(np.prod(field.shape)) * 4 for field in spec.fields)  # as float32
        self.most_bytes = min(BODY_BYTES + LETTERS * plain * MOST_ROWS, MOST_BODY_BYTES)

    def rows(self, request: ActRequest) -> tuple[Columns, int, bool]:
        """Stored rows {name: [K, *shape]}, K, and whether it is a single one. Raises Refusal."""
        single = request.observations is UNSET
        if single is (request.observation is UNSET):
            raise Refusal(400, "a request has `observation`, or `observations` for a batch")
        return (*self._read(request.observation if single else request.observations, single), single)

    def final(self, request: ActRequest) -> Columns:
        """The last observation of an episode. Raises Refusal."""
        return self._read(request.final_observation, True)[0]

    def _read(self, data: Any, single: bool) -> tuple[Columns, int]:
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused below
                count = 1 if single else count_of(self._space, data)
                if not 1 <= count <= MOST_ROWS:
                    raise Refusal(400, f"a batch has 1 to {MOST_ROWS} observations, not {count:,}")
                batch = read_one(self._space, data) if single else read_batch(self._space, data, count, "observations")
                flat = flatten_batch(self._space, batch)
                stored = {field.name: field.encode(flat[field.name]) for field in self._spec.fields}
        except (ValueError, IndexError, TypeError, OverflowError, RecursionError) as error:
            text = reason(error) if isinstance(error, ValueError) else "the observation does not fit its space"
            raise Refusal(400, text) from error
        for name in self._floats:
            if not (np.abs(stored[name]) <= LARGEST).all():
                raise Refusal(400, f"{name} has a value that is not finite, or beyond {LARGEST:g}")
        return stored, count
