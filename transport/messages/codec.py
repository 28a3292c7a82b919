"""The header part of a message: MessagePack, decoded under explicit limits, then converted into the struct of its type."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec

from transport.messages import control, hosts, replay, weights
from transport.messages.fields import MAX_HEADER_BYTES, MalformedMessage, Message

LINKS = control, hosts, replay, weights  # imported here, so that every process knows all types
TYPES: dict[str, type[Message]] = {str(kind.__struct_config__.tag): kind for kind in Message.__subclasses__()}


def pack(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def unpack(header: bytes) -> Any:
    """Decodes a header part under limits. Raises MalformedMessage."""
    if len(header) > MAX_HEADER_BYTES:
        raise MalformedMessage(f"header of {len(header)} bytes")
    try:
        raw = msgpack.unpackb(
            header,
            max_str_len=4096,
            max_bin_len=0,
            max_array_len=1024,
            max_map_len=512,
            max_ext_len=0,
            strict_map_key=True,
        )
        # The tag gives the type: converting into a union of all types takes ten times as long.
        kind = raw.get("type") if isinstance(raw, dict) else None
        if not isinstance(kind, str) or kind not in TYPES:
            raise ValueError("its type is missing or unknown")
        return msgspec.convert(raw, TYPES[kind])
    except (ValueError, msgspec.ValidationError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"{type(error).__name__}: {error}") from error
