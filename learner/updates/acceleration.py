"""Computes a step eagerly, with a compiled loss, or by launching a recorded CUDA graph.

Compiling and recording serve steps of one loss and one batch size. Where one fails, a log line says why and steps stay eager.
"""

from __future__ import annotations

import time
from typing import Any

from learner.devices.capabilities import capabilities
from learner.updates.base import LearnerProcess, LossFunction, Outcome, Stepper
from learner.updates.compile import CompileError, cache_in, compile_loss
from learner.updates.graphs import RecordedStep, RecordError, record
from learner.updates.trees import count, part, shapes

WARM_STEPS = 20  # of one kind before a graph is recorded: kernels have been chosen by then, and Adam has its moments


class Acceleration:
    """Computes each step of one optimiser in the fastest available way."""

    def __init__(self, optimiser: Stepper, process: LearnerProcess, recordable: bool) -> None:
        """`recordable`: as Runtime.optimiser's."""
        self._optimiser, self._process = optimiser, process
        able, graphs, alone = capabilities(process.device), process.config.graphs, process.group.size == 1
        # With float16 the host keeps the loss scale. Recording may fail in one of several processes, which would then differ.
        automatic = graphs == "auto" and recordable and able.graphs and alone and optimiser.precision != "float16"
        self._compile, self._record = process.config.compile, automatic or (graphs == "on" and alone)  # still to be tried
        self.may_record = self._record and able.graphs
        self._asked_for = self._compile or graphs == "on"
        if self._compile and not able.compiles:
            process.group.say(f"warning: --learner.compile is ignored: torch.compile does not support {able.name}")
            self._compile = False
        if graphs == "on" and not alone:
            process.group.say("warning: --learner.graphs is ignored: it supports only one learner process")
        self._kind: tuple[Any, ...] | None = None  # of the last step: its loss, and the shapes of its inputs
        self._same_kind = 0  # steps of that kind in a row before it
        self._recorded: tuple[tuple[Any, ...], RecordedStep] | None = None
        self._compiled: tuple[tuple[Any, ...], LossFunction] | None = None
        self._explained = False

    def step(self, loss: LossFunction, inputs: tuple[Any, ...]) -> Outcome:
        """inputs: (items, *shared)."""
        if not (self._compile or self._record or self._recorded):
            return self._optimiser.step_eagerly(loss, inputs)
        kind = (loss, shapes(inputs))
        if self._recorded is not None and kind == self._recorded[0]:
            return self._recorded[1](inputs)
        self._count(kind)
        if self._compile and self._same_kind:  # the first step has determined the micro-batches
            self._compile = False
            self._try_to_compile(loss, inputs)
        if self._record and self._same_kind >= WARM_STEPS:
            self._record = False
            return self._try_to_record(kind, loss, inputs)
        return self._optimiser.step_eagerly(loss, inputs)

    def compiled(self, loss: LossFunction, items: Any) -> LossFunction:
        """The compiled loss where there is one for items of these shapes, otherwise `loss`."""
        if self._compiled is None or self._compiled[0] != (loss, shapes(items)):
            return loss
        return self._compiled[1]

    def forget_graph(self) -> None:
        """Discards the recorded graph; another is recorded after WARM_STEPS."""
        if self._recorded is not None:
            self._recorded, self._record = None, True
        self._kind, self._same_kind = None, 0

    def _count(self, kind: tuple[Any, ...]) -> None:
        if self._kind is not None and kind != self._kind and self._asked_for and not self._explained:
            self._explained = True
            self._process.group.say(
                "warning: --learner.compile and --learner.graphs serve updates of one batch size; the others run eagerly"
            )
        self._same_kind = self._same_kind + 1 if kind == self._kind else 0
        self._kind = kind

    def _try_to_compile(self, loss: LossFunction, inputs: tuple[Any, ...]) -> None:
        """Compiles the loss for micro-batches of this size; sends heartbeats meanwhile."""
        optimiser, process, group = self._optimiser, self._process, self._process.group
        items = part(inputs[0], 0, -(-count(inputs[0]) // optimiser.parts))
        group.say("compiling the update, which may take minutes …")
        begun = time.monotonic()
        process.gauge("compiling", 1)
        try:
            with cache_in(process.compiled):
                compiled = compile_loss(optimiser, loss, (items, *inputs[1:]), process.waiting)
        except CompileError as error:
            if process.waiting():
                group.warn(f"warning: the update is not compiled ({error}); training continues as without --learner.compile")
            return
        finally:
            process.gauge("compiling", 0)
        self._compiled = (loss, shapes(items)), compiled
        group.say(f"compiled the update in {time.monotonic() - begun:.0f} s")

    def _try_to_record(self, kind: tuple[Any, ...], loss: LossFunction, inputs: tuple[Any, ...]) -> Outcome:
        """Takes this step, and records a graph for the steps that follow."""
        group = self._process.group
        try:
            outcome, recorded = record(self._optimiser, loss, inputs)
        except RecordError as error:
            warning = "" if self._process.config.graphs == "auto" else "warning: "
            group.say(f"{warning}updates are not recorded ({error}); training continues as without --learner.graphs")
            self.may_record = False
            return self._optimiser.step_eagerly(loss, inputs)
        self._recorded = kind, recorded
        group.say("updates are launched as one recorded graph from now on")
        return outcome
