"""Every operation of the shipped networks' updates, recorded while they are made on the CPU, and compared with a device's."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.device.updates import CASES, learning
from learner.devices.capabilities import capabilities

Run = Callable[["Operation"], Any]  # does an operation somewhere; gives everything that it answers or changes
TIMED_SECONDS, MOST_REPEATS = 0.02, 200
MOST_CHANGES = 10  # of what an operation does to its own arguments: done for ever, a number leaves its range
# Relative to the norm of what the CPU says. Products of float32 may be made of TF32, which has a mantissa of 10 bits.
TOLERANCES = {torch.float32: 5e-3, torch.float64: 5e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}
ROUNDING = 1e-6  # of what goes in: an answer that is nothing but rounding has no size to compare with
CPU = torch.device("cpu")
# Cases of updates.py that together make every operation of the shipped networks.
RECORDED = (
    "dqn image",
    "dqn batchnorm",
    "dqn vector",
    "dqn unscaled",
    "ppo vector",
    "ppo continuous",
    "ppo image",
    "sac goals",
)
UNINITIALISED = ("empty", "new_empty", "_unsafe_view", "set_", "resize")


@dataclass
class Operation:
    """One that was called with tensors of these shapes and types. `calls` in an update, by network."""

    function: Any  # an OpOverload
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    calls: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As torch calls it, without the overload."""
        return str(self.function.overloadpacket._qualified_op_name)

    @property
    def changes(self) -> bool:
        """True where it writes into its arguments."""
        return bool(self.function._schema.is_mutable)

    @property
    def random(self) -> bool:
        """True where its answer is drawn at random."""
        return torch.Tag.nondeterministic_seeded in self.function.tags

    @property
    def scale(self) -> float:
        """The product of the largest numbers in its arguments."""
        leaves = pytree.tree_leaves((self.arguments, self.named))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel()]
        return math.prod(float(tensor.float().abs().max()) for tensor in tensors) if len(tensors) <= 4 else 1.0

    def on(self, device: torch.device) -> Callable[[], Any]:
        """Copies its arguments to a device; what is given back does it there and gives all that it answers or changes."""

        def place(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.clone().to(device)
            return device if isinstance(value, torch.device) else value

        arguments, named = pytree.tree_map(place, (self.arguments, self.named))

        def do() -> Any:
            answer = self.function(*arguments, **named)
            return (answer, arguments, named) if self.changes else answer

        return do


class Recorder(TorchDispatchMode):
    """Keeps one example of each operation, its arguments copied before they change. Views and mere allocations are left out."""

    def __init__(self, found: dict[Any, Operation], network: str) -> None:
        """Adds to `found`, under the network's name."""
        super().__init__()
        self._found, self._network = found, network

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if function.namespace == "aten" and not _is_view(function) and not function.__name__.startswith(UNINITIALISED):
            key = (function, *map(_description, pytree.tree_leaves((args, named))))
            if key not in self._found:
                self._found[key] = Operation(function, *pytree.tree_map_only(Tensor, _copy, (args, named)))
            calls = self._found[key].calls
            calls[self._network] = calls.get(self._network, 0) + 1
        return function(*args, **named)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _is_view(function: Any) -> bool:
    return any(answer.alias_info is not None and not answer.alias_info.is_write for answer in function._schema.returns)


def _description(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.dtype, value.stride())
    return repr(value)


def recorded(device: torch.device, items: int, say: Callable[[str], None]) -> list[Operation]:
    """The operations of one update of every case in RECORDED, made on the CPU: in float32, those of images also in bfloat16 where
    the device has it; and those of a step of the device's own Adam."""
    found: dict[Any, Operation] = {}
    able = capabilities(device)
    for name in RECORDED:
        for precision in ("float32", "bfloat16") if CASES[name].images else ("float32",):
            if precision in able.precisions:
                say(f"recording {name} in {precision} …")
                record(name, items, precision, found)
    if able.adam != capabilities(CPU).adam:
        for key in [key for key, one in found.items() if "adam" in one.name]:
            del found[key]
        record_adam(able.adam, found)
    return list(found.values())


def record(name: str, items: int, precision: str, found: dict[Any, Operation]) -> None:
    """Adds the operations of one update of a case; of an algorithm that learns from rollouts: of a whole rollout."""
    one = learning(CASES[name], CPU, items=items, precision=precision, graphs="off")
    one.update.update(one.batch)  # the first also looks at how much memory it takes
    with Recorder(found, name if precision == "float32" else f"{name}, {precision}"):
        one.update.update(one.batch)


def record_adam(kind: str, found: dict[Any, Operation]) -> None:
    """Adds the operations of a step of that kind."""
    parameters = [torch.randn(shape, requires_grad=True) for shape in ((32, 4, 8, 8), (512, 3136), (512,))]
    adam = torch.optim.Adam(parameters, fused=kind == "fused", foreach=kind == "foreach")
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    with Recorder(found, f"Adam, {kind}"):
        adam.step()


@dataclass(frozen=True)
class Outcome:
    """The outcome of an operation on a device. `seconds`: on the CPU, on the device."""

    operation: Operation
    verdict: Literal["equal", "differs", "falls back", "fails"]
    reason: str = ""
    seconds: tuple[float, float] = (0.0, 0.0)


def compare(operation: Operation, device: torch.device, run: Run | None = None, seconds: float = TIMED_SECONDS) -> Outcome:
    """Does an operation on the CPU and on the device, compares what they answer, and times both.

    `run` does it once, instead of the device. Where the device is the CPU it is timed once.
    """
    expected = operation.on(CPU)()
    try:
        with fallbacks() as fell:
            answer = run(operation) if run is not None else operation.on(device)()
            apart = "" if operation.random else difference(expected, answer, operation.scale)
    except (RuntimeError, NotImplementedError, TypeError) as error:  # TypeError: a type that a device does not have
        return Outcome(operation, "fails", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    cpu = timed(operation, CPU, seconds)
    times = (cpu, cpu if device.type == "cpu" else timed(operation, device, seconds))
    if fell:
        return Outcome(operation, "falls back", fell[0], times)
    return Outcome(operation, "differs" if apart else "equal", apart, times)


@contextmanager
def fallbacks() -> Iterator[list[str]]:
    """Collects what a backend says when it leaves an operation to the CPU: DirectML and MPS warn, by default only once."""
    said: list[str] = []
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
    finally:
        torch.set_warn_always(before)
    said += [str(each.message).split("\n")[0][:160] for each in caught if "fall back" in str(each.message).lower()]


def difference(expected: Any, answer: Any, scale: float) -> str:
    """How far two answers are apart, in words; empty where each tensor is within the tolerance of its type. `scale`: of a value
    that the operation's arguments could make."""
    ours, theirs = pytree.tree_leaves(expected), pytree.tree_leaves(answer)
    if len(ours) != len(theirs):
        return f"{len(theirs)} values instead of {len(ours)}"
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, Tensor):
            apart = _apart(one, other.cpu(), scale)
        else:
            apart = "" if one == other or isinstance(one, torch.device) or one != one else f"{other} instead of {one}"
        if apart:
            return apart
    return ""


def _apart(one: Tensor, other: Tensor, scale: float) -> str:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{tuple(other.shape)} {other.dtype} instead of {tuple(one.shape)} {one.dtype}"
    if not one.is_floating_point():
        wrong = int((one != other).sum())
        return f"{wrong} of {one.numel()} values differ" if wrong else ""
    wide, also = one.double(), other.double()
    sound = wide.isfinite()
    if not torch.equal(sound, also.isfinite()):
        return "not finite elsewhere"
    wide, also = wide[sound], also[sound]
    error, norm = float((wide - also).norm()), float(wide.norm())
    limit = max(TOLERANCES[one.dtype] * norm, ROUNDING * scale * one.numel() ** 0.5)
    return f"relative error {error / max(norm, 1e-30):.1e}" if error > limit else ""


def timed(operation: Operation, device: torch.device, seconds: float) -> float:
    """Seconds that one takes, of several in a row."""
    do, wait = operation.on(device), waiter(device)
    do()
    wait()
    begun = time.perf_counter()
    do()
    wait()
    once = max(time.perf_counter() - begun, 1e-7)
    repeats = max(1, min(int(seconds / once), MOST_CHANGES if operation.changes else MOST_REPEATS))
    begun = time.perf_counter()
    for _ in range(repeats):
        do()
    wait()
    return (time.perf_counter() - begun) / repeats


def waiter(device: torch.device) -> Callable[[], None]:
    """A function that waits until the device has done all that it was given."""
    module = getattr(torch, device.type, None)
    if module is not None and hasattr(module, "synchronize"):
        return module.synchronize  # type: ignore[no-any-return]

    def read_back() -> None:  # DirectML
        torch.zeros(1, device=device).cpu()

    return read_back


def by_name(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes of one operation with all its shapes, those that take the CPU longest in an update first."""
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.operation.name, []).append(outcome)
    return dict(sorted(found.items(), key=lambda item: -sum(per_update(each)[0] for each in item[1])))


def per_update(outcome: Outcome, network: str | None = None) -> tuple[float, float]:
    """Seconds in an update of a network, or of all networks together: on the CPU, on the device."""
    calls = outcome.operation.calls
    times = sum(calls.values()) if network is None else calls.get(network, 0)
    return times * outcome.seconds[0], times * outcome.seconds[1]
