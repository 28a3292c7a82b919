"""The protocols of learning: batches, the loss, the optimiser step, and the runtime of the learner process.

An algorithm's `update(batch)` is plain code that calls `optimiser.step(loss, items)`. The optimiser decides how the step is
computed: micro-batches, mixed precision, several processes, torch.compile, CUDA graphs.

Where the engine computes (learner/engine/), batches and outcomes hold numpy arrays in place of tensors. So no torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from learner.parallel.base import Group

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn
    from typing_extensions import TypeVar as TypeVarWithDefault

    from learner.config import LearnerConfig
    from learner.updates.schedule import Collected
    from transport.experience import ExperienceSpec

    ArrayT = TypeVarWithDefault("ArrayT", default=Tensor)
else:
    ArrayT = TypeVar("ArrayT")
Tensors = dict[str, "Tensor"]
ModuleT = TypeVar("ModuleT", bound="nn.Module")


class Transitions(NamedTuple, Generic[ArrayT]):
    """B sampled transitions on the device, as replay gathered them: a window of rows around each step t, and indices into it.

    A window has W = stack + n_step rows, t-(stack-1) … t+n. m = min(n, steps to the episode's boundary).
    """

    observation: dict[str, ArrayT]  # {name: [B, W, *shape]} as stored
    observation_index: ArrayT  # [B, stack] int64 rows of the window: the stack of observation_t, oldest first
    next_index: ArrayT  # [B, stack] int64 rows of the window: the stack of observation_{t+m}
    action: ArrayT  # [B] int64, or [B, A] float32
    reward: ArrayT  # [B, n] float32: r_t … r_{t+n-1}; entries from m on are undefined and may be NaN
    steps: ArrayT  # [B] int64: m, at least 1
    terminated: ArrayT  # [B] bool: the episode terminated within the m steps
    probability: ArrayT  # [B] float32: the probability with which the item was drawn
    extras: dict[str, ArrayT]  # {name: [B, …]}: the spec's further columns, as stored


class Chunks(NamedTuple, Generic[ArrayT]):
    """B whole chunks on the device: every column as stored, [B, rows, …] with rows = spec.rows(L).

    Row history + i holds item i. The row after the last item, history + length, serves only to bootstrap from. A row with
    valid = False has no action: it holds the last observation of a truncated episode. Rows past these are undefined.
    """

    observation: dict[str, ArrayT]  # {name: [B, rows, *shape]} as stored
    action: ArrayT  # [B, rows] int64, or [B, rows, A] float32
    reward: ArrayT  # [B, rows] float32
    terminated: ArrayT  # [B, rows] bool
    truncated: ArrayT  # [B, rows] bool
    valid: ArrayT  # [B, rows] bool
    episode_step: ArrayT  # [B, rows] int64
    policy_version: ArrayT  # [B, rows] int32
    length: ArrayT  # [B] int64: items of each chunk, at most L
    probability: ArrayT  # [B] float32: the probability with which the chunk was drawn; 1 in a rollout
    extras: dict[str, ArrayT]  # {name: [B, rows, …], or [B, …] where a chunk has it once}: the spec's further columns, as stored


Batch = Transitions | Chunks


class Loss(NamedTuple):
    """The result of a loss function for b items."""

    value: Tensor  # 0-d: a mean over axis 0 of the items, so that micro-batches change nothing
    metrics: Tensors  # 0-d, detached; "ignored" is the fraction of items that are not finite: rollback reads it
    priority: Tensor | None = None  # [b], detached


class Outcome(NamedTuple, Generic[ArrayT]):
    """The result of a step or of a whole update. The next step overwrites the tensors: copy what is kept longer."""

    metrics: dict[str, ArrayT]  # 0-d, on the device
    priorities: ArrayT | None = None  # [B], in the order of the batch


LossFunction = Callable[..., Loss]


class Optimiser(Protocol):
    """Optimises the parameters of the modules that it was made for."""

    def step(self, loss: LossFunction, items: Any, *shared: Any) -> Outcome:
        """One step by `loss(items, *shared)`.

        `items` is a tensor, or a NamedTuple or dict of tensors. It may be split along axis 0 into micro-batches; `shared` is
        never split. The outcome's metrics are those of the loss and `gradient_norm`, before clipping. A step whose gradient is
        not finite is skipped and counted. Raises MemoryError where not even a single item fits into memory.
        """

    def autocast(self) -> AbstractContextManager[object]:
        """The mixed precision of a step, for computations outside of one."""

    def scale_learning_rate(self, share: float) -> None:
        """Multiplies the configured learning rate by `share`, from the next step on."""


class Runtime(Protocol):
    """The learner process, as an update sees it."""

    device: torch.device
    group: Group  # of learner processes; a single process is a group of one
    config: LearnerConfig
    max_policy_lag: int  # versions that a rollout's policy may lag behind

    def to_device(self, module: ModuleT) -> ModuleT:
        """Moves the module to the device, in the memory format that is fastest there."""

    def optimiser(
        self,
        name: str,
        *modules: nn.Module,
        learning_rate: float | None = None,
        rates: Mapping[nn.Module, float] = ...,
        recordable: bool = False,
    ) -> Optimiser:
        """Makes an optimiser for these modules. Checkpoints store it by its name; the steps of the first one count as updates.

        `learning_rate`: None means the configured one. `rates`: learning rates of single modules. `recordable`: the losses
        read only tensors and have no data-dependent branch, so a step may be captured as a CUDA graph without being asked
        for. Raises ValueError.
        """

    def interrupted(self) -> bool:
        """True if the run is stopping. Call it between the steps of a long update, equally often in every process."""


class Backend(Protocol):
    """The runtime as the rest of the learner process sees it: what loop, feed and checkpoints need of the library that computes.

    Two implement it: LearnerRuntime (torch) and EngineRuntime (numpy).
    """

    library: str
    place: str  # the device, as --device names it
    config: LearnerConfig
    group: Group
    max_policy_lag: int
    ending: bool  # True once any process of the group is asked to stop
    collected: Collected

    def follow_schedule(self, counts: Sequence[int]) -> None:
        """Called in each epoch, with feed.steps: sets the learning rates by their schedule."""

    @property
    def first(self) -> Any:
        """The optimiser whose steps are counted as updates."""

    @property
    def precision(self) -> str:
        """That of the updates, as it is shown to users."""

    @property
    def parameters(self) -> int:
        """The number that is trained."""

    def choose_stacking(self, modules: Iterable[Any], spec: ExperienceSpec) -> str:
        """Called once, when the weights are there: tries how stacking frames is faster. Returns a line for the log, or none."""

    def figures(self) -> dict[str, Any]:
        """The learning rate, and the steps that were skipped, in all and in a row."""

    def read(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Metrics as numbers. Waits for the device."""

    def waiting(self) -> bool:
        """Sends a heartbeat; False when the process is asked to stop."""

    def state(self) -> dict[str, Any]:
        """The state of all optimisers, as `NAME/…`: tensors or arrays."""

    def load_state(self, tensors: Mapping[str, Any]) -> None:
        """Restores what state() returned, by either library. Raises ValueError or KeyError for the state of another update."""

    def reset_skips(self) -> None:
        """Resets the counts of steps skipped in a row."""

    def random_state(self) -> dict[str, Any]:
        """The states of the random generators by name, and unchanged that of the other library's, with which that goes on."""

    def set_random_state(self, states: Mapping[str, np.ndarray]) -> None:
        """Restores what random_state() returned, by either library; without a state of its own the generator keeps its state.
        Raises ValueError, KeyError, TypeError or RuntimeError."""

    def random_kept(self) -> AbstractContextManager[None]:
        """Restores the random generators at the end of the block."""

    def clear_cache(self) -> None:
        """Returns cached memory to the device. Call it rarely."""


class Update(Protocol):
    """The learning half of an algorithm, made by Algorithm.update(): networks, optimisers and the update itself."""

    modules: dict[str, Any]  # all modules with weights, torch's or the engine's; "policy" is published to the actors

    @property
    def counters(self) -> dict[str, float]:
        """Saved in checkpoints, restored in place."""

    def update(self, batch: Any) -> Outcome[Any]:
        """Learns from one batch: Transitions or Chunks, as the spec's unit says. Does no I/O; draws from torch's global
        generators, by the engine from its runtime's."""


class LearnerProcess(Protocol):
    """The learner process, as an optimiser sees it."""

    device: torch.device
    config: LearnerConfig

    @property
    def group(self) -> Group: ...

    @property
    def compiled(self) -> Path:
        """The folder of torch.compile's files."""

    def stepped(self, optimiser: Any, items: int) -> None:
        """Called after each step."""

    def waiting(self) -> bool:
        """Sends a heartbeat; False when the process is asked to stop."""

    def gauge(self, name: str, value: float) -> None: ...


class Stepper(Protocol):
    """An optimiser whose losses can be compiled and whose steps can be recorded."""

    device: torch.device
    precision: str
    parameters: list[nn.Parameter]
    buffers: list[Tensor]  # of the modules: a loss may change these
    parts: int  # micro-batches of a batch

    def step_eagerly(self, loss: LossFunction, inputs: tuple[Any, ...]) -> Outcome:
        """Takes a step eagerly; inputs: (items, *shared)."""

    def changed_tensors(self) -> list[Tensor]:
        """All tensors that step_eagerly() changes."""

    def forget_gradient(self) -> None: ...

    def autocast(self) -> AbstractContextManager[object]: ...
