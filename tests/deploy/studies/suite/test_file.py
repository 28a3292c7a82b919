"""The file of `headrace suite`: what it may say, what is wrong in one line, and the order of the runs."""

from pathlib import Path

import pytest

from deploy.errors import ConfigError
from deploy.studies.suite.file import Suite, order, read
from tests.harness.waiting import ROOT

GOOD = """
seeds = 3
minutes = 2
[tasks.CartPole-v1]
random = 22
reference = 500
[tasks.Swing]
env = { id = "Pendulum-v1", max_episode_steps = 50 }
minutes = 4
[contestants.plain]
[contestants.fast]
settings.learner.learning_rate = 1e-3
[contestants.fast.tasks.Swing]
learner.batch_size = 32
"""


def suite_of(tmp_path: Path, text: str) -> Suite:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read(path)


def test_keys_of_a_task_replace_those_at_the_top(tmp_path: Path) -> None:
    pole, swing = suite_of(tmp_path, GOOD).tasks
    assert (pole.env, pole.seconds, pole.random, pole.reference) == ({"id": "CartPole-v1"}, 120, 22, 500)
    assert (swing.env, swing.seconds) == ({"id": "Pendulum-v1", "max_episode_steps": 50}, 240)
    assert (pole.snapshot_seconds, swing.snapshot_seconds) == (2, 4), "a 60th of the run"


def test_settings_of_a_task_are_added_to_those_of_all(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, GOOD)
    fast = suite.contestants[1]
    assert fast.settings_for(suite.tasks[0]) == {"learner": {"learning_rate": 1e-3}}
    assert fast.settings_for(suite.tasks[1]) == {"learner": {"learning_rate": 1e-3, "batch_size": 32}}


def test_seeds_and_contestants_alternate(tmp_path: Path) -> None:
    runs = [(run.task.name, run.seed, run.contestant.name) for run in order(suite_of(tmp_path, GOOD))]
    assert runs[:6] == [
        ("CartPole-v1", 1, "plain"),
        ("CartPole-v1", 1, "fast"),
        ("Swing", 1, "plain"),
        ("Swing", 1, "fast"),
        ("CartPole-v1", 2, "fast"),
        ("CartPole-v1", 2, "plain"),
    ]
    assert [seed for _, seed, _ in runs] == [1] * 4 + [2] * 4 + [3] * 4


def test_a_contestant_takes_part_in_the_tasks_that_it_names(tmp_path: Path) -> None:
    text = GOOD.replace("[contestants.plain]", "[contestants.plain]\nonly = ['Swing']")
    runs = [run for run in order(suite_of(tmp_path, text)) if run.contestant.name == "plain"]
    assert [(run.task.name, run.seed) for run in runs] == [("Swing", 1), ("Swing", 2), ("Swing", 3)]
    with pytest.raises(ConfigError, match=r"contestants\.plain\.only\.Swim: there is no such task; did you mean Swing\?"):
        suite_of(tmp_path, text.replace("only = ['Swing']", "only = ['Swim']"))


def test_each_run_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = [run.name for run in order(suite_of(tmp_path, GOOD))]
    assert len(set(names)) == 12 and names[0] == "mine-cartpole-v1-plain-1"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("minutes = 2", "minuts = 2", ["unknown key minuts", "minutes"]),
        ("random = 22", "randon = 22", ["unknown key tasks.CartPole-v1.randon", "random"]),
        ("[contestants.plain]", "[contestants.plain]\nsetings = {}", ["unknown key contestants.plain.setings", "settings"]),
        ("seeds = 3", "", ["seeds is missing"]),
        ("seeds = 3", "seeds = 0", ["seeds", ">= 1"]),
        ("seeds = 3", "seeds = []", ["seeds must be different numbers, at least one"]),
        ("seeds = 3", "seeds = [1, 1]", ["seeds must be different"]),
        ("minutes = 2", "minutes = -2", ["minutes", "> 0", "-2"]),
        ("minutes = 2", "minutes = nan", ["minutes", "finite"]),
        ("minutes = 4", 'minutes = "four"', ["tasks.Swing.minutes", "float"]),
        ("reference = 500", "", ["tasks.CartPole-v1.reference is missing"]),
        ("reference = 500", "reference = 20", ["tasks.CartPole-v1.reference (20) must be above random (22)"]),
        ("reference = 500", "reference = inf", ["tasks.CartPole-v1.reference", "finite"]),
        ("fast.tasks.Swing", "fast.tasks.Swung", ["contestants.fast.tasks.Swung", "Swing"]),
        ("[contestants.plain]", "[contestants.'a b']", ["'a b' is not a name"]),
        ("[contestants.plain]", "[contestants.FAST]", ["two contestants differ only in letters"]),
        ("seeds = 3", "seeds = ", ["is not TOML"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        suite_of(tmp_path, GOOD.replace(old, new, 1))
    text = str(caught.value)
    assert "\n" not in text and "mine.toml" in text
    for word in words:
        assert word in text


@pytest.mark.parametrize("table", ["tasks", "contestants"])
def test_a_file_without_tasks_or_contestants_says_so(tmp_path: Path, table: str) -> None:
    other = "[contestants.a]" if table == "tasks" else "[tasks.CartPole-v1]"
    with pytest.raises(ConfigError, match=f"there is no {table[:-1]}"):
        suite_of(tmp_path, f"seeds = 1\n{other}\n")


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "learning").glob("*.toml")), ids=lambda path: path.stem)
def test_the_suites_of_the_benchmarks_can_be_read(path: Path) -> None:
    suite = read(path)
    assert all(task.random is not None for task in suite.tasks), "each has a score to reach"
