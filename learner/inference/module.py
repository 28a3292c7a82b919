"""Acting by the module itself, in torch, for networks that numpy does not know, and on a GPU.

Large convolutions run in bfloat16 where the device has instructions for it (half the time on a CPU), or in int8 if configured.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor, nn

from learner.devices.capabilities import capabilities, make_current
from learner.devices.capabilities import precision as resolve_precision
from learner.devices.detection import resolve
from learner.devices.errors import DeviceError
from learner.inference import int8
from learner.inference.base import Inference, check_precision
from learner.inference.choice import needs_torch
from learner.inference.program import Program
from learner.networks.base import PolicyModule, large_convolutions
from learner.networks.describe import describe
from learner.networks.parts import Concat, Fields
from learner.weights.checkpoint import load_into
from transport.experience import Columns

CPU = torch.device("cpu")
Weights = Mapping[str, np.ndarray]
Tensors = Mapping[str, Tensor]


# A torso made only of these gives nearly the same results in bfloat16 as in float32.
BFLOAT16_PARTS = (
    nn.Sequential,
    nn.ModuleList,
    Fields,
    Concat,
    nn.Conv2d,
    nn.BatchNorm2d,
    nn.Linear,
    nn.ReLU,
    nn.Tanh,
    nn.Flatten,
)


def open_module(policy: nn.Module, precision: str = "float32", device: str = "cpu") -> Inference:
    """The fastest inference of this file. Raises DeviceError for a device that is not there, or a precision that it lacks."""
    where = resolve(device)
    convolutions = large_convolutions(policy.parameters(), capabilities(where).narrow_kernels)
    if where != CPU:
        make_current(where)
        torch.backends.cudnn.allow_tf32 = False  # float32 is to mean float32
        policy = policy.to(where)
    if precision == "int8":
        if where != CPU:
            raise DeviceError(f"precision int8 is not available for acting on {device}: it is for the CPU")
        int8.check()
        if isinstance(policy, PolicyModule) and int8.supports(policy.body):
            return Module(policy, int8.QuantisedBody(policy.body))
        return Module(policy)
    chosen = resolve_precision("float32" if precision == "auto" and not convolutions else precision, where, convolutions)
    if (
        chosen == "bfloat16"
        and isinstance(policy, PolicyModule)
        and all(type(m) in BFLOAT16_PARTS for m in policy.body.torso.modules())
    ):
        return Module(policy, Bfloat16Body(policy))
    return Module(policy)


def infer_by(policy: nn.Module, precision: str = "float32", rows: int = 1) -> Inference:
    """The inference that an actor of `rows` environments would use for the module's current weights; later changes do not affect
    it. Raises DeviceError."""
    check_precision(precision)
    description = describe(policy)
    slow = needs_torch(description, precision, rows=rows)
    inference = open_module(copy.deepcopy(policy), precision) if slow else Program(description)
    inference.load({name: value.numpy() for name, value in policy.state_dict().items()})
    return inference


def limit_threads(threads: int) -> None:
    """Sets the number of torch's threads in this process."""
    torch.set_num_threads(threads)
    with suppress(RuntimeError):  # it can be set only once, and only before torch has computed anything
        torch.set_num_interop_threads(1)


class Module:
    """A policy's module in evaluation mode. `body`, if there is one, computes the features faster than the policy's own."""

    def __init__(self, policy: nn.Module, body: Bfloat16Body | int8.QuantisedBody | None = None) -> None:
        self._policy, self._body = policy.eval(), body
        self._device = next((value.device for value in policy.state_dict().values()), CPU)
        self.state: Mapping[str, tuple[int, ...]] = policy.body.state if isinstance(policy, PolicyModule) else {}

    @property
    def weights(self) -> Weights:
        return _arrays(self._policy.state_dict())

    def load(self, weights: Weights) -> None:
        load_into(self._policy, dict(weights))
        if self._body is not None:
            self._body.refresh()

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        with torch.inference_mode():
            seen = _tensors(observation, self._device)
            policy = self._policy
            if not isinstance(policy, PolicyModule):
                return policy(seen).cpu().numpy(), {}
            features = policy.body(seen) if self._body is None else self._body(seen)
            after: Tensors = {}
            if policy.body.memory is not None:
                features, after = policy.body.memory(features.float(), _tensors(state, self._device))
            return policy.head_output(features).cpu().numpy(), _arrays(after)


class Bfloat16Body:
    """A copy of a policy's body in bfloat16. Memory and head stay in float32: bfloat16 would round the Q-values of different
    actions to the same number."""

    def __init__(self, policy: PolicyModule) -> None:
        self._source, self._body = policy.body, copy.deepcopy(policy.body).eval()
        self._body.inputs.dtype = torch.bfloat16
        for module in self._body.torso.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.to(torch.bfloat16)

    def refresh(self) -> None:
        """Copies the policy's current weights."""
        with torch.no_grad():
            for own, source in zip(_all(self._body), _all(self._source), strict=True):
                own.copy_(source)

    def __call__(self, observation: Tensors) -> Tensor:
        return self._body(observation)  # type: ignore[no-any-return]


def _all(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _tensors(columns: Columns, device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(rows).to(device) for name, rows in columns.items()}


def _arrays(tensors: Tensors) -> Columns:
    return {name: value.cpu().numpy() for name, value in tensors.items()}
