"""The description of a policy: its tensors and, where numpy knows every part, the program that numpy runs.

The pre-flight writes it into the run's folder; actors and evaluation read it and never ask what kind of network it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from learner.weights.checkpoint import CheckpointError, Stateful
from transport.files.documents import Damaged, decode, read_bytes
from transport.run_dir import RunDir


class Op(Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a program; learner/program/layers.py says what each kind does."""

    kind: str
    tensors: tuple[str, ...] = ()  # names in the policy's state_dict
    options: dict[str, Any] = {}


class PolicyDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """All that is known of a policy without building it."""

    tensors: dict[str, tuple[tuple[int, ...], str]]  # of its state_dict: (shape, numpy dtype name); load() accepts exactly these
    program: tuple[Op, ...] | None = None  # None: some part is unknown to numpy
    state: dict[str, tuple[int, ...]] = {}  # shapes of the recurrent state, without the batch axis
    unknown: str = ""  # the first part that numpy does not know

    @property
    def most_bytes(self) -> int:
        """Bytes of all tensors, without their names."""
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self.tensors.values())

    def check(self, weights: Mapping[str, np.ndarray]) -> None:
        """Raises CheckpointError, in one line, for weights that are not those of this policy."""
        if self.tensors.keys() != weights.keys():
            odd = sorted(self.tensors.keys() ^ weights.keys())[0]
            raise CheckpointError(
                f"weights of another network: they {'lack' if odd in self.tensors else 'have an unknown'} {odd}"
            )
        for name, (shape, dtype) in self.tensors.items():
            array = weights[name]
            if (array.shape, array.dtype.name) != (shape, dtype):
                theirs, ours = f"{array.dtype.name} {list(array.shape)}", f"{dtype} {list(shape)}"
                raise CheckpointError(f"weights of another network: {name} is {theirs}, not {ours}")


def check_description(run_dir: RunDir, policy: Stateful) -> None:
    """Raises ValueError where the run's actors expect other tensors than this policy has, and so would reject its weights: the
    network's code has been edited since the run was started."""
    if not run_dir.policy.is_file():  # a run of an older version
        return
    expected, found = read_description(read_bytes(run_dir.policy)).tensors, tensors_of(policy)
    if expected != found:
        names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        raise ValueError(
            f"the network differs from the one that this run was started with ({names[0]}): its code has been edited since; "
            "undo the edit, or start another run"
        )


def tensors_of(module: Stateful) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shapes and dtypes of a module's weights, as a description has them."""
    found = module.state_dict().items()
    return {name: (tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in found}


def read_description(text: bytes) -> PolicyDescription:
    """Decodes a description. Raises CheckpointError, in one line."""
    try:
        return decode(text, PolicyDescription)
    except Damaged as error:
        raise CheckpointError(f"not the description of a policy: {error}") from error
