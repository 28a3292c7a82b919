import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from actors.config import EnvConfig
from actors.envs.base import builtin_families
from actors.envs.make import EnvError, options_table, resolve_env
from actors.envs.mario import family
from actors.envs.preflight.parent import PreflightResult
from deploy import runs
from deploy.children import child_environment
from deploy.cli import main as cli
from deploy.cli.runs import up
from deploy.config import values
from deploy.config.files import presets, write_config
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.config.stop_conditions import StopConditions
from deploy.launch import defaults, preflight, prepare, resources
from deploy.recorded import status
from deploy.supervision import service
from deploy.supervision.processes import topology
from learner.algorithms.base import ALGORITHMS
from learner.config import LearnerConfig
from learner.description import PolicyDescription
from transport.experience import Categorical, Continuous, ExperienceSpec, observed
from transport.run_dir import RunDir

SPEC = ExperienceSpec((observed("observation", (4,), "<f4"),), Categorical(2), 64, 1, 3)
IMAGES = ExperienceSpec((observed("observation", (8, 8), "|u1", 1 / 255),), Categorical(2), 64, 1, 3)


class Service:
    """Instead of processes: remembers what it was to run."""

    made: list[Any] = []
    exit_status = 0

    def __init__(self, run: RunDir, config: RunConfig, terminal: Any, conditions: StopConditions, standby: Any) -> None:
        Service.made.append((run, config, conditions))
        self.supervisor = type("Supervisor", (), {"reason": "learner failed (exit 1: boom)"})()
        terminal.close()

    def run(self) -> int:
        return Service.exit_status


class StandInLearner:
    """A process that is never started."""

    run_mark = ""

    def __init__(self, learner: LearnerConfig) -> None:
        pass

    def close(self) -> None:
        pass


class StandInProbe:
    """Knows a CPU and a network of no tensors."""

    def __init__(self, learner: StandInLearner) -> None:
        pass

    def device(self) -> dict[str, str]:
        return {"device": "cpu", "name": "CPU"}

    def policy(self, config: RunConfig, spec: ExperienceSpec) -> PolicyDescription:
        return PolicyDescription({})


@pytest.fixture(autouse=True)
def quiet_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory; no pre-flight, no device probe, no processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("PYTHONIOENCODING", "")
    monkeypatch.setattr(
        preflight, "preflight", lambda config, *more: PreflightResult(SPEC, options=options_table(resolve_env(config).options))
    )
    monkeypatch.setattr(prepare, "WaitingLearner", StandInLearner)
    monkeypatch.setattr(prepare, "LearnerProbe", StandInProbe)
    monkeypatch.setattr(service, "Service", Service)
    monkeypatch.setattr(Service, "made", [])
    monkeypatch.setattr(Service, "exit_status", 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = cli.main(arguments)
    error = capsys.readouterr().err
    assert error.startswith("headrace: ") and error.count("\n") == 1, error
    return status, error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "--deploy.actor-python", "no/such/python"], "no/such/python does not run as a Python interpreter"),
        (["up", "--run", "../x"], "is not a name"),
        (["up", "--learner.weights", __file__], "truncated, or not a safetensors file"),
        (["status"], "there is no run in runs/ yet"),
        (["scale", "4"], "there is no run in runs/ yet"),
    ],
)
def test_a_mistake_is_one_line_with_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    status, error = refused(capsys, *arguments)
    assert status == 2 and words in error


def test_up_writes_the_folder_and_supervises(capsys: pytest.CaptureFixture[str]) -> None:
    typed = "up --env CartPole-v1 --actors 3 --replay.capacity 1e5 --learner.learning_rate=0.01 --stop-after 2m"
    assert cli.main([*typed.split(), "--stop-at-return", "-15e-1"]) == 0
    run, config, conditions = Service.made[0]
    assert run.name == "cartpole-v1-dqn" and conditions == StopConditions(120, None, -1.5)
    assert (config.actors.count, config.replay.capacity, config.learner.learning_rate) == (3, 100_000, 0.01)
    assert load_run_config(run, trusted=True) == config
    assert json.loads(run.spec.read_bytes())["action"] == {"type": "categorical", "n": 2}
    assert "checking CartPole-v1 … ok: Box(4) -> 2 actions" in capsys.readouterr().out
    assert not runs.is_up(run)


def test_a_failed_run_ends_with_status_1_and_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Service, "exit_status", 1)
    status, error = refused(capsys, "up")
    assert status == 1 and "run mario-ppo failed: learner failed (exit 1: boom)" in error


def test_an_environment_that_cannot_be_made_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: EnvConfig, *more: object) -> ExperienceSpec:
        raise EnvError("no such thing")

    monkeypatch.setattr(preflight, "preflight", fail)
    status, error = refused(capsys, "up", "--env", "Nothing-v0")
    assert status == 2 and "no such thing" in error and not Path("runs").exists()


def test_a_precision_that_actors_have_not_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = "precision int8 is not to be had on cpu: why; use auto"
    tried: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        tried.append(command)
        return subprocess.CompletedProcess(command, 2, f"{said}\n", "a warning\n")

    monkeypatch.setattr(subprocess, "run", run)
    status, error = refused(capsys, "up", "--env", "CartPole-v1", "--actors.precision", "int8")
    assert status == 2 and error == f"headrace: --actors.precision: {said}\n" and not Service.made
    assert cli.main(["up", "--env", "CartPole-v1", "--actors.precision", "bfloat16"]) == 0
    assert len(tried) == 1, "what every processor can is not tried"


def test_dqn_on_continuous_actions_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    continuous = ExperienceSpec(SPEC.fields, Continuous((-1.0,), (1.0,)), 64, 1, 3)
    monkeypatch.setattr(preflight, "preflight", lambda *arguments, **options: PreflightResult(continuous))
    status, error = refused(capsys, "up", "--env", "Pendulum-v1", "--algo", "dqn")
    assert status == 2 and not Service.made
    assert "has 1 continuous action, and --algo dqn has no continuous actions: --algo ppo or reppo or sac" in error


def test_the_number_of_threads_is_written_and_goes_to_the_learners_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "core_count", lambda: 9)
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: PreflightResult(IMAGES))
    assert cli.main(["up", "--env", "Acrobot-v1", "--actors", "3"]) == 0
    run, config, _ = Service.made[0]
    assert load_run_config(run, trusted=True).learner.threads == config.learner.threads == 5
    threads = {spec.name: spec.threads for spec in topology(config, run.path)}
    assert threads["learner"] == 5 and threads["actor-0"] == threads["replay"] == 1


def test_a_second_up_of_a_running_run_is_refused_with_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    with runs.locked(runs.run_dir("mario-ppo")):
        status, error = refused(capsys, "up")
    assert status == 3 and f"already up (supervisor pid {os.getpid()})" in error and "headrace down mario-ppo" in error
    assert not Service.made


def test_a_machine_without_the_memory_is_refused_with_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = refused(capsys, "up", "--algo", "dqn", "--replay.capacity", "1e15", "--replay.budget-bytes", "1e18")
    assert status == 3 and "lower --replay.capacity" in error


def test_more_actors_than_the_machine_has_room_for_are_refused_unless_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "core_count", lambda: 2)
    status, error = refused(capsys, "up", "--actors", "33")
    assert status == 3 and "33 actors are more than the 32 for which this machine has cores (16 on each); lower --actors" in error
    assert cli.main(["up", "--actors", "32"]) == 0 and len(Service.made) == 1
    with runs.locked(runs.run_dir("mario-ppo")):
        status, error = refused(capsys, "scale", "33")
        assert status == 3 and "`headrace up --run mario-ppo --actors 33 --deploy.overcommit true`" in error
    monkeypatch.setattr(resources, "free_memory", lambda: 300_000_000)
    status, error = refused(capsys, "up", "--fresh", "--actors", "32")
    assert status == 3 and "for which this machine has memory (60 MB for each, without its simulator)" in error
    assert len(Service.made) == 1


def test_more_actors_are_started_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "core_count", lambda: 1)
    assert cli.main(["up", "--actors", "40", "--deploy.overcommit", "true"]) == 0
    assert load_run_config(Service.made[0][0], trusted=True).deploy.overcommit


def test_too_few_descriptors_are_told_before_anything_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "raise_descriptor_limit", lambda: 256)
    status, error = refused(capsys, "up", "--actors", "9")
    assert status == 3 and "more than the 7 for which this machine has file descriptors (`ulimit -n`)" in error
    assert not Service.made


def test_a_log_that_may_fill_the_disk_is_told_and_the_run_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = type("Usage", (), {"free": 201_000_000})
    monkeypatch.setattr(resources.shutil, "disk_usage", lambda path: disk)
    assert cli.main(["up", "--algo", "dqn", "--replay.capacity", "200000"]) == 0 and Service.made
    assert "note: replay's log may grow by 8 MB" in capsys.readouterr().out
    assert cli.main(["up", "--algo", "dqn", "--fresh", "--replay.durable", "false"]) == 0
    assert "note:" not in capsys.readouterr().out


def test_replay_that_cannot_hold_enough_to_begin_is_refused_before_launch(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = refused(capsys, "up", "--algo", "dqn", "--replay.budget-bytes", "378e6", "--replay.min-size", "100_000")
    assert status == 2 and "raise replay.capacity or replay.budget_bytes" in error and not Service.made


def test_help_shows_the_options_of_the_algorithm_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> str:
        with pytest.raises(SystemExit):
            cli.main(["up", *arguments])
        return capsys.readouterr().out

    own = shown("--algo", "tests.deploy.config.test_layers:Tiny", "--help")
    assert "--algorithm.warmth" in own and "how wide it is (default: 8)" in own and "--algorithm.double" not in own
    assert "--algorithm.double" in (everything := shown("--help", "all")) and "--algorithm.tau" in everything


OF_ENVIRONMENTS = ("up", "eval", "demo", "envs")
NAMED_ENVIRONMENTS = ("CartPole-v1", "tests.extension.stranger.envs:by_taken_names", "ALE/Pong-v5", *builtin_families())
HELPS = [
    *([command, f"--env={NAMED_ENVIRONMENTS[1]}"] for command in OF_ENVIRONMENTS),
    ["up", f"--env={NAMED_ENVIRONMENTS[0]}"],
    ["up", "--preset", presets()[0].name],
]
MORE_HELPS = [
    *([command, f"--env={env_id}"] for command in OF_ENVIRONMENTS for env_id in NAMED_ENVIRONMENTS),
    *(["up", "--algo", algorithm, "--env", "CartPole-v1"] for algorithm in ALGORITHMS),
    *(["up", "--preset", preset.name] for preset in presets()),
]


@pytest.mark.parametrize(
    "words", [*HELPS, *(pytest.param(words, marks=pytest.mark.slow) for words in MORE_HELPS if words not in HELPS)], ids=" ".join
)
def test_every_command_explains_itself_whatever_else_is_typed(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # an environment is asked for its options once for each set of variables
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    assert ended.value.code == 0 and f"usage: headrace {words[0]}" in (shown := capsys.readouterr().out)
    if words[-1].endswith("by_taken_names"):
        flags = [line.split()[0] for line in shown.splitlines() if line.startswith("  --env.")]
        assert {"--env.skip", "--env.backend", "--env.tier", "--env.urdf"} <= {*flags} and len({*flags}) == len(flags)
        assert "--env.tolerance" not in flags and "required" not in shown


def test_options_of_a_run_of_an_algorithm_of_ones_own_are_known_when_it_is_resumed() -> None:
    own = "tests.deploy.config.test_layers:Tiny"
    assert cli.main(["up", "--env", "Acrobot-v1", "--run", "own", "--algo", own, "--algorithm.warmth", "0.25"]) == 0
    assert cli.main(["up", "--run", "own", "--algorithm.warmth", "0.75"]) == 0
    assert [config.algorithm.options.warmth for _, config, _ in Service.made] == [0.25, 0.75]


@pytest.mark.skipif(os.name != "posix", reason="no /dev/fd")
def test_settings_may_come_from_another_program() -> None:
    """`headrace up --config <(program)`."""
    reading, writing = os.pipe()
    os.write(writing, b"seed = 5\n[algorithm]\nname = 'ppo'\n")
    os.close(writing)
    try:
        assert cli.main(["up", "--config", f"/dev/fd/{reading}", "--env", "CartPole-v1", "--run", "x"]) == 0
    finally:
        os.close(reading)
    config = Service.made[0][1]
    assert (config.seed, config.algorithm.name) == (5, "ppo")


def test_a_preset_may_be_asked_for_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--preset", "collectors", "--replay.min-size", "5_000"]) == 0
    config = load_run_config(runs.run_dir("mario-ppo"), trusted=True)
    assert (config.actors.count, config.replay.capacity, config.learner.episodes_per_epoch) == (4, 50_000, 16)
    assert config.algorithm.options.gamma == 0.9, "mario's own"
    status, error = refused(capsys, "up", "--fresh", "--preset", "colectors")
    assert status == 2 and "did you mean collectors?" in error


def test_up_on_a_stopped_run_resumes_and_says_with_what(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["up", "--env", "CartPole-v1", "--algo", "dqn", "--learner.batch-size", "32"])
    run = Service.made[0][0]
    (run.checkpoints / "epoch-0000000050.safetensors").write_bytes(b"weights")
    (run.segments / "0000000000000000.segment").write_bytes(b"experience")
    run.status.write_text(json.dumps(status.empty(run.name, "CartPole-v1", "dqn") | {"steps": 1234}))
    run.metrics("replay").write_text('{"items": 7}\n{"items": 1100.0}\n')
    capsys.readouterr()
    assert cli.main(["up", "--run", "cartpole-v1-dqn", "--actors", "5"]) == 0
    config = Service.made[1][1]
    assert (config.env.id, config.learner.batch_size, config.actors.count) == ("CartPole-v1", 32, 5)
    out = capsys.readouterr().out
    assert "resuming run cartpole-v1-dqn after 1,234 steps" in out
    assert "the learner continues from checkpoints/epoch-0000000050.safetensors; " in out
    assert "; 1,100 items and all priorities are restored" in out
    cli.main(["up", "--run", "cartpole-v1-dqn", "--replay.capacity", "1000", "--replay.min-size", "100"])
    assert "; the newest 1,000 of 1,100 items are restored with their priorities" in capsys.readouterr().out
    cli.main(["up", "--run", "cartpole-v1-dqn", "--replay.durable", "false"])
    assert "; the replay buffer starts empty" in capsys.readouterr().out


def test_a_resume_with_another_network_or_experience_names_fresh(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.main(["up", "--env", "CartPole-v1"])
    status, error = refused(capsys, "up", "--env", "CartPole-v1", "--algorithm.hidden", "7")
    assert status == 2 and "algorithm.hidden (64, now 7)" in error and "--fresh" in error
    other = ExperienceSpec(SPEC.fields, Categorical(3), 64, 1, 3)
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: PreflightResult(other))
    status, error = refused(capsys, "up", "--env", "CartPole-v1")
    assert status == 2 and "recorded other experience" in error and "--fresh" in error


def test_the_default_backend_is_written_as_what_it_stood_for_and_may_change_on_resume() -> None:
    stood_for = family.emulator("auto")
    assert cli.main(["up"]) == 0
    assert cli.main(["up", "--resume"]) == 0
    assert cli.main(["up", "--resume", "--env.backend", "nes_py"]) == 0
    assert [config.env.options.backend for _, config, _ in Service.made] == [stood_for, stood_for, "nes_py"]
    assert load_run_config(Service.made[0][0], trusted=True).env.options.backend == "nes_py"


def test_a_run_that_has_done_its_steps_is_not_resumed_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["up", "--total-steps", "1000"])
    Service.made[0][0].status.write_text(json.dumps(status.empty("x", "mario", "dqn") | {"steps": 1000}))
    exit_status, error = refused(capsys, "up")
    assert exit_status == 2 and "has done 1,000 of 1,000 steps; raise --total-steps" in error


def test_fresh_moves_the_old_folder_aside_and_says_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.main(["up", "--run", "x"])
    Path("runs/x/mine.txt").write_text("kept")
    for number in (1, 2):
        assert cli.main(["up", "--run", "x", "--fresh"]) == 0
        assert f"the old run is now {Path('runs', f'x.{number}').resolve()}" in capsys.readouterr().out
    assert Path("runs/x.1/mine.txt").read_text() == "kept" and not Path("runs/x/mine.txt").exists()
    assert cli.main(["up", "--run", "x.1"]) == 0  # from now on it is a run of its own
    monkeypatch.setattr(runs, "KEPT_ASIDE", 0)
    assert cli.main(["up", "--run", "x", "--fresh"]) == 0
    assert sorted(path.name for path in Path("runs").glob("x*")) == ["x", "x.1"]


def test_status_of_a_killed_supervisor_says_dead(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["up", "--run", "x"])
    capsys.readouterr()
    process = dict.fromkeys(("pid", "last_exit", "steps_per_second", "rss_bytes", "cpu_percent"))
    living = {"name": "replay", "role": "replay", "state": "ready", "restarts": 0, "silent_seconds": 0.1}
    blank = status.empty("x", "mario", "dqn")
    Path("runs/x/status.json").write_text(json.dumps(blank | {"state": "running", "processes": [process | living]}))
    assert cli.main(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "dead" and found["processes"][0]["state"] == "dead"
    assert cli.main(["status"]) == 0
    assert "x: dead (the supervisor was killed)" in capsys.readouterr().out


def test_a_run_whose_supervisor_was_killed_is_dead_while_another_process_starts_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli.main(["up", "--run", "x"])
    capsys.readouterr()
    for pid, state in ((os.getpid() + 1, "dead"), (os.getpid(), "running")):
        written = status.empty("x", "mario", "dqn") | {"state": "running", "pid": pid, "time": 1.0}
        Path("runs/x/status.json").write_text(json.dumps(written))
        with runs.locked(runs.run_dir("x")):
            assert cli.main(["status", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == state


class Supervisor:
    """One that `up --detach` has started, and that has ended where it has an `exit_status`."""

    def __init__(self, exit_status: int | None = None, **written: Any) -> None:
        self.pid, self._exit_status = 77, exit_status
        if written:
            Path("runs/x/status.json").write_text(
                json.dumps(status.empty("x", "mario", "dqn") | {"pid": self.pid, "time": 1.0} | written)
            )

    def poll(self) -> int | None:
        return self._exit_status


def test_a_supervisor_that_ends_at_once_is_not_told_with_the_reason_of_the_one_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.main(["up", "--run", "x"])
    Supervisor(state="stopped", reason="stopped by you")  # even of the same pid
    monkeypatch.setattr(service, "start_detached", lambda run, conditions: Supervisor(exit_status=3))
    status, error = cli.main(["up", "--run", "x", "--detach"]), capsys.readouterr().err
    assert status == 3 and "stopped by you" not in error and str(Path("logs", "supervisor.log")) in error


def test_a_supervisor_is_ready_although_the_clock_was_set_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.main(["up", "--run", "x"])
    monkeypatch.setattr(service, "start_detached", lambda run, conditions: Supervisor(state="running"))
    monkeypatch.setattr(up, "READY_SECONDS", 1.0)
    assert cli.main(["up", "--run", "x", "--detach"]) == 0 and "run x is up; see " in capsys.readouterr().out


ODD = {
    "not JSON": "{",
    "a list": "[]",
    "nothing": "{}",
    "NaN": '{"run": "x", "state": NaN}',
    "deep": "[" * 100_000,
    "a state that is a number": json.dumps(status.empty("x", "mario", "dqn") | {"state": 5}),
    "processes that are words": json.dumps(status.empty("x", "mario", "dqn") | {"processes": ["replay"]}),
    "figures that are words": json.dumps(status.empty("x", "mario", "dqn") | {"replay": {"items": "many"}}),
    "steps that are words": json.dumps(status.empty("x", "mario", "dqn") | {"steps": "many"}),
    "no figures": json.dumps(status.empty("x", "mario", "dqn") | {"replay": {}, "learner": {}, "evaluation": {}}),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_an_odd_status_breaks_neither_its_own_run_nor_others(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("odd", "other"):
        cli.main(["up", "--run", name])
    Path("runs/odd/status.json").write_text(text)
    capsys.readouterr()
    for words in (
        ["list"],
        ["status", "odd"],
        ["status", "odd", "--json"],
        ["status", "other"],
        ["up", "--run", "other"],
        ["up", "--run", "odd"],
    ):
        assert cli.main(words) == 0
        assert capsys.readouterr().err == ""


def test_a_run_from_elsewhere_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["up", "--run", "x"])
    written = status.empty("x", "\x1b[2Jmario", "dqn\x07") | {"state": "stopped", "time": 1.0, "reason": "\x1b]0;t\x07"}
    Path("runs/x/status.json").write_text(json.dumps(written))
    capsys.readouterr()
    for words in (["list"], ["status"], ["top"]):
        assert cli.main(words) == 0
        shown = capsys.readouterr().out
        assert "mario" in shown and "\x1b" not in shown and "\x07" not in shown


@pytest.mark.parametrize("text", ["[[[", f"seed = {'9' * 5000}", f"seed = {'[' * 100_000}"], ids=["open", "digits", "deep"])
def test_a_run_with_a_broken_configuration_is_a_line_of_the_list(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("odd", "other"):
        cli.main(["up", "--run", name])
    Path("runs/odd/config.toml").write_text(text)
    capsys.readouterr()
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and sum("unreadable: " in line for line in lines) == 1


def test_status_json_has_every_key_before_there_is_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["up", "--run", "x"])
    capsys.readouterr()
    cli.main(["status", "x", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {"run", "state", "uptime_seconds", "env", "algorithm", "processes", "replay", "learner", "evaluation"} <= set(found)
    assert found["learner"]["epoch"] is None and found["replay"]["items"] is None and found["evaluation"]["success_rate"] is None
    assert all(found[key] is None for key in ("steps", "total_steps", "reason", "pid", "time", "bottleneck"))


def test_commands_take_the_only_running_run_else_the_latest(capsys: pytest.CaptureFixture[str]) -> None:
    for name, age in (("old", 100), ("new", 0)):
        cli.main(["up", "--run", name])
        path = Path("runs", name, "config.toml")
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    assert runs.find(None).name == "new"
    with runs.locked(runs.run_dir("old")):
        assert runs.find(None).name == "old"
        with runs.locked(runs.run_dir("new")):
            capsys.readouterr()
            status, error = refused(capsys, "status")
            assert status == 2 and "several runs are up" in error


def test_down_of_a_stopped_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["up", "--run", "x"])
    assert cli.main(["down"]) == 0
    assert "run x is not up" in capsys.readouterr().out


def test_logs_prints_the_end_and_names_the_nearest_process(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["up", "--run", "x"])
    Path("runs/x/logs/learner.log").write_text("".join(f"line {i}\n" for i in range(9)))
    capsys.readouterr()
    assert cli.main(["logs", "learner", "-n", "2"]) == 0
    assert capsys.readouterr().out == "line 7\nline 8\n"
    assert cli.main(["logs", "learner", "-n", "1e30"]) == 0
    assert capsys.readouterr().out.count("\n") == 9
    status, error = refused(capsys, "logs", "lerner")
    assert status == 2 and "did you mean learner?" in error


def test_a_dry_run_prints_each_setting_with_its_origin_as_a_config_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["up", "--env", "CartPole-v1", "--seed", "4", "--algo", "dqn", "--algorithm.network-options.depth", "2"]
    assert cli.main([*words, "--dry-run"]) == 0 and not Service.made
    text = capsys.readouterr().out
    found = {line.partition(" = ")[0]: line.rpartition("  # ")[2] for line in text.splitlines() if " = " in line and "#" in line}
    expected = {
        "seed": "command line",
        "gamma": "default",
        "min_size": "preset cartpole-dqn",
        "normalize_reward": "algorithm dqn",
    }
    expected |= {"count": "found out", "samples_per_insert_limit": "preset cartpole-dqn", "network_options": "command line"}
    assert expected.items() <= found.items()
    assert not (tmp_path / "runs" / "cartpole-v1-dqn").exists()
    (tmp_path / "mine.toml").write_text(text)
    assert cli.main(["up", "--config", str(tmp_path / "mine.toml")]) == 0
    [(_, config, _)] = Service.made
    assert tomllib.loads(text) == tomllib.loads(write_config(config).decode())


def test_default_names_are_made_of_environment_and_algorithm() -> None:
    names = [runs.default_name(env_id, "dqn") for env_id in ("mario", "mario:1-2", "CartPole-v1", "ALE/Pong-v5", "a.b:make")]
    assert names == ["mario-dqn", "mario-1-2-dqn", "cartpole-v1-dqn", "ale-pong-v5-dqn", "a-b-make-dqn"]


def test_the_help_of_up_is_a_page_and_shows_a_section_or_everything_if_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*topic: str) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(["up", "--help", *topic])
        assert ended.value.code == 0
        return capsys.readouterr().out

    monkeypatch.setenv("COLUMNS", "80")
    page = shown()
    assert len(page.splitlines()) <= 50 and "--env ENV" in page and "--replay.capacity" not in page
    replay = shown("replay")
    assert "--replay.capacity" in replay and "--learner.batch-size" not in replay and "--replay.capacity" in shown("all")
    assert refused(capsys, "up", "--help", "replai") == (
        2,
        "headrace: --help replai: there is no such section; did you mean replay?\n",
    )


def test_every_setting_has_an_option_and_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["up", "--help", "all"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert text.index("headrace up --env mario --actors 4") < text.index("--replay.capacity")
    for words in (
        "--learner.batch-size",
        "--algorithm.n-step",
        "transitions kept in memory, the newest ones (not used with rollouts) (default:",
        "--algorithm.n-epochs",
        "(default: dqn 512, ppo 64, pqn 128, r2d2 128, reppo 128, sac 256)",
        "--env ENV",
    ):
        assert words in " ".join(text.split())
    assert "required)" not in text, "no setting has to be given"


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("1e6", 1_000_000), ("12_000", 12_000), ("2.0", 2)])
def test_a_count_may_be_written_in_several_ways(text: str, number: int) -> None:
    assert values.whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("250ms", 0.25), ("1d", 86400)]
)
def test_a_duration_may_carry_a_unit(text: str, seconds: float) -> None:
    assert values.duration_seconds(text) == seconds


def test_the_command_line_imports_neither_torch_nor_a_simulator() -> None:
    code = (
        "import sys, deploy.cli.main, deploy.supervision.__main__; "
        "print([m for m in ('torch', 'gymnasium', 'cv2', 'nes_py') if m in sys.modules])"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_options_of_a_network_are_typed_one_by_one_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    typed = [
        "--algorithm.network-options.width",
        "64",
        "--algorithm.network_options.act=tanh",
        "--algorithm.network-options.on",
        "true",
    ]
    assert cli.main(["up", "--env", "Acrobot-v1", "--algorithm.network", "my.nets:Torso", *typed, "--run", "r"]) == 0
    run, config, _ = Service.made[0]
    expected = {"width": 64, "act": "tanh", "on": True}
    assert config.algorithm.options.network == "my.nets:Torso" and config.algorithm.options.network_options == expected
    assert load_run_config(run, trusted=True).algorithm.options.network_options == expected
    status, error = refused(capsys, "up", "--env", "Acrobot-v1", "--algorithm.network-optionz.width", "3")
    assert status == 2 and "unknown option --algorithm.network-optionz.width" in error
    status, error = refused(capsys, "up", "--run", "r", "--resume", "--algorithm.network-options.width", "65")
    assert status == 2 and "was made with another algorithm.network_options" in error


def test_a_stopped_run_whose_network_is_another_now_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["up", "--env", "Acrobot-v1", "--run", "r"]) == 0
    assert cli.main(["up", "--run", "r"]) == 0
    monkeypatch.setattr(StandInProbe, "policy", lambda self, config, spec: PolicyDescription({"head.0.bias": ((2,), "float32")}))
    status, error = refused(capsys, "up", "--run", "r")
    assert status == 2 and "run r was made with another network than its code builds now" in error
