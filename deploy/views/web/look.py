"""The newest observation of an actor for the page: images as pictures, vectors as numbers, and the policy's figures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from transport.experience import Column, ExperienceSpec, SpecError, read_spec
from transport.files.documents import read_bytes
from transport.messages.control import Seen
from transport.messages.fields import LOOK_BYTES
from transport.run_dir import RunDir

MOST_ENTRIES = 48  # of a vector


def shown(run: RunDir, seen: Seen, parts: Sequence[bytes]) -> dict[str, Any]:
    """The document of what an actor has sent; or only a `message` where that does not fit the run's spec."""
    try:
        spec = read_spec(read_bytes(run.spec))
    except (OSError, SpecError) as error:
        return {"message": f"the spec of run {run.name} cannot be read: {error}"}
    payload, expected = b"".join(parts), sum(field.row_bytes for field in spec.visible) * spec.stack
    height, width = seen.picture or (0, 0)
    payload, picture = payload[: len(payload) - 3 * height * width], payload[len(payload) - 3 * height * width :]
    if not payload and expected > LOOK_BYTES:
        megabytes = f"{expected / 1e6:.1f} MB, with a limit of {LOOK_BYTES / 1e6:.1f} MB"
        return {"message": f"its observations are too large to show: {megabytes}"}
    if len(payload) != expected:
        return {"message": f"{seen.actor} has sent observations that do not fit the spec of run {run.name}"}
    facts: dict[str, Any] = {
        "policy_version": seen.policy_version,
        "step": seen.step,
        "return": seen.total_reward,
        "stack": spec.stack,
    }
    facts |= {"steered": seen.steered, "keys": seen.keys}
    if len(picture) == 3 * height * width > 0:
        facts["picture"] = _address(np.frombuffer(picture, np.uint8).reshape(height, width, 3), of_colours=True)
    return facts | {"fields": _fields(spec, payload), "kind": seen.kind, "bounds": seen.bounds, "actions": _actions(seen)}


def _fields(spec: ExperienceSpec, payload: bytes) -> list[dict[str, Any]]:
    fields, offset = [], 0
    for field in spec.visible:
        size = spec.stack * field.row_bytes
        stored = np.frombuffer(payload[offset : offset + size], field.dtype).reshape(spec.stack, *field.shape)
        offset += size
        values = field.decode(stored)
        found = {"name": field.name, "shape": field.shape}
        fields.append(found | (_images(field, values) if len(field.shape) in (2, 3) else _vector(values)))
    return fields


def _images(field: Column, values: np.ndarray) -> dict[str, Any]:
    """A PNG of each frame [H, W] or [C, H, W], oldest first: three channels as colours, others side by side in grey."""
    values = values.astype(np.float32)
    # The values of an image are 0 to 1. Other arrays are shown between the least and the greatest value of the stack.
    low, high = (0.0, 1.0 if field.quantised else 255.0) if field.is_image else (float(values.min()), float(values.max()))
    pixels = ((values - low) / ((high - low) or 1.0) * 255).clip(0, 255).round().astype(np.uint8)
    return {"frames": [_address(frame) for frame in pixels]}


def _address(frame: np.ndarray, of_colours: bool = False) -> str:
    """A PNG of [H, W], [C, H, W], or `of_colours` [H, W, 3] RGB."""
    from actors.drawing import png_of  # imports OpenCV, whose memory a server needs only for pictures

    if frame.ndim == 3 and not of_colours:
        frame = np.moveaxis(frame, 0, -1) if len(frame) == 3 else np.hstack(list(frame))
    return f"data:image/png;base64,{base64.b64encode(png_of(frame)).decode()}"


def _vector(values: np.ndarray) -> dict[str, Any]:
    """The first entries, [entries][stack], oldest first."""
    entries = values.reshape(len(values), -1).T
    return {"entries": entries[:MOST_ENTRIES].astype(float).tolist(), "more": max(len(entries) - MOST_ENTRIES, 0)}


def _actions(seen: Seen) -> list[dict[str, Any]]:
    """Name and figure of each action; no figure where it is forbidden."""
    names = [*seen.actions, *map(str, range(len(seen.actions), len(seen.figures)))]
    return [
        {"name": name, "figure": figure if np.isfinite(figure) else None}
        for name, figure in zip(names, seen.figures, strict=False)
    ]
