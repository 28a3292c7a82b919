"""The summary of results, as a document, a table and a page."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from deploy.provenance import strict_json
from deploy.studies.suite.file import Suite, order, read
from deploy.studies.suite.page import page, picture
from deploy.studies.suite.summary import lines, summarise

TEXT = """
about = "A <fast> & fair comparison"
seeds = 3
minutes = 1
final_evaluations = 2
[tasks.Easy]
env = "CartPole-v1"
random = 0
reference = 100
source = "a <book>"
[tasks.Hard]
env = "Acrobot-v1"
random = -500
reference = -100
[tasks.Open]
env = "Pendulum-v1"
[contestants.ours]
[contestants.theirs]
"""
VOID = {"meta"}
SVG = "{http://www.w3.org/2000/svg}"
Curves = dict[tuple[str, str], list[list[float]]]  # by task and contestant, of each seed


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    return read(path)


def result(seed: int, scores: list[float], trained: float = 60.0) -> dict[str, Any]:
    """Evaluations at 10, 20, … seconds."""
    curve = [{"seconds": 10 * k, "steps": 1000 * k, "return_mean": score} for k, score in enumerate(scores, 1)]
    machine = {"cpu": "one", "cores": 2, "memory_gb": 8.0, "system": "Linux"}
    return {"seed": seed, "curve": curve, "training": {"steps": 5000, "seconds": trained}, "machine": machine, "commit": "a" * 40}


def results(suite: Suite, curves: Curves) -> dict[str, dict[str, Any]]:
    found = {}
    for run in order(suite):
        scores = curves.get((run.task.name, run.contestant.name), [])
        if run.seed <= len(scores):
            found[run.name] = result(run.seed, scores[run.seed - 1])
    return found


@pytest.mark.parametrize(("slower", "told"), [(8.0, "the cores were 25 % faster"), (9.0, None)])
def test_a_machine_whose_speed_changed_between_runs_is_told(suite: Suite, slower: float, told: str | None) -> None:
    curve = [10.0, 95.0, 95.0, 95.0]
    found = results(suite, {("Easy", "ours"): [curve, curve], ("Easy", "theirs"): [curve], ("Hard", "ours"): [curve]})
    for number, name in enumerate(sorted(found)):
        if number != 1:  # measured by an earlier version, without it
            found[name]["machine"]["core_speed"] = [slower, slower] if number == 0 else [10.5, 9.5]
    summary = summarise(suite, found)
    assert [task["core_speeds"] for task in summary["tasks"]] == [[slower, 10.0], [10.0, 10.0], None]
    for shown in ("\n".join(lines(summary)), page(suite, found, summary)):
        assert shown.count("the cores were") == (told is not None) and (told or "") in shown


FULL: Curves = {
    ("Easy", "ours"): [[0, 95, 95, 95], [95, 95, 95, 95], [0, 0, 95, 99, 97]],
    ("Easy", "theirs"): [[0, 0, 0, 95, 95, 95]] * 3,
    ("Hard", "ours"): [[-500, -500, -500, -120, -120, -120]] * 3,
    ("Hard", "theirs"): [[-500] * 6, [-120] * 6, [-500] * 6],
    ("Open", "ours"): [[1, 2], [3, 4], [5, 6]],
}


FLAT: Curves = {key: [[-500.0] * 6] * 3 for key in (("Hard", "ours"), ("Hard", "theirs"))}


@pytest.mark.parametrize(
    ("curves", "trained", "by_task", "mean"),
    [
        # Medians over seeds; a time that was not reached counts as the limit and is marked.
        (FULL, 60.0, {"Easy": (20 / 40, ""), "Hard": (40 / 60, "at most")}, math.sqrt(0.5 * 40 / 60)),
        # A run that ended at its steps counts with the time that it had.
        (FULL, 45.0, {"Easy": (20 / 40, ""), "Hard": (40 / 45, "at most")}, math.sqrt(0.5 * 40 / 45)),
        # Where neither reached it there is no ratio.
        (FLAT, 60.0, {}, math.nan),
    ],
)
def test_ratios_are_those_of_the_median_times(
    suite: Suite, curves: Curves, trained: float, by_task: dict[str, tuple[float, str]], mean: float
) -> None:
    found = results(suite, curves)
    for one in found.values():
        one["training"]["seconds"] = trained
    (ratio,) = summarise(suite, found)["ratios"]
    assert ratio["by_task"] == {task: {"ratio": pytest.approx(value), "bound": bound} for task, (value, bound) in by_task.items()}
    assert ratio["geometric_mean"] == pytest.approx(mean, nan_ok=True)


def test_times_to_a_score_are_listed_by_seed(suite: Suite) -> None:
    easy, hard, _ = summarise(suite, results(suite, FULL))["tasks"]
    assert easy["contestants"][0]["seconds_to_score"] == [20, 10, 30] and easy["contestants"][0]["median_seconds"] == 20
    assert hard["contestants"][1]["seconds_to_score"] == [None, 10, None] and hard["contestants"][1]["median_seconds"] is None


def test_the_final_score_and_its_interval(suite: Suite) -> None:
    summary = summarise(suite, results(suite, FULL))
    ours = summary["tasks"][2]["contestants"][0]
    assert ours["final"] == [1.5, 3.5, 5.5] and ours["iqm"] == 3.5 and ours["seconds_to_score"] == []
    low, high = ours["ci95"]
    assert low == 1.5 and high == 5.5


def test_scores_of_all_tasks_are_normalised(suite: Suite) -> None:
    ours, theirs = summarise(suite, results(suite, FULL))["contestants"]
    assert ours["tasks"] == 2 and ours["normalised_iqm"] == pytest.approx((0.95 * 4) / 4)
    assert theirs["normalised_iqm"] < ours["normalised_iqm"]


def test_tasks_that_the_interquartile_mean_cuts_off_are_named_beside_it(tmp_path: Path) -> None:
    """A contestant that fails one task of many must not look like one that solves all."""
    more = "".join(f'[tasks.T{k}]\nenv = "CartPole-v1"\nrandom = 0\nreference = 100\n' for k in range(3))
    path = tmp_path / "mine.toml"
    path.write_text(TEXT + more)
    suite = read(path)
    solved: Curves = {(f"T{k}", "ours"): [[90.0 + k] * 2] * 3 for k in range(3)}
    found = results(suite, solved | {("Easy", "ours"): [[0.0] * 2] * 3, ("Hard", "ours"): [[-120.0] * 2] * 3})
    summary = summarise(suite, found)
    assert [one["cut_off"] for one in summary["contestants"]] == [["Easy", "Hard"], []]
    note = "The interquartile mean leaves out the lowest and the highest quarter: for ours all of Easy, Hard."
    assert note in "\n".join(lines(summary)) and note in page(suite, found, summary)


def test_scores_that_are_no_numbers_make_strict_json(suite: Suite) -> None:
    broken = results(suite, {("Easy", "ours"): [[math.nan, math.nan], [95, math.nan], [1, 3]]})
    summary = summarise(suite, broken)
    found = json.loads(strict_json(summary), parse_constant=pytest.fail)["tasks"][0]["contestants"][0]
    assert found["final"] == [None, None, 2] and found["iqm"] == 2 and found["ci95"] is None
    assert lines(summarise(suite, {}))[0] == "mine: 0 of 18 runs are finished"
    assert "nan" not in page(suite, broken, summary) and "nan" not in "\n".join(lines(summary))


def test_the_table_shows_what_people_ask_for(suite: Suite) -> None:
    text = "\n".join(lines(summarise(suite, results(suite, FULL))))
    assert "Easy, 1 min: random 0, reference 100, to reach 90" in text
    assert "1 of 3" in text and "Hard at most 0.6667" in text and "geometric mean 0.5774" in text


class Checked(HTMLParser):
    """Every element is closed in order, and nothing is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href"} & {name for name, _ in attributes}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_picture_is_a_file_for_itself_and_shows_what_is_above_random(suite: Suite) -> None:
    found = results(suite, FULL)
    (figures, *_), (task, *_) = summarise(suite, found)["tasks"], suite.tasks
    drawn = ElementTree.fromstring(picture(suite, found, task, figures))
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert texts[-1:] == ["ours"] and "seconds since the start of the process" in texts
    assert [len(list(drawn.iter(f"{SVG}{tag}"))) for tag in ("svg", "style")] == [2, 1]
    assert picture(suite, {}, task, figures) == ""


@pytest.mark.parametrize(
    ("scores", "marks"),
    [
        ([0.0002, 0.001], ["0.0002", "0.0004", "0.0006", "0.0008", "0.001"]),  # metres of a robot
        ([499.0, 500.0], ["499", "499.2", "499.4", "499.6", "499.8", "500"]),
        ([20.0, 1200.0], ["500", "1,000"]),
        ([-256.0, 286.0], ["-200", "0", "200"]),
    ],
)
def test_marks_of_an_axis_are_round_numbers_and_no_two_are_alike(suite: Suite, scores: list[float], marks: list[str]) -> None:
    found = results(suite, {("Open", "ours"): [scores]})
    figures, task = summarise(suite, found)["tasks"][2], suite.tasks[2]
    drawn = ElementTree.fromstring(picture(suite, found, task, figures))
    beside = [text.text for text in drawn.iter(f"{SVG}text") if text.get("text-anchor") == "end" and not text.get("style")]
    assert beside[: len(marks)] == marks


@pytest.mark.parametrize("curves", [FULL, {}, {("Easy", "ours"): [[5.0]]}])
def test_the_page_is_whole_html_and_needs_nothing_from_elsewhere(suite: Suite, curves: Curves) -> None:
    found = results(suite, curves)
    for one in list(found.values())[:1]:
        one["commit"] = "b" * 40 + "+"  # files were changed
    text = page(suite, found, summarise(suite, found))
    assert "b" * 12 + "+<" in text or not found
    checked = Checked()
    checked.feed(text)
    assert checked.open == [] and "url(" not in text and "http" not in text
    assert checked.count.get("svg", 0) == 2 * 2 * len({task for task, _ in curves}), "by seconds and by steps; frame and curves"
    assert checked.count.get("polyline", 0) == 2 * (len(found) + len(curves)), "one for each seed, and the means"
    assert "A <fast> & fair comparison" in checked.text and "a <book>" in checked.text
