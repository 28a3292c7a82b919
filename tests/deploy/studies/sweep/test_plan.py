"""The file of a sweep, what may be searched, and the checks before the first trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.errors import ConfigError
from deploy.launch import preflight
from deploy.studies.jobs import MEMORY_SHARE, jobs_at_once
from deploy.studies.sweep.check import check, check_keys
from deploy.studies.sweep.plan import Plan, read_plan
from deploy.studies.sweep.ranges import Range

SWEEP = '[sweep]\ntrials = 3\ntime = "5m"\n'
ENV = '[env]\nid = "CartPole-v1"\n[algorithm]\nname = "dqn"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_of(text: str) -> Plan:
    path = Path("mine.toml")
    path.write_text(text)
    return read_plan(path)


def searching(*lines: str) -> Plan:
    return plan_of("\n".join([ENV, SWEEP, "[search]", *lines]))


def test_a_file_has_the_task_the_sweep_and_the_ranges_whose_keys_may_be_quoted_or_not() -> None:
    plan = plan_of(
        f"""seed = 5
{ENV}
[learner]
batch_size = 64
{SWEEP}
[search]
"learner.learning_rate" = {{low = 1e-5, high = 1e-2, log = true}}
algorithm.hidden = {{choices = [32, 64]}}
"algorithm.network_options.layers" = {{low = 1, high = 4, step = 2}}
"""
    )
    assert plan.seconds == 300 and plan.config.trials == 3 and plan.first_seed == 5
    assert plan.search == {
        "learner.learning_rate": Range(1e-5, 1e-2, log=True),
        "algorithm.hidden": Range(choices=[32, 64]),
        "algorithm.network_options.layers": Range(1, 4, step=2),
    }
    assert plan.search["algorithm.network_options.layers"].ends == [1, 3], "what steps reach"
    chosen = {"learner.learning_rate": 0.1, "algorithm.network_options.layers": 3}
    assert plan.settings(chosen) == {
        "seed": 5,
        "env": {"id": "CartPole-v1"},
        "learner": {"batch_size": 64, "learning_rate": 0.1},
        "algorithm": {"name": "dqn", "network_options": {"layers": 3}},
    }
    assert plan.folder == Path("sweeps/mine")


GAMMA = '[search]\n"algorithm.gamma" = {low = 0.9, high = 1.0}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENV + GAMMA, "needs a table [sweep]"),
        (ENV + SWEEP, "needs a table [search]"),
        (f"{ENV}[sweep]\ntime = 5\n{GAMMA}", "sweep: object missing required field trials"),
        (f"{ENV}[sweep]\ntrials = 0\ntime = 5\n{GAMMA}", "sweep.trials: expected int >= 1"),
        (f"{ENV}[sweep]\ntrials = 3\n{GAMMA}", "how long each run is"),
        (f'{ENV}[sweep]\ntrials = 3\ntime = "soon"\n{GAMMA}', "sweep.time: 'soon' is not a duration"),
        (f"{ENV}{SWEEP}trails = 4\n{GAMMA}", "unknown field trails"),
        (f'{ENV}{SWEEP}jobs = "many"\n{GAMMA}', "sweep.jobs: "),
        (f'{ENV}{SWEEP}pruner = "axe"\n{GAMMA}', "sweep.pruner: invalid enum value 'axe'"),
        (f"{ENV}[sweep]\ntrials = 3\nsteps = 1000\ntime_to = 200.0\n{GAMMA}", "sweep.time_to needs time"),
        (f"total_steps = 5\n{ENV}{SWEEP}{GAMMA}", "total_steps is set by the sweep: write steps in [sweep]"),
        (f"{ENV}{SWEEP}[search]\nseed = {{low = 1, high = 3}}", "seed is set by the sweep: write seeds in [sweep]"),
        (f"{ENV}{SWEEP}[search]\nx = 3", "search.x: expected {low = …, high = …} or {choices = […]}, got 3"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{low = 3}}", "search.a.b: write low and high, or choices"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{low = 3, high = 2}}", "low (3) must not be above high (2)"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{low = 0, high = 2, log = true}}", "with log, low must be above 0"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{low = 0, high = 2, step = 0}}", "step must be above 0"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{low = 0.0, high = inf}}", "must be finite"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{low = 0, high = 2, choices = [1]}}", "write either choices, or low and high"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{choices = [1, 1]}}", "choices must be different"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{choices = []}}", "choices must be different, and at least one"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{lwo = 3}}", "search.a.b: object contains unknown field lwo"),
        (f"{ENV}{SWEEP}[search]\n'a.b' = {{low = '3', high = 4}}", "search.a.b.low: expected "),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_the_key(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        plan_of(text)
    assert words in str(raised.value) and str(raised.value).startswith("mine.toml: ") and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "'learner.learning_rte' = {low = 1e-5, high = 1e-2}",
            "unknown key learner.learning_rte in table [learner]; did you mean",
        ),
        ("'lerner.learning_rate' = {low = 1e-5, high = 1e-2}", "unknown key lerner"),
        ("'algorithm.ent_coef' = {low = 0.0, high = 0.1}", "only ppo has it"),
        ("'algorithm.gamma' = {low = 0.9, high = 1.1}", "mine.toml: search: algorithm.gamma: expected float <= 1.0, got 1.1"),
        (GAMMA.partition("\n")[2] + "[learner]\nbatch = 3", "mine.toml: unknown key learner.batch in table [learner]"),
        ("'learner.learning_rate' = {low = -1.0, high = 1.0}", "learner.learning_rate: expected float > 0.0, got -1.0"),
        ("'algorithm.hidden' = {choices = [64, 'wide']}", "algorithm.hidden: expected int, got str"),
        ("'algorithm.hidden' = {choices = [64, 0]}", "algorithm.hidden: expected int >= 1"),
        ("'algorithm.n_step' = {low = 1, high = 100}", "algorithm.n_step: expected int <= 64"),
        ("'algorithm.n_step' = {low = 1, high = 4.5}", "algorithm.n_step is a whole number; write low, high and step without"),
        ("'learner.accumulation' = {choices = [1, 3]}", "learner.accumulation (3) must divide learner.batch_size (128)"),
        ("'algorithm.name' = {choices = ['dqn', 'dqm']}", "no algorithm is called 'dqm'"),
        ("'evaluator.enabled' = {choices = [true, false]}", "evaluator.enabled must be true"),
        ("'learner.device' = {choices = ['cpu', 'toaster']}", "no device is called 'toaster'"),
        (
            "'algorithm.network' = {choices = ['mlp', 'mine:Torso']}",
            "mine:Torso names code that would be run: add --trust-config if",
        ),
    ],
)
def test_every_key_and_bound_and_choice_is_checked_against_the_configuration(line: str, words: str) -> None:
    plan = searching(line)
    with pytest.raises(ConfigError) as raised:
        check_keys(plan)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_whole_numbers_for_a_setting_that_is_a_float_are_taken_as_floats() -> None:
    search = check_keys(searching("'algorithm.gamma' = {low = 0, high = 1}", "'algorithm.n_step' = {low = 1, high = 5}")).search
    assert search == {"algorithm.gamma": Range(0.0, 1.0), "algorithm.n_step": Range(1, 5)}
    assert isinstance(search["algorithm.gamma"].low, float) and isinstance(search["algorithm.n_step"].low, int)


def test_a_choice_may_be_a_table_of_settings_that_belong_together() -> None:
    line = "'algorithm' = {choices = [{name = 'dqn', n_step = 1}, {name = 'ppo', ent_coef = 0.1}]}"
    check_keys(searching(line))
    with pytest.raises(ConfigError, match="only dqn, pqn and r2d2 have it"):
        check_keys(searching(line.replace("ent_coef", "epsilon_base")))


@pytest.mark.flow
def test_the_environment_and_every_network_are_tried_before_the_first_trial(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    try_it = preflight.preflight
    tried: list[preflight.PreflightResult] = []

    def only_once(*arguments: Any) -> preflight.PreflightResult:
        """All checks are of one environment."""
        tried.extend([] if tried else [try_it(*arguments)])
        return tried[0]

    monkeypatch.setattr(preflight, "preflight", only_once)
    depth = "'algorithm.network_options.{}' = {{low = 1, high = 4}}"
    checked = check(searching(depth.format("layers"), "'learner.device' = {choices = ['cpu']}"))
    assert checked.busy_processes == 3 and 5e8 < checked.trial_bytes < 5e9
    assert "checking CartPole-v1 … ok" in capfd.readouterr().out
    with pytest.raises(ConfigError) as raised:
        check(searching(depth.format("lairs"), "'learner.device' = {choices = ['cpu']}"))
    assert "lairs" in str(raised.value) and "algorithm.network_options.lairs = 1" in str(raised.value)
    with pytest.raises(ConfigError, match="CartPole-v1 has 2 actions, and --algo sac has no categorical actions"):
        check(searching("'algorithm.name' = {choices = ['dqn', 'sac']}", "'learner.device' = {choices = ['cpu']}"))
    with pytest.raises(ConfigError, match=r"replay.min_size \(100\) must be at least learner.batch_size \(128\)"):
        check(searching("'replay.min_size' = {choices = [1000, 100]}", "'learner.device' = {choices = ['cpu']}"))


GB = 1e9


@pytest.mark.parametrize(
    ("wanted", "cores", "processes", "free", "expected"),
    [
        ("auto", 1, 3, 100 * GB, 1),
        ("auto", 2, 3, 100 * GB, 2),
        ("auto", 4, 3, 100 * GB, 2),
        ("auto", 16, 3, 100 * GB, 5),
        ("auto", 16, 3, 3 * GB, 2),
        ("auto", 16, 3, 0.1 * GB, 1),
        ("auto", 2, 3, 1.5 * GB, 1),
        (4, 4, 3, 100 * GB, 4),
        (1, 16, 3, 0.1 * GB, 1),
        (5, 4, 3, 100 * GB, "need a core each, and this machine has 4"),
        (4, 4, 3, 3 * GB, "need 4.0 GB, and 3.0 GB of memory are free; at most 2"),
    ],
)
def test_trials_at_once_follow_cores_and_free_memory(
    wanted: Any, cores: int, processes: int, free: float, expected: int | str
) -> None:
    if isinstance(expected, int):
        found = jobs_at_once(wanted, cores, processes, free, GB)
        assert found == expected and found <= cores and (found == 1 or found * GB <= free * MEMORY_SHARE)
        return
    with pytest.raises(ConfigError) as raised:
        jobs_at_once(wanted, cores, processes, free, GB)
    assert expected in str(raised.value)
