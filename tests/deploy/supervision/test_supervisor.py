"""Histories: a supervisor with a made-up clock and made-up processes."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from actors.config import ActorsConfig
from deploy.config.run import DeployConfig, RunConfig
from deploy.launch.defaults import usual_hang_seconds
from deploy.places.base import Exit, Usage
from deploy.process_spec import ProcessSpec
from deploy.supervision.processes import STOP_ORDER, ProcessState, topology
from deploy.supervision.supervisor import LEAVE_SECONDS, MOST_EXTENSIONS, STARTS_PER_TURN, Supervisor
from transport.lifetime import HOPELESS_STATUS
from transport.messages.control import Progress

SPECS = (
    ProcessSpec("replay", "replay", "replay", (), vital=True),
    ProcessSpec("learner", "learner", "learner", (), needs=("replay",), vital=True),
    ProcessSpec("actor-0", "actor", "actors", (), needs=("learner",)),
    ProcessSpec("actor-1", "actor", "actors", (), needs=("learner",)),
)
EVALUATOR = ProcessSpec("evaluator", "evaluator", "actors.evaluation.evaluator", (), needs=("learner",), dispensable=True)

LEAK = "out of memory: 312 MB of 300 MB (actors.memory_bytes)"


@dataclass
class FakeProcess:
    incarnation: int
    pid: int = 100  # of all of them, as on several machines
    deaf: bool = False  # does not end when asked
    immortal: bool = False
    ended: Exit | None = None
    fault: str = ""
    host: str = ""
    away: bool = False
    adopted: bool = False

    def poll(self) -> Exit | None:
        return self.ended

    def ask(self) -> None: ...

    def usage(self) -> Usage:
        return Usage()

    def kill(self) -> None:
        if not self.immortal and self.ended is None:
            self.ended = Exit(-9)


@dataclass
class World:
    """The outside of a supervisor: time, processes, and what it said."""

    config: DeployConfig = field(default_factory=DeployConfig)
    specs: tuple[ProcessSpec, ...] = SPECS
    now: float = 0.0
    lines: list[str] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    processes: dict[str, FakeProcess] = field(default_factory=dict)
    deaf: tuple[str, ...] = ()
    immortal: tuple[str, ...] = ()
    mute: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    full: bool = False  # no place has room
    without_room: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(
            self.specs,
            self.config,
            clock=lambda: self.now,
            spawn=self.spawn,
            ask=self.ask,
            say=self.lines.append,
            jitter=lambda: 1.0,
        )

    def spawn(self, spec: ProcessSpec) -> FakeProcess | None:
        if self.full or spec.name in self.without_room:
            return None
        if spec.name in self.broken:
            raise OSError("no more processes")
        incarnation = 100 + len(self.events)
        process = FakeProcess(incarnation, deaf=spec.name in self.deaf, immortal=spec.name in self.immortal)
        self.processes[spec.name] = process
        self.events.append((self.now, f"start {spec.name}"))
        return process

    def ask(self, slot: ProcessState) -> None:
        self.events.append((self.now, f"ask {slot.name}"))
        if not self.processes[slot.name].deaf:
            self.processes[slot.name].ended = Exit(0)

    def progress(self, name: str, state: str = "ready", incarnation: int | None = None, **record: float) -> None:
        number = self.processes[name].incarnation if incarnation is None else incarnation
        self.supervisor.on_progress(Progress(name, number, state, 1, record))  # type: ignore[arg-type]

    def run(self, seconds: float, step: float = 0.1, saving: str = "") -> None:
        """Lets time pass; each process at work, but for the mute, reports at each step. So does the one that is `saving`."""
        end = self.now + seconds
        while self.now < end and not self.supervisor.finished:
            self.supervisor.turn()
            for slot in self.supervisor.slots:
                if (
                    (slot.state == "ready" or slot.name == saving)
                    and slot.name not in self.mute
                    and self.processes[slot.name].ended is None
                ):
                    self.progress(slot.name)
            self.now = round(self.now + step, 6)

    def bring_up(self) -> None:
        for name in [spec.name for spec in self.specs]:
            self.run(0.2)
            self.progress(name)
        assert self.supervisor.all_ready

    def die(self, name: str, code: int = -9, words: str = "", explained: bool = False) -> None:
        self.processes[name].ended = Exit(code, words, explained=explained)

    def slot(self, name: str) -> ProcessState:
        return next(slot for slot in self.supervisor.slots if slot.name == name)

    @property
    def asked(self) -> list[str]:
        """The processes that were asked to end, in order."""
        return [what.removeprefix("ask ") for _, what in self.events if what.startswith("ask")]

    def starts(self, name: str) -> list[float]:
        return [when for when, what in self.events if what == f"start {name}"]


def actor(index: int) -> ProcessSpec:
    return ProcessSpec(f"actor-{index}", "actor", "actors", (), needs=("learner",))


def up(config: DeployConfig | None = None, specs: tuple[ProcessSpec, ...] = SPECS, **world: Any) -> World:
    """A run that is at work."""
    made = World(config or DeployConfig(), specs, **world)
    made.bring_up()
    return made


def servers_up(**world: Any) -> World:
    """A run whose actors have just been started."""
    made = World(**world)
    for name in ("replay", "learner"):
        made.run(0.2)
        made.progress(name)
    made.run(0.2)
    return made


# ---- starting and replacing


def test_each_role_starts_when_those_it_needs_are_ready() -> None:
    world = World()
    world.run(5)
    assert [what for _, what in world.events] == ["start replay"]
    world.progress("replay", "starting")
    world.run(1)
    assert len(world.events) == 1
    world.progress("replay")
    world.run(1)
    assert [what for _, what in world.events] == ["start replay", "start learner"]
    world.progress("learner")
    world.run(1)
    assert [what for _, what in world.events[2:]] == ["start actor-0", "start actor-1"]


def test_a_few_processes_are_started_at_a_time_so_that_signals_are_read_between() -> None:
    world = World(specs=(*SPECS[:2], *(actor(index) for index in range(50))))
    for name in ("replay", "learner"):
        world.run(0.2)
        world.progress(name)
    before = len(world.events)
    world.supervisor.turn()
    assert len(world.events) - before == STARTS_PER_TURN
    for _ in range(50 // STARTS_PER_TURN):
        world.supervisor.turn()
    assert len(world.events) - before == 50


def test_a_killed_actor_is_replaced_at_once_and_the_log_says_why() -> None:
    world = up()
    world.die("actor-1")
    killed = world.now
    world.run(0.5)
    assert world.starts("actor-1")[-1] - killed <= 0.2
    assert "actor-1 died (killed by SIGKILL); starting again" in world.lines
    assert world.slot("actor-1").restarts == 1 and world.slot("actor-1").last_exit == "killed by SIGKILL"
    assert not world.supervisor.stopping and len(world.starts("actor-0")) == 1


def test_a_crash_loop_backs_off_then_the_process_is_abandoned_and_the_rest_goes_on() -> None:
    world = up()
    for _ in range(1 + world.config.restarts):
        world.die("actor-0", 1, "ValueError: boom")
        world.run(70, step=0.5)
    assert world.slot("actor-0").state == "failed"
    assert "actor-0 died (exit 1: ValueError: boom); abandoned after 6 restarts" in world.lines
    assert world.slot("actor-1").state == "ready" and not world.supervisor.stopping


def test_the_pauses_between_restarts_double_up_to_a_minute_however_many_there_were() -> None:
    world = up(DeployConfig(restarts=1_000_000))
    pauses = []
    for _ in range(9):
        died = world.now
        world.die("actor-0", 1)
        while world.processes["actor-0"].ended is not None:
            world.run(0.1)
        pauses.append(world.starts("actor-0")[-1] - died)
    assert pauses == pytest.approx([0, 1, 2, 4, 8, 16, 32, 60, 60], abs=0.25)
    world.slot("actor-0").failures = 2_000.0  # one a minute for a day and a half
    world.die("actor-0", 1)
    world.run(1)
    assert world.slot("actor-0").state == "restarting" and "starting again in 60.0 s" in world.lines[-1]


def test_work_between_them_makes_up_for_deaths() -> None:
    world = up(DeployConfig(restarts=1))
    for _ in range(20):
        world.run(6)
        world.die("actor-0")
        world.run(0.5)
        assert world.slot("actor-0").state == "starting"
        world.progress("actor-0")
    assert world.slot("actor-0").restarts == 20


def test_a_leak_that_takes_seconds_is_a_crash_loop_and_one_that_takes_hours_is_not() -> None:
    world = up()
    for worked, failures in [(5, 1.0), (5, 1.9), (5, 2.8), (3600, 1.0)]:
        world.run(worked, step=0.5)
        world.supervisor.end(world.slot("actor-0"), LEAK)
        world.run(0.5)
        assert world.slot("actor-0").failures == pytest.approx(failures, abs=0.1)
        while world.slot("actor-0").state == "restarting":
            world.run(0.1)
        world.progress("actor-0")


def test_neither_silence_nor_a_long_start_makes_up_for_deaths() -> None:
    world = up(DeployConfig(restarts=1), mute=("actor-0",))
    for _ in range(2):
        world.progress("actor-0")
        world.run(100)  # hangs after its first step
        world.die("actor-0")
        world.run(0.5)
    assert world.slot("actor-0").state == "failed"
    for _ in range(3):
        world.die("actor-1", 1, "boom")
        world.run(30)
    assert world.slot("actor-1").state == "failed" and world.slot("actor-1").restarts == 1


INFERENCE = ProcessSpec("inference", "inference", "learner.serving.inference", ())


@pytest.mark.parametrize(
    ("more", "deaths", "reason"),
    [
        ((), ["replay"], "replay failed (exit 1: boom)"),
        ((), ["learner"], "learner failed (exit 1: boom)"),
        ((INFERENCE,), ["inference"], "inference failed (exit 1: boom)"),
        ((actor(2),), ["actor-2", "actor-1", "actor-0"], "every actor failed (exit 1: boom)"),
        ((EVALUATOR,), ["evaluator"], ""),
    ],
)
def test_a_run_fails_with_the_reason_when_it_cannot_go_on_without_who_is_abandoned(
    more: tuple[ProcessSpec, ...], deaths: list[str], reason: str
) -> None:
    world = up(DeployConfig(restarts=0), (*SPECS, *more))
    for name in deaths:
        assert not world.supervisor.stopping
        world.die(name, 1, "boom")
        world.run(1)
        assert world.slot(name).state == "failed" or world.supervisor.finished
    assert world.supervisor.reason == reason
    assert (world.supervisor.finished, world.supervisor.exit_status) == ((True, 1) if reason else (False, 0))
    assert reason or world.supervisor.all_ready


@pytest.mark.parametrize(
    ("name", "worked", "status", "explained", "again"),
    [
        ("replay", 0, 2, True, False),  # it refuses its configuration
        ("learner", 3600, HOPELESS_STATUS, True, False),  # it says that it would fail again
        ("actor-0", 0, 2, False, True),  # a simulator may end its process with any status
        ("actor-0", 0, HOPELESS_STATUS, False, True),
    ],
)
def test_only_a_process_that_says_so_itself_is_not_tried_again(
    name: str, worked: float, status: int, explained: bool, again: bool
) -> None:
    world = up() if worked else servers_up() if name == "actor-0" else World()
    world.run(0.2)
    world.now += worked
    world.run(1)
    world.die(name, status, "no licence", explained=explained)
    world.run(1)
    assert len(world.starts(name)) == 1 + again and world.supervisor.finished != again
    assert world.supervisor.reason == ("" if again else f"{name} failed (exit {status}: no licence)")


def test_a_process_that_cannot_be_started_counts_as_dead() -> None:
    world = World(DeployConfig(restarts=1), broken=("replay",))
    world.run(5)
    assert world.supervisor.finished and "could not be started: no more processes" in world.supervisor.reason


def test_a_process_with_a_fault_is_replaced_and_the_cause_of_a_kill_is_the_reason_of_that_death_alone() -> None:
    world = up()
    world.processes["actor-0"].fault = LEAK
    world.run(0.3)
    assert world.slot("actor-0").last_exit == LEAK and len(world.starts("actor-0")) == 2 and world.slot("actor-0").failures == 1
    world.progress("actor-0")
    world.die("actor-0")
    world.run(0.5)
    assert world.slot("actor-0").last_exit == "killed by SIGKILL"


# ---- no room, and hosts


def test_a_process_without_room_waits_and_nothing_counts_as_failed() -> None:
    world = World(full=True)
    world.run(200)
    slot = world.slot("replay")
    assert (slot.state, slot.failures, slot.restarts, slot.last_exit) == ("waiting", 0, 0, None) and not world.events
    assert world.lines == ["replay waits: there is no room for it yet"], "said once"
    world.full = False
    world.run(0.2)
    assert len(world.starts("replay")) == 1 and slot.state == "starting"
    waiting = World(full=True)
    waiting.run(1)
    waiting.supervisor.stop("you said so")
    waiting.run(1)
    assert waiting.supervisor.finished and waiting.slot("replay").state == "stopped"


def test_one_line_says_that_many_actors_wait_and_each_is_asked_for_again() -> None:
    world = up(specs=(*SPECS[:2], *(actor(index) for index in range(40))))
    world.full = True
    for number in range(40):
        world.processes[f"actor-{number}"].ended = Exit(0, with_host="its host host-1 has left")
    world.run(200)
    names = ", ".join(f"actor-{number}" for number in range(10))
    assert [line for line in world.lines if "no room" in line] == [f"{names} and 30 more wait: there is no room for them yet"]
    world.full = False
    world.run(5)
    assert all(slot.process is not None for slot in world.supervisor.slots)


def test_a_process_that_ended_and_finds_no_room_has_not_failed_again() -> None:
    world = up()
    world.full = True
    world.die("actor-0")
    world.run(100)
    slot = world.slot("actor-0")
    assert (slot.state, slot.restarts, slot.process) == ("restarting", 1, None) and slot.failures == 1
    world.full = False
    world.run(0.2)
    assert len(world.starts("actor-0")) == 2 and not world.supervisor.stopping


def test_a_process_that_goes_with_its_host_has_not_failed_and_starts_elsewhere_at_once() -> None:
    world = up(DeployConfig(restarts=1))
    for times in range(1, 6):
        world.processes["actor-0"].ended = Exit(0, with_host="its host host-1 has left")
        world.run(0.3)
        slot = world.slot("actor-0")
        assert (slot.state, slot.failures, slot.restarts, slot.last_exit) == ("starting", 0, times, "its host host-1 has left")
    assert "actor-0 is gone: its host host-1 has left; starting it elsewhere" in world.lines
    world.full = True
    world.processes["actor-0"].ended = Exit(0, with_host="its host host-1 has left")
    world.run(1)
    assert world.slot("actor-0").state == "waiting" and "actor-0 waits: there is no room for it yet" in world.lines


def test_a_report_of_an_earlier_incarnation_or_a_stranger_is_ignored() -> None:
    world = up()
    world.progress("actor-0", incarnation=1, steps=1e9)
    world.supervisor.on_progress(Progress("actor-9", 5, "ready", 1, {"steps": 1e9}))
    assert not any(slot.record for slot in world.supervisor.slots)


# ---- silence


def silence(world: World, name: str) -> float:
    """The seconds of silence after which a process is killed."""
    world.mute = (name,)
    began, process = world.now, world.processes[name]
    while process.ended is None:
        assert world.now < began + 1000
        world.run(0.1)
    return world.now - began


def test_actors_of_a_slow_simulator_may_be_silent_for_longer() -> None:
    assert usual_hang_seconds(0.01) == 3.5
    assert usual_hang_seconds(2.0) == 8


@pytest.mark.parametrize(("name", "seconds"), [("actor-1", 3.7), ("inference", 3.7), ("replay", 300.0), ("learner", 300.0)])
def test_a_process_that_hangs_is_replaced_as_soon_as_its_role_allows_and_no_other_with_it(name: str, seconds: float) -> None:
    world = up(specs=(*SPECS, INFERENCE))
    assert world.config.stall_seconds == 300
    world.run(5)
    assert silence(world, name) == pytest.approx(seconds, abs=0.3)
    world.run(0.5)
    assert {spec.name: len(world.starts(spec.name)) for spec in world.specs} == {
        spec.name: 1 + (spec.name == name) for spec in world.specs
    }
    silent = f"hung: no report for {3.5 if seconds < 10 else 300.0} s"
    assert world.slot(name).last_exit == silent and f"{name} died ({silent}); starting again" in world.lines


def test_silence_of_a_ready_process_is_measured() -> None:
    world = up(mute=("learner",))
    world.run(12)
    assert world.supervisor.silent_seconds(world.slot("learner")) == pytest.approx(12, abs=1)
    world.progress("learner", "ready")
    assert world.supervisor.silent_seconds(world.slot("learner")) == 0


def test_silence_says_nothing_of_a_process_whose_host_is_silent_as_well() -> None:
    world = up(mute=("actor-0", "actor-1"))
    for name in ("actor-0", "actor-1"):
        world.progress(name)  # settled
    world.processes["actor-0"].away = True
    world.run(10)
    assert world.slot("actor-0").state == "ready" and world.slot("actor-1").restarts == 1
    world.processes["actor-0"].away = False
    world.run(3)
    assert world.slot("actor-0").state == "ready", "its silence is counted from then on"
    world.run(2)
    assert world.slot("actor-0").restarts == 1 and "hung" in (world.slot("actor-0").last_exit or "")


def test_an_actor_has_time_to_start_and_for_its_first_step() -> None:
    world = servers_up(mute=("actor-0",))
    world.run(world.config.stall_seconds - 10)  # it makes its environments
    for state in ("starting", "starting", "ready"):  # it waits for weights, resets, steps
        world.progress("actor-0", state)
        world.run(50)
    world.progress("actor-0")
    assert len(world.starts("actor-0")) == 1 and not world.processes["actor-0"].ended


@pytest.mark.parametrize("state", ["starting", "ready"])
@pytest.mark.parametrize(("hang", "stall", "limit"), [(0, 300, 60), (40, 300, 200), (100, 300, 300), (0, 20, 20)])
def test_a_first_reset_or_step_that_hangs_is_noticed_sooner_than_a_server(
    state: str, hang: float, stall: float, limit: float
) -> None:
    world = servers_up(mute=("actor-1",), config=DeployConfig(hang_seconds=hang, stall_seconds=stall))
    world.progress("actor-1", state)
    assert silence(world, "actor-1") == pytest.approx(limit, abs=0.5)


def test_a_start_that_hangs_comes_to_an_end() -> None:
    world = World()
    world.run(0.2)
    world.run(world.config.stall_seconds + 1)
    assert len(world.starts("replay")) == 2 and "hung: no report" in str(world.slot("replay").last_exit)


@pytest.mark.parametrize("step_seconds", [2.0, 3.0])
def test_steps_of_seconds_are_no_hang(step_seconds: float) -> None:
    world = up(mute=("actor-0", "actor-1"))
    for _ in range(50):
        world.run(step_seconds)
        for name in world.mute:
            world.progress(name)
    assert len(world.starts("actor-0")) == len(world.starts("actor-1")) == 1


def test_what_was_slow_once_may_be_slow_again_for_all_of_the_role() -> None:
    world = up(mute=("actor-0",))
    world.run(20)
    world.progress("actor-0")  # its first step
    world.progress("actor-0")
    assert silence(world, "actor-1") == pytest.approx(40, abs=0.5)


@pytest.mark.parametrize("report_first", [False, True])
def test_no_process_is_blamed_for_a_delay_of_the_supervisor(report_first: bool) -> None:
    world = up()
    world.run(2)
    world.now += 3600  # a suspended machine: nothing has been read, no process has run
    if report_first:
        world.progress("actor-1")
    world.run(1)
    assert {len(world.starts(spec.name)) for spec in world.specs} == {1}
    assert silence(world, "actor-0") <= 4.0  # and no process was granted an hour


def test_a_process_that_hangs_again_and_again_is_abandoned() -> None:
    world = up()
    for _ in range(world.config.restarts + 1):
        silence(world, "actor-0")
        world.run(0.2)
        while world.slot("actor-0").state == "restarting":
            world.run(0.1)
        if world.slot("actor-0").state == "starting":
            world.progress("actor-0")
            world.progress("actor-0")
    assert world.slot("actor-0").state == "failed" and "hung" in str(world.slot("actor-0").last_exit)


# ---- stopping


def test_an_orderly_stop_goes_actors_learner_replay() -> None:
    world = up()
    world.supervisor.stop("stopped by you")
    world.run(3)
    assert world.asked == ["actor-0", "actor-1", "learner", "replay"]
    assert world.supervisor.finished and world.supervisor.exit_status == 0
    assert {slot.state for slot in world.supervisor.slots} == {"stopped"}


@pytest.mark.parametrize(("name", "status"), [("replay", 1), ("learner", 1), ("actor-0", 0)])
def test_a_run_fails_where_a_process_cannot_save_what_it_holds_at_the_stop(name: str, status: int) -> None:
    world = up()
    world.supervisor.stop("stopped by you")
    world.die(name, 1, "5,748 steps are lost", explained=True)
    world.run(100)
    assert world.supervisor.finished and world.supervisor.exit_status == status and len(world.starts(name)) == 1
    assert (f"{name} died at the stop (exit 1: 5,748 steps are lost)" in world.supervisor.reason) == bool(status)


@pytest.mark.parametrize("deaf", [("actor-1",), ("learner",), ("replay",), ("replay", "learner", "actor-0", "actor-1")])
@pytest.mark.parametrize("immortal", [False, True])
def test_processes_that_do_not_report_are_killed_and_all_ends_by_the_one_deadline(deaf: tuple[str, ...], immortal: bool) -> None:
    world = up(deaf=deaf, immortal=deaf if immortal else ())
    began, world.mute = world.now, deaf
    world.supervisor.stop("stopped by you")
    world.run(30)
    assert world.supervisor.finished and world.now - began <= world.config.stop_seconds + (4 if immortal else 0.5)
    assert all(any(line.startswith(f"{name} did not stop in time") for line in world.lines) for name in deaf)
    assert immortal or {world.slot(name).last_exit.partition(":")[0] for name in deaf} == {"did not stop in time"}  # type: ignore[union-attr]


def test_a_learner_that_reports_while_it_saves_is_waited_for_but_not_without_end() -> None:
    world = up(deaf=("learner",))
    world.supervisor.stop("stopped by you")
    world.run(4 * world.config.stop_seconds, saving="learner")
    assert not world.supervisor.finished and "waiting for learner to stop" in world.lines
    assert not any("killed" in line for line in world.lines)
    world.run((MOST_EXTENSIONS - 4) * world.config.stop_seconds + 2, saving="learner")
    assert world.supervisor.finished and "learner did not stop in time, although it reports; killed" in world.lines


@pytest.mark.parametrize("silent", ["a large checkpoint", "as long as an update took"])
def test_a_silent_learner_gets_the_time_that_its_work_needs(silent: str) -> None:
    world = up(deaf=("learner",))
    if silent == "a large checkpoint":
        world.progress("learner", save_bytes=500e6)
    else:
        world.mute = ("learner",)
        world.run(25)
        world.progress("learner")
    world.supervisor.stop("stopped by you")
    world.run(45)
    assert not world.supervisor.finished
    world.run(20)
    assert world.supervisor.finished and any(line.startswith("learner did not stop in time") for line in world.lines)


def test_actors_that_hang_take_no_time_from_the_learner() -> None:
    world = up(deaf=("actor-0", "learner"))
    world.supervisor.stop("stopped by you")
    world.run(world.config.stop_seconds + 5, saving="learner")
    assert "actor-0 did not stop in time; killed" in world.lines
    assert world.slot("learner").killed is None


def test_a_delay_of_the_supervisor_takes_no_time_from_a_stop() -> None:
    world = up(deaf=("actor-0",))
    world.supervisor.stop("stopped by you")
    world.run(0.3)
    world.now += 3600  # a suspended machine
    world.run(1)
    assert world.processes["actor-0"].ended is None
    world.run(world.config.stop_seconds)
    assert world.processes["actor-0"].ended is not None


def test_a_second_interrupt_kills_everything_at_once() -> None:
    world = up(deaf=tuple(spec.name for spec in SPECS))
    world.supervisor.stop("stopped by you")
    world.run(0.2)
    began = world.now
    world.supervisor.kill_all()
    world.run(5)
    assert world.supervisor.finished and world.now - began <= 0.3


@pytest.mark.parametrize("reports", [False, True])
def test_a_stop_during_the_start_asks_again_at_the_first_report_and_before_that_nothing_is_lost(reports: bool) -> None:
    world = World(deaf=("replay",), mute=("replay",))
    world.run(0.2)
    world.supervisor.stop("stopped by you")
    world.supervisor.turn()
    for _ in range(3 if reports else 0):
        world.progress("replay", "starting")
    assert [what for _, what in world.events] == ["start replay", "ask replay", *(["ask replay"] if reports else [])]
    world.run(20)
    assert world.supervisor.finished and world.supervisor.exit_status == int(reports)
    assert any(line.startswith("replay did not stop in time: no report for") and line.endswith("killed") for line in world.lines)


# ---- an evaluator


LAST_WEIGHTS = replace(EVALUATOR, finishing_seconds=10.0)


@pytest.mark.parametrize(("planned", "ready", "after_learner"), [(True, True, True), (False, True, False), (True, False, False)])
def test_only_at_its_planned_end_a_run_waits_for_the_evaluation_of_the_last_weights(
    planned: bool, ready: bool, after_learner: bool
) -> None:
    specs = (*SPECS, LAST_WEIGHTS)
    world = up(specs=specs) if ready else servers_up(specs=specs)
    assert ready or world.slot("evaluator").state == "starting"
    world.supervisor.stop("10s are over", planned=planned)
    assert after_learner or world.asked == ["evaluator"]
    world.run(5)
    assert (world.asked.index("evaluator") > world.asked.index("learner")) == after_learner and world.supervisor.finished


@pytest.mark.parametrize(
    ("saving", "seconds"), [("evaluator", 10.0 + DeployConfig().stop_seconds), ("", DeployConfig().stop_seconds)]
)
def test_an_evaluator_that_does_not_end_is_killed_later_if_it_reports(saving: str, seconds: float) -> None:
    world = up(specs=(*SPECS, LAST_WEIGHTS), deaf=("evaluator",))
    world.supervisor.stop("10s are over", planned=True)
    began = world.now
    world.run(60, saving=saving)
    assert world.supervisor.finished and any("evaluator did not stop in time" in line for line in world.lines)
    assert world.now - began == pytest.approx(seconds, abs=1.0)


def test_a_deaf_evaluator_takes_no_time_from_processes_with_something_to_hand_over() -> None:
    world = up(specs=(*SPECS, EVALUATOR), deaf=("evaluator",))
    world.supervisor.stop("enough")
    world.run(2)
    assert {"learner", "replay"} <= set(world.asked)
    world.run(world.config.stop_seconds)
    assert world.supervisor.finished and "evaluator did not stop in time; killed" in world.lines


# ---- another plan


def test_an_abandoned_actor_is_tried_again_and_a_missing_one_started_when_the_plan_is_made_anew() -> None:
    world = up(DeployConfig(restarts=0))
    world.die("actor-0", 1, "boom")
    world.run(1)
    assert [slot.name for slot in world.supervisor.abandoned] == ["actor-0"]
    world.supervisor.replan((*SPECS, actor(2)))
    assert not world.supervisor.all_ready
    world.run(0.5)
    assert len(world.starts("actor-0")) == 2 and not world.supervisor.abandoned
    assert "actor-0 had been abandoned (exit 1: boom); trying it again" in world.lines
    assert len(world.starts("actor-2")) == len(world.starts("actor-1")) == 1
    for name in ("actor-0", "actor-2"):
        world.progress(name)
    assert world.supervisor.all_ready


def test_a_process_that_is_not_in_the_plan_is_asked_to_leave_and_not_replaced() -> None:
    world = up()
    world.progress("actor-1", steps=70.0)
    world.supervisor.replan(SPECS[:3])
    world.run(5)
    assert [slot.name for slot in world.supervisor.slots] == ["replay", "learner", "actor-0"]
    assert len(world.starts("actor-1")) == 1 and not world.supervisor.stopping
    assert "actor-1 has left" in world.lines


@pytest.mark.parametrize("wanted_again", [False, True])
def test_a_process_that_does_not_leave_is_killed_also_where_it_is_wanted_again(wanted_again: bool) -> None:
    world = up(deaf=("actor-1",))
    world.supervisor.replan(SPECS[:3])
    if wanted_again:
        world.supervisor.replan(SPECS)
    world.mute = ("actor-1",)
    world.run(LEAVE_SECONDS + world.config.stop_seconds + 2)
    assert "actor-1 did not leave in time; killed" in world.lines and len(world.supervisor.slots) == 3 + wanted_again
    assert len(world.starts("actor-1")) == 1 + wanted_again


def test_a_process_that_is_wanted_again_while_leaving_starts_again() -> None:
    world = up(deaf=("actor-1",))
    world.supervisor.replan(SPECS[:3])
    world.supervisor.replan(SPECS)
    world.die("actor-1", 0)
    world.run(1)
    assert len(world.starts("actor-1")) == 2 and world.slot("actor-1").restarts == 0


def test_a_stop_while_a_process_leaves_waits_for_that_too() -> None:
    world = up(deaf=("actor-1",))
    world.supervisor.replan(SPECS[:3])
    world.run(0.5)
    world.supervisor.stop("enough")
    world.run(20)
    assert world.supervisor.finished and world.processes["actor-1"].ended


def test_every_role_of_a_run_has_its_place_in_the_stop() -> None:
    actors = ActorsConfig(count=2, inference="batched")
    specs = topology(RunConfig(actors=actors), Path("runs/x"))
    assert {spec.role for spec in specs} == {role for roles in STOP_ORDER for role in roles}
    assert [spec.name for spec in specs] == ["replay", "learner", "inference", "actor-0", "actor-1", "evaluator"]
    plain = topology(RunConfig(actors=ActorsConfig(count=2)), Path("runs/x"))
    assert plain == tuple(spec for spec in specs if spec.name != "inference")
    elsewhere = topology(RunConfig(actors=actors, deploy=DeployConfig(local_actors=0)), Path("runs/x"))
    assert elsewhere == plain, "only hosts have actors, and each host has its own inference process"
    trusting = [spec for spec in plain if spec.role == "actor"]
    assert trusting and all("--trust-config" in spec.arguments for spec in trusting), "its configuration was checked"


# ---- the evaluator


def test_the_evaluator_starts_when_an_actor_is_ready_and_not_before() -> None:
    evaluator = replace(EVALUATOR, needs=("learner", "actor"))
    world = World(specs=(*SPECS, evaluator))
    for name in ("replay", "learner"):
        world.run(0.2)
        world.progress(name)
    world.run(0.3)
    assert world.starts("actor-0") and not world.starts("evaluator")
    world.progress("actor-1")
    world.run(0.2)
    assert len(world.starts("evaluator")) == 1


def test_the_evaluator_does_not_wait_for_actors_that_have_no_room_here() -> None:
    evaluator = replace(EVALUATOR, needs=("learner", "actor"))
    world = World(specs=(*SPECS, evaluator), without_room=("actor-0", "actor-1"))
    for name in ("replay", "learner"):
        world.run(0.2)
        world.progress(name)
    world.run(0.3)
    assert len(world.starts("evaluator")) == 1 and not world.starts("actor-0")
