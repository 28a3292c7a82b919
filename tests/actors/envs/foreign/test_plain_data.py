"""Observations and actions as programs in any language send them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from actors.envs.foreign.plain_data import count_of, decode, encode, read_batch, read_one, to_plain

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
PARTS: Any = {0: BOX, 1: spaces.Tuple((BOX, spaces.Discrete(3)))}
NUMBERED = spaces.Dict(PARTS)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "messagepack"])
def test_a_map_whose_keys_are_numbers_is_read_in_each_encoding(binary: bool) -> None:
    one = {0: np.ones(2, np.float32), 1: (np.zeros(2, np.float32), 2)}
    message: dict[str, Any] = decode(encode({"observation": to_plain(one)}, binary), binary, dict[str, Any])
    found = read_one(NUMBERED, message["observation"])
    assert found[0].tolist() == [[1.0, 1.0]] and found[1][0].tolist() == [[0.0, 0.0]] and found[1][1].tolist() == [2]
    batch = {"0": [[0.5, 0.5]] * 3, "1": [[[0, 0]] * 3, [1, 2, 0]]}
    assert count_of(NUMBERED, batch) == 3 and read_batch(NUMBERED, batch, 3)[1][1].tolist() == [1, 2, 0]


@pytest.mark.parametrize("data", [{"0": [[0.0, 0.0]]}, [1.0], "text"])
def test_what_lacks_a_part_is_refused_and_has_no_count(data: Any) -> None:
    with pytest.raises(ValueError, match="observation (has no 1|must be a map with 0, 1)"):
        read_batch(NUMBERED, data, 1)
    assert count_of(NUMBERED, data) == (1 if isinstance(data, dict) else 0)


@pytest.mark.parametrize(
    "data", [b"\x81\x00\x00", b"\x81\x90\x00", b"\x81\x80\x00", b"\x81\xc0\x00", b"\xc1", b""]
)  # keys: 0, a list, a map, nil
def test_what_is_no_map_of_texts_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(data, True, dict[str, Any])
