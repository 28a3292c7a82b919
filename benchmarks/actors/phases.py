"""Where an actor's time goes: its parts timed by the processor's clock, each without the parts inside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from actors.actor import Actor
from actors.envs.vector import EnvsInTurn

PHASES = ("simulator", "wrappers", "forward", "chunker and priorities", "pack and send", "other")


class Stopwatch:
    """Processor seconds of this thread by phase. What is timed within something else counts for itself alone."""

    def __init__(self) -> None:
        """Begins with "other"."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.begun: float | None = None  # when the actor was ready, by time.monotonic
        self._phase = "other"
        self._since = time.thread_time()

    def _enter(self, phase: str) -> str:
        now = time.thread_time()
        self.seconds[self._phase] += now - self._since
        self._since, self._phase, before = now, phase, self._phase
        return before

    def time(self, owner: Any, method: str, phase: str, collect: Callable[[Any], Any] = lambda result: result) -> None:
        """Times an object's method from now on; `collect` is applied to its result within the phase (list, for a generator)."""
        function = getattr(owner, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            before = self._enter(phase)
            try:
                return collect(function(*arguments, **named))
            finally:
                self._enter(before)

        setattr(owner, method, timed)

    def shares(self) -> dict[str, float]:
        """Each phase's share of what has been timed."""
        self._enter(self._phase)
        whole = sum(self.seconds.values())
        return {phase: seconds / whole for phase, seconds in self.seconds.items()}

    def restart(self) -> None:
        """Forgets what has been timed."""
        self._enter(self._phase)
        self.seconds = dict.fromkeys(PHASES, 0.0)


def instrument(actor: Actor, watch: Stopwatch) -> None:
    """Times the parts of an actor, and notes when it is ready. Call this before `run`."""
    collector = actor._collector
    env = collector.env
    watch.time(env, "step", "wrappers")
    simulators = env._simulators
    if isinstance(simulators, EnvsInTurn):
        for single in simulators._envs:
            console = getattr(single.unwrapped, "console", None)
            if console is not None:  # the emulator alone; what is read out of it is a wrapper's work
                watch.time(console, "advance", "simulator")
                watch.time(console, "restore", "simulator")
            else:
                watch.time(single, "step", "simulator")
                watch.time(single, "reset", "simulator")
    else:
        watch.time(simulators, "step", "simulator")
        watch.time(simulators, "reset", "simulator")
    watch.time(collector.policy, "act", "forward")
    watch.time(collector.chunker, "step", "chunker and priorities", list)
    watch.time(collector.agent, "push", "chunker and priorities")
    watch.time(actor, "_send", "pack and send")
    ready = actor._lifetime.ready

    def begin() -> None:
        ready()
        watch.begun = time.monotonic()

    actor._lifetime.ready = begin  # type: ignore[method-assign]
