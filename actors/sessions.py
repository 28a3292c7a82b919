"""Steps that programs decide on: an actor to which they connect, each with environments of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import gymnasium

from actors.collector import RECENT_EPISODES, Collector, View
from actors.config import ActorSettings, EnvConfig
from actors.envs.base import Program, ProgramLeft
from actors.envs.make import open_family, wrap
from actors.envs.spec import experience_spec
from actors.episodes import Episode
from actors.errors import EnvError
from learner.weights.follow import WeightsInUse
from transport.experience import Chunk
from transport.messages.control import Assignment
from transport.metrics import Metrics
from transport.text import say

WAIT_SECONDS = 0.01  # for chunks, between two polls of the actor's sockets
MOST_LINES = 5  # about programs, in a minute
MINUTE = 60.0


class ComputeLock:
    """Lets one thread compute at a time: the actor's, except while it waits in `step`, or that of a program, except while it
    waits for its program. So collectors, their inference and metrics need no locks. It begins as the actor's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Lets other threads compute during the block."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()


class SessionCollector:
    """A Collector for each program that is connected, and their chunks. Has Collector's methods."""

    def __init__(self, settings: ActorSettings, place: Assignment, metrics: Metrics, make: Callable[..., Collector]) -> None:
        """Programs may connect after `reset`. `make`: Collector, with the arguments that are the same for all programs."""
        self._settings, self._place, self._metrics, self._make = settings, place, metrics, make
        self._computing, self._arrived = ComputeLock(), threading.Event()
        self._chunks: list[Chunk] = []
        self._free = list(range(settings.process.actors.envs_per_actor))  # numbers of environments that no program has
        self.programs: dict[Program, tuple[Collector, list[int]]] = {}
        self._recent: deque[Episode] = deque(maxlen=RECENT_EPISODES)
        self._newest: Collector | None = None
        self._follower: WeightsInUse
        self._lines = deque[float](maxlen=MOST_LINES)
        self._next_flush = 0.0
        self._ending = False

    def take_place(self, place: Assignment) -> None:
        self._place = place
        for collector, numbers in self.programs.values():
            collector.take_place(self._place_of(numbers))

    def take_level(self, place: Assignment) -> None:
        """Programs have no curriculum."""

    def reset(self) -> None:
        """Lets programs connect. Raises EnvError."""
        family = open_family(self._settings.env)
        self.listener = family.listen(self._settings.index, self._serve, lambda why: self._tell(f"refused a connection: {why}"))

    def step(self, follower: WeightsInUse) -> list[Chunk]:
        """The chunks that are complete; waits for a moment where there are none."""
        self._follower = follower
        with self._computing.released():
            self._arrived.wait(WAIT_SECONDS)
        self._arrived.clear()
        if (now := time.monotonic()) >= self._next_flush:  # a program that is silent must not keep steps back
            seconds = self._settings.process.actors.chunk_seconds
            self._next_flush = now + seconds / 2
            for collector, numbers in self.programs.values():
                self._keep(collector.chunker.late(), numbers)
        return self._take()

    def flush(self) -> Iterable[Chunk]:
        for collector, numbers in self.programs.values():
            self._keep(collector.flush(), numbers)
        return self._take()

    def drain(self, version: int) -> Iterable[Chunk]:
        self._ending = True
        for program in list(self.programs):
            self._end(program, version)
            program.dismiss("the actor ends", again=True)
        return self._take()

    def close(self) -> None:
        with self._computing.released():
            self.listener.close()

    def look(self) -> View | None:
        """Of the program that has been connected longest; None where none is."""
        return next((collector.look() for collector, _ in self.programs.values()), None)

    def steerable(self) -> Collector:
        """Raises EnvError."""
        raise EnvError("programs that have connected decide on its steps, so a person cannot")

    def measure(self) -> None:
        self._metrics.gauge("programs", len(self.programs))
        if self._newest is not None:
            self._newest.measure()

    def _serve(self, program: Program) -> None:
        """Steps a program's environments until it leaves, in a thread of its own."""
        with self._computing:
            try:
                collector, numbers = self._let_in(program)
                collector.reset()
                while program in self.programs:
                    self._keep(collector.step(self._follower), numbers)
            except ProgramLeft as error:
                why = str(error)
            except Exception as error:  # of a wrapper, for example: the other programs go on
                why = str(program.refuse(str(error) if isinstance(error, EnvError) else f"{type(error).__name__}: {error}"))
            else:
                return
            if program in self.programs:
                self._end(program, self._follower.version)
                self._tell(f"{program.name} has left: {why}")

    def _take(self) -> list[Chunk]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def _keep(self, chunks: Iterable[Chunk], numbers: list[int]) -> None:
        """Chunks of the environments `numbers`, which count from 0 in their collector."""
        self._chunks.extend(replace(chunk, stream=numbers[chunk.stream]) for chunk in chunks)
        if self._chunks:
            self._arrived.set()

    def _let_in(self, program: Program) -> tuple[Collector, list[int]]:
        """Raises EnvError, ProgramLeft."""
        settings, count = self._settings, program.environments
        if self._ending:
            raise program.refuse("the actor is ending", again=True)
        if count > len(self._free):
            most = settings.process.actors.envs_per_actor
            why = f"{len(self._free)} of the {most} environments are free: --actors.envs-per-actor takes more"
            raise program.refuse(why, again=count <= most)  # others will leave, or it itself, before its network broke
        self._check_spaces(program)
        program.waiting = self._computing.released
        numbers = [self._free.pop(0) for _ in range(count)]

        def make(config: EnvConfig, *, evaluation: bool) -> gymnasium.Env:
            return wrap(program.make(), config)

        try:
            place = self._place_of(numbers)
            collector = self._make(place=place, environments=count, make=make, recent=self._recent)
        except BaseException:
            self._free.extend(numbers)
            raise
        self.programs[program] = collector, numbers
        self._newest = collector
        many = f"{count} environments" if count > 1 else "an environment"
        self._tell(f"{program.name} has connected with {many}")
        return collector, numbers

    def _check_spaces(self, program: Program) -> None:
        """Raises ProgramLeft where they are not the run's, EnvError where they are supported by none."""
        spec = self._settings.spec
        own = experience_spec(wrap(program.make(), self._settings.env), self._settings.env, "none")
        (given, wanted) = ([(field.name, field.shape, field.dtype) for field in one.fields] for one in (own, spec))
        if given != wanted:
            raise program.refuse(f"its observation is {given}, the run's {wanted}")
        if own.action != spec.action:
            raise program.refuse(f"its actions are {own.action}, the run's {spec.action}")

    def _end(self, program: Program, version: int) -> None:
        """Sends what it has played, and frees its environments. An episode that it has not finished is cut."""
        collector, numbers = self.programs.pop(program)
        self._keep(collector.drain(version), numbers)
        self._free = sorted([*self._free, *numbers])
        if unfinished := sum(collector.env.progress(k)[0] > 0 for k in range(len(numbers))):
            self._metrics.count("broken_episodes", unfinished)

    def _place_of(self, numbers: list[int]) -> Assignment:
        """The exploration and the seeds of a program are those of its first environment's number and the ones after it."""
        place, first = self._place, numbers[0]
        offset = place.offset + first
        return Assignment(offset, max(place.environments, offset + len(numbers)), place.first_seed + first)

    def _tell(self, line: str) -> None:
        """A line in the log; one of many in a minute is left out."""
        now = time.monotonic()
        if len(self._lines) == MOST_LINES and now - self._lines[0] < MINUTE:
            return
        self._lines.append(now)
        say(line)
