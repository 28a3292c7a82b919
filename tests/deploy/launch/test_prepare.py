"""Nothing of the processes that the pre-flight starts is left where no run comes of it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from actors.config import EnvConfig
from actors.errors import EnvError
from deploy import runs
from deploy.cli import main as cli
from deploy.config.files import Tree, merge
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from deploy.launch import preflight, prepare, resources
from deploy.launch.prepare import LaunchRequest
from deploy.launch.resources import NoSpace
from deploy.places import waiting
from deploy.places.waiting import WaitingLearner
from learner.config import LearnerConfig
from tests.deploy.launch.test_defaults import VECTORS
from tests.harness.waiting import gone
from transport.experience import Categorical, Continuous, ExperienceSpec, MultiCategorical, observed

FACTS = preflight.PreflightResult(VECTORS)
DESCRIPTION = '{"policy": {"tensors": {}, "program": [], "state": {}}, "error": ""}'
ANSWERS = f"""
print('{{"device": "cpu", "name": "CPU", "note": "", "processes": 1}}')
input(); print('{DESCRIPTION}'); input()
"""


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the learners that were started: processes that answer, and then wait."""
    started: list[int] = []

    class Learner(WaitingLearner):
        def __init__(self, learner: LearnerConfig) -> None:
            super().__init__(learner)
            assert self._child is not None
            started.append(self._child.pid)

    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONIOENCODING"):  # put back afterwards: a launch changes them
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(prepare, "WaitingLearner", Learner)
    monkeypatch.setattr(waiting, "python_command", lambda *arguments: [sys.executable, "-u", "-c", ANSWERS])
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: FACTS)
    return started


REQUEST = LaunchRequest({"env": {"id": "Acrobot-v1"}, "algorithm": {"name": "dqn"}})
UNDECIDED = LaunchRequest({"env": {"id": "MountainCar-v0"}})  # the environment decides


@pytest.mark.parametrize("wanted", [REQUEST, UNDECIDED], ids=["named", "undecided"])
@pytest.mark.parametrize("error", [EnvError("no such thing"), KeyboardInterrupt()], ids=["failed", "interrupted"])
def test_a_pre_flight_that_ends_early_ends_the_waiting_learner(
    error: BaseException, wanted: LaunchRequest, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        assert not gone(pids[0])
        raise error

    monkeypatch.setattr(preflight, "preflight", fail)
    with pytest.raises(type(error)):
        prepare.prepare(wanted)
    assert len(pids) == 1 and gone(pids[0])


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_signal_before_the_run_cleans_up_like_ctrl_c(
    more: list[str], pids: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: os.kill(os.getpid(), signal.SIGTERM))
    try:
        assert cli.main(["up", "--env", "Acrobot-v1", *more]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err.endswith("headrace: interrupted\n") and len(pids) == 1 and gone(pids[0])


def test_two_commands_that_leave_the_algorithm_to_the_environment_do_not_both_get_the_run(pids: list[int]) -> None:
    with prepare.prepare(UNDECIDED) as ready:
        with pytest.raises(runs.AlreadyUp):
            prepare.prepare(UNDECIDED)
        assert len(pids) == 2 and gone(pids[1]) and not gone(pids[0])
        ready.write()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "algorithm: ppo, from the preset cartpole; --algo NAME takes another"),
        ({"replay": {"shards": 2}}, "algorithm: dqn, from the preset cartpole-dqn; --algo NAME takes another"),
        ({"algorithm": {"name": "ppo"}}, ""),
    ],
    ids=["preset", "with options of the replay", "named"],
)
def test_the_algorithm_of_a_preset_is_said_unless_it_is_named(
    pids: list[int], flags: Tree, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with prepare.prepare(LaunchRequest({"env": {"id": "CartPole-v1"}, **flags})) as ready:
        ready.write()
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("algorithm")] == [said][: bool(said)]
    assert gone(pids[0])
    with prepare.prepare(LaunchRequest(flags, name=ready.run.name)):
        assert "algorithm:" not in capsys.readouterr().out, "a resumed run has its own"


def test_a_machine_without_the_memory_ends_it_too(pids: list[int]) -> None:
    with pytest.raises(NoSpace):
        prepare.prepare(LaunchRequest(REQUEST.flags | {"replay": {"capacity": 10**15, "budget_bytes": 10**18}}))
    assert len(pids) == 1 and gone(pids[0])


def test_demonstrations_that_do_not_fit_into_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "ring_bytes", lambda folder, spec: 10**15)
    with pytest.raises(NoSpace, match="demonstrations want 1000000.0 GB beside replay's"):
        resources.check_demonstrations(RunConfig(), REALS.spec, tmp_path)
    with pytest.raises(NoSpace, match="demonstrations want 1000000.0 GB but"):
        resources.check_demonstrations(RunConfig(offline=True), REALS.spec, tmp_path)


def test_demonstrations_that_are_damaged_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "0.segment").write_bytes(b"not a segment")
    with pytest.raises(ConfigError, match="is damaged: `headrace fsck RUN --repair`"):
        resources.check_demonstrations(RunConfig(), REALS.spec, tmp_path)


def test_it_waits_for_the_run_until_the_launch_is_over(pids: list[int]) -> None:
    with prepare.prepare(REQUEST) as ready:
        ready.write()
        assert not gone(pids[0])
    assert len(pids) == 1 and gone(pids[0])


REALS = preflight.PreflightResult(ExperienceSpec((observed("observation", (3,), "<f4"),), Continuous((-1.0,), (1.0,)), 64))
PICTURES = preflight.PreflightResult(ExperienceSpec((observed("observation", (40, 40), "|u1", 1 / 255),), Categorical(2), 64))
GOALS = tuple(observed(name, (3,), "<f4") for name in ("observation", "achieved_goal", "desired_goal"))
LONG = preflight.PreflightResult(ExperienceSpec((observed("observation", (10**6,), "<f4"),), Categorical(2), 4096))
KEYS = preflight.PreflightResult(ExperienceSpec((observed("observation", (3,), "<f4"),), MultiCategorical((3,) * 12), 64))
TARGETS = preflight.PreflightResult(ExperienceSpec(GOALS, Continuous((-1.0,), (1.0,)), 64), goals=True)


def test_a_run_whose_images_an_earlier_version_stacked_goes_on_with_that_stack(
    pids: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = ExperienceSpec((observed("observation", (4, 40, 40), "|u1", 1 / 255),), Categorical(2), 64)
    stacked = preflight.PreflightResult(msgspec.structs.replace(frames, stack=4))
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: stacked)
    with prepare.prepare(REQUEST) as ready:
        ready.write()
    capsys.readouterr()
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: preflight.PreflightResult(frames))
    for wanted in (
        LaunchRequest({}, name=ready.run.name),
        REQUEST,
        LaunchRequest(REQUEST.flags | {"env": {"id": "Acrobot-v1", "stack": 0}}),
    ):
        with prepare.prepare(wanted) as again:
            assert again.resumed and again.spec == ready.spec and again.spec.stack == 4
            again.write()
        assert "was made with a stack of 4, and goes on with it" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"was made with another env.stack \(0, now 1\)"):
        prepare.prepare(LaunchRequest({"env": {"stack": 1}}, name=ready.run.name))


@pytest.mark.parametrize(("before", "now"), [(1 / 255, 1 / 10), (1 / 10, 1 / 255)])
def test_a_run_goes_on_with_its_scale_of_codes_whatever_a_later_pre_flight_sees_of_them(
    before: float, now: float, pids: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = [
        ExperienceSpec((observed("observation", (3, 7, 7), "|u1", scale),), Categorical(2), 64, 1) for scale in (before, now)
    ]
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: preflight.PreflightResult(specs[0]))
    with prepare.prepare(REQUEST) as ready:
        ready.write()
    specs.pop(0)
    with prepare.prepare(REQUEST) as again:
        assert again.spec == ready.spec and again.spec.fields[0].scale == before
    assert f"made with observation divided by {1 / before:g}, and goes on with it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("facts", "flags", "expected", "said"),
    [
        (FACTS, {}, "dqn", True),
        (PICTURES, {}, "ppo", True),
        (REALS, {}, "ppo", True),
        (KEYS, {}, "ppo", True),
        (TARGETS, {}, "sac", True),
        (REALS, {"algorithm": {"gae_lambda": 0.25}}, "ppo", True),
        (REALS, {"algorithm": {"name": "sac"}}, "sac", False),
    ],
    ids=["discrete", "images", "continuous", "several", "goals", "an option of it", "named"],
)
def test_the_algorithm_follows_from_the_kind_of_actions_and_is_said_unless_it_is_named(
    facts: preflight.PreflightResult,
    flags: Tree,
    expected: str,
    said: bool,
    pids: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tried = []

    def attempt(*arguments: object) -> preflight.PreflightResult:
        tried.append(arguments)
        return facts

    monkeypatch.setattr(preflight, "preflight", attempt)
    request = LaunchRequest({"env": {"id": "MyOwn-v0"}, **flags})
    with prepare.prepare(request) as ready:
        assert ready.config.algorithm.name == expected and ready.run.name == f"myown-v0-{expected}"
        assert all(ready.config.algorithm.flat()[key] == value for key, value in flags.get("algorithm", {}).items())
    assert len(tried) == len(pids) == 1, "the environment is tried once, and one learner waits"
    assert gone(pids[0])
    assert (f"algorithm: {expected}, for " in capsys.readouterr().out) == said


@pytest.mark.parametrize("flags", [{"env": {"stack": 2}}, {"deploy": {"cores": "1"}}], ids=["environment", "cores"])
def test_a_stopped_run_whose_name_was_not_typed_is_tried_with_its_own_settings(
    flags: Tree, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks: list[int] = []

    def attempt(config: EnvConfig, *arguments: object) -> preflight.PreflightResult:
        stacks.append(config.stack)
        return FACTS

    monkeypatch.setattr(preflight, "preflight", attempt)
    typed, stack = merge(UNDECIDED.flags, flags), flags.get("env", {}).get("stack", 0)
    for wanted, tried in ((typed, [stack]), (typed, [stack]), (UNDECIDED.flags, [0, stack])):
        with prepare.prepare(LaunchRequest(wanted)) as ready:
            ready.write()
            assert stacks == tried and ready.config.env.stack == stack
        stacks.clear()
    assert all(map(gone, pids))


@pytest.mark.parametrize(
    ("facts", "flags", "line"),
    [
        (structs.replace(FACTS, largest_observation=1e12), "", "gave the observation 1e+12, and experience beyond"),
        (structs.replace(FACTS, largest_reward=1e12), "", "gave the reward 1e+12, and experience beyond"),
        (FACTS, "--env.chunk-length 5_000", "--env.chunk-length: expected int <= 4096, got 5000"),
        (FACTS, "--env.stack 17", "--env.stack: expected int <= 16, got 17"),
        (LONG, "", "bytes of waiting chunks, rollouts and the process: raise it"),
    ],
    ids=["observation", "reward", "chunk", "stack", "budget"],
)
def test_what_a_launch_refuses_of_an_environment_the_check_of_it_refuses_in_the_same_words(
    facts: preflight.PreflightResult,
    flags: str,
    line: str,
    pids: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: facts)
    ends = []
    for command in ("up --env", "envs --check"):
        status = cli.main([*command.split(), "Acrobot-v1", *flags.split()])
        ends.append((status, capsys.readouterr().err))
    assert ends[0] == ends[1] and ends[0][0] == 2
    assert line in ends[0][1] and ends[0][1].count("\n") == 1


@pytest.mark.parametrize(("facts", "gamma"), [(FACTS, 0.99), (REALS, 0.995)], ids=["discrete", "continuous"])
def test_defaults_of_ppo_depend_on_the_kind_of_task_and_what_the_user_sets_comes_first(
    facts: preflight.PreflightResult, gamma: float, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: facts)
    with prepare.prepare(LaunchRequest({"env": {"id": "MyOwn-v0"}, "algorithm": {"name": "ppo"}})) as ready:
        assert ready.config.algorithm.flat()["gamma"] == gamma
    with prepare.prepare(LaunchRequest({"env": {"id": "MyOwn-v0"}, "algorithm": {"name": "ppo", "gamma": 0.9}})) as ready:
        assert ready.config.algorithm.flat()["gamma"] == 0.9


@pytest.mark.parametrize("algorithm", [{}, {"name": "dqn"}], ids=["undecided", "named"])
def test_a_module_that_headrace_hides_is_noted_once(algorithm: Tree, pids: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    Path("replay.py").touch()
    with prepare.prepare(LaunchRequest({"env": {"id": "mine:make"}, "algorithm": algorithm})):
        pass
    assert capsys.readouterr().out.count("replay in this folder is hidden by Headrace's own package") == 1


def test_an_option_of_another_algorithm_than_the_chosen_one_is_refused(pids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: REALS)
    with pytest.raises(ConfigError, match="only dqn and r2d2 have it; ppo does not"):
        prepare.prepare(LaunchRequest({"env": {"id": "MyOwn-v0"}, "algorithm": {"double": False}}))
    assert len(pids) == 1 and gone(pids[0])


def test_a_stopped_run_goes_on_with_its_algorithm(pids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: REALS)
    with prepare.prepare(LaunchRequest({"env": {"id": "MyOwn-v0"}, "algorithm": {"name": "ppo"}}, name="mine")) as ready:
        ready.write()
    with prepare.prepare(LaunchRequest({}, name="mine")) as ready:
        assert ready.resumed and ready.config.algorithm.name == "ppo"


@pytest.mark.parametrize("fresh", [False, True])
def test_the_name_is_locked_from_before_the_pre_flight_until_the_launch_is_over(
    fresh: bool, pids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second command would move the folder of a run away that is about to start, or write into it."""
    second = LaunchRequest(REQUEST.flags, fresh=fresh)
    refused = []

    def check(*arguments: object) -> preflight.PreflightResult:
        with pytest.raises(runs.AlreadyUp) as caught:
            prepare.prepare(second)
        refused.append(str(caught.value))
        return FACTS

    monkeypatch.setattr(preflight, "preflight", check)
    with prepare.prepare(LaunchRequest(REQUEST.flags, fresh=True)) as ready:
        runs.set_aside(ready.run)
        ready.write()
        with pytest.raises(runs.AlreadyUp):
            prepare.prepare(second)
    assert len(refused) == len(pids) == 1 and f"already up (supervisor pid {os.getpid()})" in refused[0]
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: FACTS)
    with prepare.prepare(second):
        pass


def test_a_refused_run_leaves_no_folder(pids: list[int]) -> None:
    with pytest.raises(ConfigError):
        prepare.prepare(LaunchRequest(REQUEST.flags, resume=True))
    assert not runs.RUNS.exists()


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
@pytest.mark.parametrize(("program", "refused"), [("[]", False), ("null", True)], ids=["numpy knows it", "numpy does not"])
def test_an_actor_python_needs_torch_only_for_a_policy_that_numpy_does_not_know(
    program: str, refused: bool, pids: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\ncase " $* " in *" torch "*) echo '[[3, 13], ["torch"]]';; *) echo '[[3, 13], []]';; esac\n""")
    python.chmod(0o700)
    answers = ANSWERS.replace('"program": []', f'"program": {program}, "unknown": "Torso"')
    monkeypatch.setattr(waiting, "python_command", lambda *arguments: [sys.executable, "-u", "-c", answers])
    request = LaunchRequest(REQUEST.flags | {"deploy": {"actor_python": str(python)}})
    if refused:
        with pytest.raises(ConfigError, match=r"python lacks torch \(numpy does not know Torso\); install"):
            prepare.prepare(request)
    else:
        with prepare.prepare(request):
            pass
    assert len(pids) == 1 and gone(pids[0])


def test_the_key_of_an_observation_and_a_note_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = observed("\x1b[2Jbad\x07", (3,), "<f4"), observed("good", (), "<f4")
    facts = preflight.PreflightResult(ExperienceSpec(fields, Categorical(2), 8, 1, 1), notes=("its reset says \x1b[31mred",))
    monkeypatch.setattr(preflight, "preflight", lambda *arguments: facts)
    preflight.try_environment(RunConfig())
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert "bad\\x07(3) + good(1) -> 2 actions" in out and "note: its reset says red\n" in out
