"""What a user types wrongly costs one line on stderr that says what to type instead, and status 2; nothing is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deploy import runs
from deploy.cli import main as cli
from deploy.launch.access import ROOT_WARNING
from transport.files.renamed import RENAMED


@pytest.fixture(autouse=True)
def a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with one run, `night`, that has weights; starting a process fails the test."""
    monkeypatch.chdir(tmp_path)
    run = runs.run_dir("night")
    run.create()
    run.config.write_text("format = 2\n")
    run.latest.write_bytes(b"weights")
    run.log("learner").write_text("")

    def started(*arguments: object, **options: object) -> None:
        pytest.fail("a process was started before the mistake was noticed")

    monkeypatch.setattr(subprocess, "Popen", started)


def mistake(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    """The line on stderr."""
    status = cli.main(typed)
    captured = capsys.readouterr()
    assert status == 2 and captured.out in ("", f"{ROOT_WARNING}\n") and captured.err.count("\n") == 1, captured
    assert captured.err.startswith("headrace: ")
    return captured.err.removeprefix("headrace: ").rstrip()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("upp", "unknown command 'upp'; did you mean up?"),
        ("--verson", "unknown option --verson; see `headrace --help`"),
        ("up --actor 4", "unknown option --actor; did you mean --actors?"),
        ("up --replay.capasity 4", "unknown option --replay.capasity; did you mean --replay.capacity?"),
        ("up --envv.grid-size 3", "unknown option --envv.grid-size; did you mean --env.grid-size?"),
        ("up extra", "unexpected 'extra'; see `headrace up --help`"),
        ("status --jso", "unknown option --jso; did you mean --json?"),
        ("up --actors", "--actors/--actors.count: expected one argument"),
        ("up --actors many", "--actors/--actors.count: 'many' is not a whole number, such as 12, 12_000 or 1e6"),
        ("up --actors 1.5", "--actors/--actors.count: '1.5' is not a whole number, such as 12, 12_000 or 1e6"),
        ("up --actors 0", "--actors.count: expected int >= 1, got 0"),
        ("up --seed -1", "--seed: expected int >= 0, got -1"),
        (
            "up --learner.learning-rate fast",
            "--learner.learning-rate: 'fast' is not a learning rate, such as 3e-4, or lin_3e-4 or cos_3e-4 for one that falls",
        ),
        ("up --learner.lr 1e-3", "unknown option --learner.lr; did you mean --learner.learning-rate?"),
        ("up --buffer-size 5", "unknown option --buffer-size; did you mean --replay.capacity?"),
        ("up --device gpu", "--device: no device is called 'gpu'; did you mean cuda?"),
        ("up --actors.inference-device gpu", "--actors.inference-device: no device is called 'gpu'; did you mean cuda?"),
        ("up --device rocm:1", "--device: no device is called 'rocm:1'; did you mean cuda?"),
        ("up --algo PPO", "no algorithm is called 'PPO'; did you mean ppo?"),
        ("up --algo a2c", "no algorithm is called 'a2c'; the nearest to it is ppo; write package.module:Name for your own"),
        ("up --learner.learning-rate inf", "--learner.learning-rate: expected a finite number, got inf"),
        ("up --learner.batch-size 1_000_001", "--learner.batch-size: expected int <= 1000000, got 1000001"),
        ("up --learner.threads 100000", "--learner.threads: expected int <= 1024, got 100000"),
        (
            "up --deploy.hang-seconds 1e-9",
            "--deploy.hang-seconds: expected 0 or at least 1 s, got 1e-09; processes report twice a second",
        ),
        (
            "up --actors.memory-bytes 1",
            "--actors.memory-bytes: expected 0 or at least 50,000,000, got 1; an actor takes as much without a simulator",
        ),
        ("up --learner.memory-limit-bytes 9", "--learner.memory-limit-bytes: expected 0 or at least 1,000,000, got 9"),
        ("up --algorithm.gamma 1.5", "--algorithm.gamma: expected float <= 1.0, got 1.5"),
        ("up --algorithm.double perhaps", "--algorithm.double: 'perhaps' is not true or false"),
        ("up --learner.precision float8", "--learner.precision: 'float8' is not one of its values; did you mean float32?"),
        ("up --replay.budget-bytes 4XB", "--replay.budget-bytes: '4XB' is not a number of bytes, such as 4e9 or 4GB"),
        (
            "up --algo dqn --replay.demonstrations x.npz --replay.demonstration-share 0.5 --replay.human-share 0.5",
            "replay.demonstration_share (0.5) and replay.human_share (0.5) may be at most 0.9 together: the rest of a batch is "
            "the run's own experience",
        ),
        ("up --learner.keep-checkpoints 1000", "--learner.keep-checkpoints: expected int <= 900, got 1000"),
        ("up --total-steps 1e20", "--total-steps: expected int <= 1000000000000000, got 100000000000000000000"),
        ("up --stop-after soon", "--stop-after: 'soon' is not a duration, such as 90s, 5m or 2h"),
        ("up --stop-after nan", "--stop-after: expected a duration of at least 0, got nan s"),
        ("up --stop-after=-5m", "--stop-after: expected a duration of at least 0, got -300 s"),
        ("up --stop-at soon", "--stop-at: 'soon' is not a time, such as 07:00 or 2026-12-01T07:00"),
        ("up --stop-at 2020-01-01T07:00", "--stop-at: 2020-01-01 07:00 has passed"),
        ("up --deploy.pause-on rain", "--deploy.pause-on: 'rain' is not one of its values; known: battery, fullscreen"),
        ("up --serial --deploy.cores 60%", "--serial is one process: leave out --deploy.cores 60%"),
        ("up --device cudda", "--device: no device is called 'cudda'; did you mean cuda?"),
        ("up --resume --fresh", "--fresh: not allowed with argument --resume"),
        ("up --run new --resume", "there is no run new to resume; leave --resume out to start it"),
        ("up --preset colectors", "--preset: there is no preset 'colectors'; did you mean collectors?"),
        ("up --preset ppo", "--preset: there is no preset 'ppo'; it is an algorithm: --algo ppo"),
        ("up --config none.toml", "cannot read none.toml: No such file or directory"),
        ("up --config runs", "cannot read runs: it is not a regular file"),
        ("up --env snake --env.tolerance 0.1", "--env.tolerance: only robot has it; snake does not"),
        ("up --env snake --env.stak 2", "unknown option --env.stak; did you mean --env.stack?"),
        ("up --env mario --env.skip often", "--env.skip: 'often' is not a whole number, such as 12, 12_000 or 1e6"),
        ("up --env robot --env.tier far", "--env.tier: 'far' is not one of its values; did you mean hard?"),
        ("up --env Pendulum-v1 --algorithm.gae-lambda 0.9", "--algorithm.gae-lambda: only ppo has it; sac does not"),
        ("up --algo dqn --algorithm.gae_lambda 0.9", "--algorithm.gae-lambda: only ppo has it; choose it with --algo"),
        ("eval nigth", "no run named 'nigth' in runs/; did you mean night?"),
        ("eval night --episodes 0", "--episodes: expected int >= 1, got 0"),
        (
            "eval night --best",
            "run night has no weights in checkpoints/best.safetensors yet, because no evaluation has finished: let it run longer",
        ),
        ("eval night --best --random", "--random: not allowed with argument --best"),
        ("eval night --weights none", "--weights: there is no file none"),
        ("eval night --tolerances near", "--tolerances: 'near' is not a number"),
        ("eval night --tolerances 0.1,0", "--tolerances: expected float > 0.0, got [0.1, 0.0]"),
        ("demo night --video no/out.mp4", "--video: there is no folder no"),
        ("demo night --video out.mp4 --headless", "--headless: not allowed with argument --video"),
        ("demo night --seed -1", "--seed: expected int >= 0, got -1"),
        ("replay night --episode seven", "--episode seven: write best, worst, first-success, or a number of --list"),
        ("replay night --step 7 --list", "--list: not allowed with argument --step"),
        ("replay night --least-return 7", "--least-return says what a success is: add --episode first-success"),
        ("export night", "the following arguments are required: OUT"),
        ("scale 0 night", "a run has 1 to 1024 actors, not 0"),
        ("logs lerner --run night", "run night has no log of lerner; did you mean learner?"),
        ("logs night", "night is a run: `headrace logs --run night` prints its log"),
        ("logs learner -n -5 --run night", "--lines: expected a number of at least 0, got -5"),
        ("trace night one", "KEY: 'one' is not a whole number, such as 12, 12_000 or 1e6"),
        ("presets mary", "there is no preset 'mary'; did you mean mario?"),
        ("envs --picture x.png", "--picture needs --check ENV, the environment to draw"),
        ("envs --env.skip 3", "--env.skip needs --check ENV, the environment that it is for"),
        ("envs --check mario --env.skap 3", "unknown option --env.skap; did you mean --env.skip?"),
        ("bench replai", "there is no benchmark 'replai'; did you mean replay?"),
    ],
)
def test_a_mistake_is_one_line(typed: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert mistake(capsys, *typed.split()) == line


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (["up", "--run", ""], "--run '' is not a name: letters, digits, dots, dashes and underscores only"),
        (["down", "--run", ""], "no run named '' in runs/; known: night"),
        (["down", ""], "no run named '' in runs/; known: night"),
        (["down", "night", "--run", "day"], "day and night: name one run"),
    ],
)
def test_a_name_that_a_shell_has_made_empty_means_no_other_run(
    typed: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`headrace down --run "$NAME"` where NAME is not set."""
    assert mistake(capsys, *typed) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[replay]\ncapasity = 3", "mine.toml: unknown key replay.capasity in table [replay]; did you mean capacity?"),
        ("[replai]\ncapacity = 3", "mine.toml: unknown key replai in the top level; did you mean replay?"),
        ("[replay]\ncapacity = 'big'", "mine.toml: replay.capacity: expected int, got str"),
        ("[replay]\ncapacity = 0", "mine.toml: replay.capacity: expected int >= 1, got 0"),
        ("replay = 3", "mine.toml: replay must be a table"),
        ("seed = {a = 1}", "mine.toml: seed must not be a table"),
        (
            "[replay]\nselector = 'best'",
            "mine.toml: replay.selector: no selector is called 'best'; known: prioritised, uniform; "
            "write package.module:Name for your own",
        ),
        ("[algorithm]\nname = 'dqm'", "no algorithm is called 'dqm'; did you mean dqn?"),
        ("[env]\nid = 'snake'\nurdf = 'arm.urdf'", "mine.toml: env.urdf: only robot has it; snake does not"),
        ("[algorithm]\nname = 'dqn'\ngae_lambda = 1", "mine.toml: algorithm.gae_lambda: only ppo has it; dqn does not"),
        ("[algorithm]\ngama = 1", "mine.toml: unknown key algorithm.gama in table [algorithm]; did you mean gamma?"),
        (
            "format = 99",
            "mine.toml was written by a newer version of Headrace (format 99, this one reads up to 9): "
            "use that version, or another --run",
        ),
    ],
)
def test_a_mistake_in_a_file_names_the_file_and_the_key(text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text(text)
    assert mistake(capsys, "up", "--config", "mine.toml") == line


def test_a_file_that_is_not_toml_names_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text("[learner\nx = 1")
    line = mistake(capsys, "up", "--config", "mine.toml")
    assert line.startswith("mine.toml is not TOML: ") and "line 1" in line


OLD = [key for key in RENAMED if key not in RENAMED.values()]  # PPO's target_kl is an option still, of another meaning


@pytest.mark.parametrize("old", OLD)
def test_every_old_flag_answers_with_its_new_name(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag, new = "--" + old.replace("_", "-"), "--" + RENAMED[old].replace("_", "-")
    for typed in ((flag, "1"), (f"{flag}=1",), (f"--{old}", "1")):
        assert mistake(capsys, "up", *typed) == f"{flag} is called {new} now"


@pytest.mark.parametrize("old", OLD)
def test_every_old_key_of_a_file_answers_with_its_new_name(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    section, _, key = old.partition(".")
    Path("mine.toml").write_text(f"[{section}]\n{key} = 1\n")
    assert mistake(capsys, "up", "--config", "mine.toml") == f"mine.toml: {old} is called {RENAMED[old]} now"
