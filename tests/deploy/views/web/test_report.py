"""The page as one file: complete, small, and without a way in for what a run may contain."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from deploy.cli import main as cli
from deploy.recorded.configuration import HIDDEN, settings_of
from deploy.recorded.fork_point import ForkPoint
from deploy.recorded.run import LOG_LINES, RecordedRun
from deploy.statistics import bootstrap_band, iqm, probability_of_improvement
from deploy.views.web import videos
from deploy.views.web.comparison import comparison
from deploy.views.web.report import LIMIT_BYTES, PAGE, report
from deploy.views.web.videos import shown_videos
from tests.deploy.views.web.made_up import BEGAN, made_up, with_videos
from transport.run_dir import RunDir

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


class Tags(html.parser.HTMLParser):
    """The start tags of a page, with their attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def recorded(*runs: RunDir) -> list[RecordedRun]:
    found = [RecordedRun(run) for run in runs]
    for one in found:
        one.read()
    return found


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def hostile_run(folder: Path) -> RunDir:
    """A run whose name, settings, log, events and figures are markup."""
    name = "a<script>b" if os.name == "posix" else "a&lt;b"  # Windows allows no < in names
    run = made_up(folder / name, log_lines=[f"actor-0  | {HOSTILE}"], deploy__sinks=["tensorboard", "x:Y"])
    run.status.write_text(run.status.read_text().replace("stopped by you", json.dumps(HOSTILE)[1:-1]))
    run.events.write_text(json.dumps({"time": 1.0, "kind": HOSTILE, "process": HOSTILE, "text": HOSTILE, "count": 1}) + "\n")
    run.config.write_text(run.config.read_text().replace("CartPole-v1", HOSTILE.replace('"', "'")))
    text = run.metrics("learner").read_text().replace('"td"', json.dumps(HOSTILE))
    run.metrics("learner").write_text(text)
    return run


def test_the_page_needs_nothing_from_elsewhere_and_allows_only_its_own_scripts(tmp_path: Path) -> None:
    tags = Tags(report(recorded(made_up(tmp_path / "mine"))))
    assert not [(tag, found) for tag, found in tags.found if "src" in found or str(found.get("href", "#"))[:1] not in "#d"]
    policy = next(str(found["content"]) for tag, found in tags.found if found.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "unsafe" not in policy
    programs = [
        text
        for text, (tag, found) in zip(tags.scripts, [one for one in tags.found if one[0] == "script"], strict=True)
        if "type" not in found
    ]
    assert len(programs) > 3
    for text in programs:
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy


def test_markup_in_anything_that_a_run_contains_stays_text(tmp_path: Path) -> None:
    page = report(recorded(hostile_run(tmp_path)))
    plain = report(recorded(made_up(tmp_path / "plain")))
    assert [tag for tag, _ in Tags(page).found] == [tag for tag, _ in Tags(plain).found]
    assert HOSTILE not in page and json.dumps(HOSTILE)[1:-1] in json.dumps(data_of(page))


def test_a_large_run_and_many_long_ones_fit_into_two_megabytes(tmp_path: Path) -> None:
    random, runs = np.random.default_rng(1), [made_up(tmp_path / f"a-{seed}", seconds=600, seed=seed) for seed in range(16)]
    names = ("return_mean", "return_std", "length_mean", "score_mean", "success_rate")
    for run in runs:
        rows = random.random((1900, len(names))).tolist()
        records = [{"time": BEGAN + 5, "policy_version": version, "episodes": 20} for version in range(len(rows))]
        lines = (json.dumps(record | dict(zip(names, row, strict=True))) for record, row in zip(records, rows, strict=True))
        run.metrics("evaluator").write_text("\n".join(lines) + "\n")
        run.events.write_text(1000 * (run.events.read_text().splitlines()[0] + "\n"))
    page = report(recorded(*runs))
    assert len(page.encode()) <= LIMIT_BYTES
    large = made_up(tmp_path / "large", seconds=7200, actors=24, troubled=True, log_lines=["actor-1  | " + "x" * 900] * 3000)
    assert 300_000 < len(report(recorded(large)).encode()) <= LIMIT_BYTES
    assert all(len(one["evaluations"]["best"]) >= 50 and one["log"] for one in data_of(page)["runs"])


@pytest.mark.parametrize("lines", [100, LOG_LINES // 2 - 500, LOG_LINES // 2 + 500, 3 * LOG_LINES])
def test_of_several_runs_the_newest_lines_of_each_log_are_shown(lines: int, tmp_path: Path) -> None:
    runs = [
        made_up(tmp_path / name, seconds=60, log_lines=[f"actor-0  | line {number}" for number in range(lines)]) for name in "ab"
    ]
    for shown in data_of(report(recorded(*runs)))["runs"]:
        numbers = [int(text.rpartition(" ")[2]) for text in shown["log"] if "| line " in text]
        assert numbers == list(range(lines - len(numbers), lines)) and len(numbers) == min(lines, LOG_LINES // 2)


@pytest.mark.parametrize(
    ("returns", "roles"),
    [
        ({1: 5.0, 2: 9.0, 3: 2.0, 4: 7.0}, {4: ["newest"], 2: ["best"], 3: ["worst"]}),
        ({1: 5.0, 2: 9.0}, {2: ["newest", "best"], 1: ["worst"]}),
        ({1: 5.0, 2: 5.0}, {2: ["newest"]}),
        ({}, {}),
    ],
)
def test_the_newest_the_best_and_the_worst_video_are_shown(
    returns: dict[int, float], roles: dict[int, list[str]], tmp_path: Path
) -> None:
    found = shown_videos(with_videos(made_up(tmp_path / "mine", seconds=60), returns))
    assert [(one["policy_version"], one["roles"], one["return"]) for one in found] == [
        (version, named, returns[version]) for version, named in roles.items()
    ]


def test_videos_are_put_into_a_report_on_request_and_where_they_may_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    film = b"PICTURES" * 30_000
    with_videos(made_up(tmp_path / "runs" / "own", seconds=60), {1: 5.0, 2: 9.0}, data=film)
    with_videos(made_up(tmp_path / "runs" / "game", seconds=60), {1: 5.0}, public=False, data=film)
    coded = base64.b64encode(film).decode()

    def written(*flags: str) -> str:
        assert cli.main(["report", "own", "game", "--out", "page.html", *flags]) == cli.DONE
        return (tmp_path / "page.html").read_text()

    without, page = written(), written("--videos")
    assert (without.count(coded), page.count(coded)) == (0, 2) and "media-src data:" in page
    own, game = [run["videos"] for run in data_of(page)["runs"]]
    assert [base64.b64decode(one["data"].removeprefix("data:video/mp4;base64,")) for one in own] == [film + b" 2", film + b" 1"]
    assert "data" not in game[0] and game[0]["file"] == "best-v1.mp4"
    monkeypatch.setattr(videos, "INLINE_BYTES", 400_000)
    assert written("--videos").count(coded) == 1


def test_settings_are_beside_those_of_the_preset_and_secrets_are_hidden(tmp_path: Path) -> None:
    run = made_up(
        tmp_path / "mine",
        learner__batch_size=99,
        learner__threads=3,
        deploy__sinks=["tensorboard", "x:Y"],
        deploy__sink_options={"x:Y": {"api_key": "s3cret", "project": "p"}},
    )
    found = {one.key: one for one in settings_of(run)}
    assert not found["learner.threads"].differs, "the launch sets it"
    assert tuple(found["learner.batch_size"]) == ("learner.batch_size", 99, 128, "preset cartpole-dqn")
    assert found["learner.batch_size"].differs and found["algorithm.double"].expected is not None
    assert found["deploy.sink_options.x:Y.api_key"].value == HIDDEN and "s3cret" not in report(recorded(run))


def tasks(*runs: RunDir, score: float | None = None) -> list[Any]:
    """The tasks of the comparison of these runs."""
    found = comparison(recorded(*runs), score)
    assert found is not None
    return found["tasks"]  # type: ignore[no-any-return]


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path: Path) -> None:
    runs = [made_up(tmp_path / f"slow-{seed}", seed=seed) for seed in (1, 2, 3)]
    runs += [made_up(tmp_path / f"fast-{seed}", seed=seed, speed=1.8, learner__learning_rate=0.01) for seed in (1, 2, 3)]
    (task,) = tasks(*runs, score=400.0)
    slow, fast = task["groups"]
    assert (slow["seeds"], fast["seeds"], task["keys"]) == ([1, 2, 3], [1, 2, 3], ["learner.learning_rate"])
    assert fast["seconds_to_score"] < slow["seconds_to_score"] and (slow["reached"], fast["reached"]) == (3, 3)
    assert [one["group"] for one in task["improvement"]] == [0]
    assert slow["iqm"] == pytest.approx(iqm(slow["final"]), rel=1e-3) and slow["ci95"][0] <= slow["iqm"] <= slow["ci95"][1]
    curve = slow["curves"]["seconds"]
    middle = len(curve["x"]) // 2
    assert curve["low"][middle] <= curve["iqm"][middle] <= curve["high"][middle] and len(curve["each"]) == 3
    assert comparison(recorded(runs[0])) is None


def test_only_different_seeds_of_one_length_are_a_group(tmp_path: Path) -> None:
    lengths = {"a": (1, 600), "b": (2, 540), "short": (3, 60), "again": (1, 600)}
    runs = [made_up(tmp_path / name, seed=seed, seconds=seconds) for name, (seed, seconds) in lengths.items()]
    task = tasks(*runs)[0]
    assert [group["runs"] for group in task["groups"]] == [["a", "b"], ["short"], ["again"]]
    assert task["groups"][0]["steps"] == pytest.approx([1_800_000, 1_620_000], rel=0.2)
    assert task["improvement"] == [], "none is said of fewer than three seeds"
    elsewhere = made_up(tmp_path / "elsewhere", env__id="Acrobot-v1")
    assert [len(one["groups"]) for one in tasks(runs[0], elsewhere)] == [1, 1], "different environments are not compared"


@pytest.mark.parametrize("first", [0, 100])
def test_a_score_that_was_not_reached_three_times_in_a_row_is_not_reached_in_a_long_run(first: int, tmp_path: Path) -> None:
    """Of so many evaluations the page shows half, which are all alike here."""
    runs = [made_up(tmp_path / f"a-{seed}", seed=seed, seconds=15_000) for seed in (1, 2)]
    for run in runs:
        records = [json.loads(line) for line in run.metrics("replay").read_text().splitlines()]
        means = [abs(first - number % 2 * 100) for number in range(len(records))]
        found = [
            {"time": record["time"], "policy_version": number, "episodes": 20, "return_mean": means[number]}
            for number, record in enumerate(records)
        ]
        run.metrics("evaluator").write_text("".join(json.dumps(one) + "\n" for one in found))
    (group,) = tasks(*runs, score=90.0)[0]["groups"]
    assert (group["reached"], group["seconds_to_score"]) == (0, None) and group["final"] == [60 - first / 5] * 2


def fork_of(parent: RunDir, folder: Path, **settings: Any) -> RunDir:
    """SharedSegments at 300 s and 900,000 steps, and as long as its parent from there on; its first evaluation is not at once."""
    fork = made_up(folder, **settings)
    later = fork.metrics("evaluator").read_text().splitlines(keepends=True)[1:]
    fork.metrics("evaluator").write_text("".join(later))
    before = recorded(parent)[0].clock.first
    point = ForkPoint(parent.name, "epoch-0000000001.safetensors", 1, 1, 300.0, 900_000, before, 123.0, settings)
    fork.fork_point.write_bytes(msgspec.json.encode(point))
    return fork


@pytest.mark.parametrize("restored", [True, False])  # with replay's experience, whose counter has the steps before, and without
def test_the_curve_of_a_fork_goes_on_from_the_steps_and_time_of_the_run_before(restored: bool, tmp_path: Path) -> None:
    parent = made_up(tmp_path / "a")
    fork = fork_of(parent, tmp_path / "b", learner__learning_rate=1e-5)
    if restored:
        lines = map(json.loads, fork.metrics("replay").read_text().splitlines())
        counted = [line | {"inserted_steps": line["inserted_steps"] + 900_000, "restored_steps": 900_000} for line in lines]
        fork.metrics("replay").write_text("".join(json.dumps(line) + "\n" for line in counted))
    data = data_of(report(recorded(parent, fork)))
    one, other = data["runs"]
    assert other["grid"]["seconds"][0] == one["grid"]["seconds"][0] + 300
    assert other["grid"]["steps"] == [steps + 900_000 for steps in one["grid"]["steps"]]
    assert [at - 300 for at in other["evaluations"]["seconds"]] == one["evaluations"]["seconds"][1:]
    assert [steps - 900_000 for steps in other["evaluations"]["steps"]] == one["evaluations"]["steps"][1:]
    groups = data["comparison"]["tasks"][0]["groups"]
    assert [group["runs"] for group in groups] == [["a"], ["b"]]
    curve = groups[1]["curves"]["steps"]
    assert (curve["x"][0], curve["iqm"][0]) == (900_000, 123), "it branches off where the other run was last evaluated"
    behind = other["reference"]
    assert behind["run"] == "a" and behind["return_mean"] == one["evaluations"]["return_mean"][-len(behind["seconds"]) :]
    assert behind["seconds"][0] <= 300 < behind["seconds"][1] and other["fork"]["run"] == "a"


def test_a_fork_is_no_other_seed_and_a_new_run_of_its_parent_s_name_is_not_behind_its_curve(tmp_path: Path) -> None:
    parent = made_up(tmp_path / "a")
    fork = fork_of(parent, tmp_path / "b", seed=2)
    point = msgspec.json.decode(fork.fork_point.read_bytes(), type=ForkPoint)
    fork.fork_point.write_bytes(msgspec.json.encode(msgspec.structs.replace(point, began=BEGAN - 1e6)))
    data = data_of(report(recorded(parent, fork)))
    assert len(data["comparison"]["tasks"][0]["groups"]) == 2
    assert "run" not in (data["runs"][1]["reference"] or {})


def test_runs_of_one_name_in_several_folders_have_names_that_tell_them_apart(tmp_path: Path) -> None:
    """The page knows its runs by these names: it showed two runs of one name as one, and no comparison."""
    folders = ["here/runs/a", "there/runs/a", "there/runs/b", "more/there/runs/b"]
    runs = [made_up(tmp_path / folder, seconds=60) for folder in folders]
    assert [one["name"] for one in data_of(report(recorded(*runs)))["runs"]] == [
        *("here/runs/a", "there/runs/a", f"{tmp_path.name}/there/runs/b", "more/there/runs/b")
    ]
    assert [one["name"] for one in data_of(report(recorded(*runs[1:3])))["runs"]] == ["a", "b"]


def test_the_band_is_the_bootstrap_s_of_each_point() -> None:
    random = np.random.default_rng(1)
    curves = random.normal(size=(6, 3)) + np.array([0.0, 10.0, 20.0])
    band = bootstrap_band(curves)
    assert band is not None
    for low, high, centre in zip(*band, (0, 10, 20), strict=True):
        assert low < iqm(curves[:, centre // 10]) < high and 0.2 < high - low < 4
    assert bootstrap_band(curves[:1]) is None


def test_probability_of_improvement_counts_ties_as_half() -> None:
    assert probability_of_improvement([1, 3], [2, 3]) == pytest.approx((0 + 0 + 1 + 0.5) / 4)


def test_vendored_files_are_those_that_are_named() -> None:
    rows = re.findall(r"\| `(\S+)` \|.*\| `([0-9a-f]{64})` \|", (PAGE / "vendored" / "VENDORED.md").read_text())
    assert len(rows) == 2
    for name, digest in rows:
        assert hashlib.sha256((PAGE / "vendored" / name).read_bytes()).hexdigest() == digest


def test_the_command_writes_into_the_run_s_folder_and_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made_up(tmp_path / "runs" / "mine", seconds=60)
    for typed, said in ((["nope"], "no run named"), (["mine", "--out", "nowhere/x.html"], "there is no folder nowhere")):
        assert cli.main(["report", *typed]) == cli.USAGE and said in capsys.readouterr().err
    assert cli.main(["report"]) == cli.DONE
    assert (tmp_path / "runs" / "mine" / "report.html").stat().st_size > 60_000 and "report.html" in capsys.readouterr().out
