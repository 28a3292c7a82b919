"""Episodes of a log, played again: exactly, or with the step at which they depart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import msgspec
import numpy as np
import pytest
import tomli_w

from actors.chunker import Chunker
from actors.config import ActorsConfig, EnvConfig
from actors.datasets.runs import Evicted, RunSource
from actors.envs.base import EnvironmentFamily
from actors.envs.make import env_section, make_env, read_env
from actors.envs.spaces import describe_space
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from actors.evaluation.options import RepeatOptions, to_arguments
from actors.evaluation.repeat import __main__ as repeat
from actors.evaluation.repeat.episodes import Entry, Episodes
from actors.evaluation.repeat.repeater import Repeater
from actors.evaluation.video.overlay import LEAST_HEIGHT
from benchmarks.common.settings import write_settings
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import PpoConfig
from replay.log.reshard import reshard
from replay.log.segment_log import Background, SegmentLog
from replay.log.segments import Scan, segments
from tests.actors.playing import random_actions
from transport.compression import crc32, pack_chunk
from transport.experience import bounded, write_spec
from transport.messages.replay import Insert
from transport.run_dir import RunDir

SEED_STEPS = 60  # few, so that a short log has episodes between two seeds


class Walk(gymnasium.Env):
    """A walk with noise; an episode ends at the sixth step to the right, which is a success, or after 30 steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    render_mode: str | None = "rgb_array"
    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    system = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.now = np.zeros(2, np.float32), 0
        return self.at.copy(), {}

    def noise(self) -> float:
        return self.np_random.normal()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.now += 1
        self.at += (self.noise(), 2 * action - 1)
        there = bool(self.at[1] >= 6)
        return self.at.copy(), float(action), there, self.now >= 30, {"is_success": there}

    def render(self) -> np.ndarray:  # type: ignore[override]
        return np.full((LEAST_HEIGHT, LEAST_HEIGHT, 3), 200, np.uint8)


class OfTheSystem(Walk):
    """Its noise is of no seed, from the fifth step on."""

    def noise(self) -> float:
        return float(self.system.normal()) if self.now >= 5 else 0.0


class Changes(Walk):
    """As long as `changed` is not set, it is a Walk."""

    changed = False

    def noise(self) -> float:
        return super().noise() + (self.changed and self.now == 4)


class Fails(Walk):
    """Raises where it has gone far to the left, and gives NaN where its noise is great."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, *others = super().step(action)
        if self.at[1] <= -4:
            raise ValueError("out of bounds")
        return observation, np.nan if self.at[0] > 6 else reward, *others  # type: ignore[return-value]


class Blind(Walk):
    """Observes pictures of its step, and has none of its own."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36), np.uint8)  # type: ignore[assignment]
    render_mode = None

    def reset(self, **given: Any) -> Any:
        super().reset(**given)
        return self.seen(), {}

    def step(self, action: int) -> Any:
        _, *others = super().step(action)
        return self.seen(), *others

    def seen(self) -> np.ndarray:
        return np.full((36, 36), 8 * self.now, np.uint8)


def played(path: Path, env: EnvConfig, steps: int, level: Callable[[int], int] | None = None, count: int = 3) -> RunDir:
    """A run whose log holds random steps of `count` environments of one actor."""
    run = RunDir(path)
    run.create()
    example = make_env(env)
    spec = experience_spec(example, env, "lz4")
    spaces = {"observation": describe_space(example.observation_space), "action": describe_space(example.action_space)}
    run.spaces.write_bytes(msgspec.json.encode(spaces))
    run.spec.write_bytes(write_spec(spec))
    sections = {"env": env_section(env), "algorithm": DqnConfig(hidden=8), "actors": ActorsConfig()}
    document = {"seed": 1} | msgspec.to_builtins(sections)
    run.config.write_text(tomli_w.dumps(document))
    write_settings(run, document)

    environments = VectorEnv(env, spec, count, range(7, 7 + count), raised=lambda line: None)
    chunker, random, background = Chunker(spec, count, 1e9), np.random.default_rng(0), Background()
    run.segments.mkdir(exist_ok=True)
    log = SegmentLog(run.segments, spec, 4, Scan(), background)
    key = 0

    def keep(chunks: Any) -> None:
        nonlocal key
        for chunk in chunks:
            parts = pack_chunk(spec, chunk)
            log.append(key, "actor-0", 5, Insert(key, chunk.stream, chunk.length, crc32(parts), (), chunk.starts), parts)
            key += 1

    observation = environments.reset()
    chunker.seeded(environments.seeded)
    for step in range(steps // count):
        if level is not None:
            environments.set_level(level(step))
        action = random_actions(spec, count, random)
        done = environments.step(bounded(spec, action))
        ends = done.reward, done.terminated, done.truncated
        keep(chunker.step(observation, action, *ends, done.final_observation, step, {}))
        chunker.seeded(environments.seeded)
        observation = done.observation
    keep(chunker.drain(observation, steps))
    log.close()
    background.close()
    environments.close()
    return run


@pytest.fixture(autouse=True)
def _seeds_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnvironmentFamily, "seed_steps", SEED_STEPS)


class Shown(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def again(capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    """Plays episodes of a run again."""

    def play(run: RunDir, **options: Any) -> Shown:
        return Shown(repeat.main(to_arguments(run, RepeatOptions(**options))), *capsys.readouterr())

    return play


def own(name: str) -> EnvConfig:
    return EnvConfig(id=f"{__name__}:{name}")


def episodes_of(run: RunDir) -> Episodes:
    return Episodes(RunSource(str(run.path)), 0, print)


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1", "snake", f"{__name__}:Walk", f"{__name__}:Fails"])
def test_every_episode_of_a_seeded_environment_repeats_exactly(env: str, again: Callable[..., Shown], tmp_path: Path) -> None:
    run = played(tmp_path / "run", EnvConfig(id=env), 1500)
    found = episodes_of(run)
    seeded = sum(entry.logged.start is not None for entry in found.entries)
    assert 3 < seeded < len(found.entries), "some begin with a seed, others go on from one"
    shown = again(run, check=True)
    assert shown.out == f"{len(found.entries):,} of {len(found.entries):,} episodes repeat exactly\n" and shown.status == 0
    last = again(run, episode=str(len(found.entries)), headless=True)
    assert last.status == 0 and "exact: each observation" in last.out


def test_an_episode_repeats_at_the_level_of_the_curriculum_that_it_had(again: Callable[..., Shown], tmp_path: Path) -> None:
    env = read_env({"id": "robot:flat", "curriculum": True, "backend": "kinematic", "max_episode_steps": 10})
    run = played(tmp_path / "run", env, 600, level=lambda step: step // 50)
    levels = {start.level for logged in RunSource(str(run.path)).logged() if (start := logged.start)}
    assert levels == {0, 1, 2, 3}
    shown = again(run, check=True)
    assert shown.status == 0, shown.out


def test_where_the_environments_noise_is_of_no_seed_it_says_at_which_step_it_departs(
    again: Callable[..., Shown], tmp_path: Path
) -> None:
    run = played(tmp_path / "run", own("OfTheSystem"), 600)
    number = next(entry.number for entry in episodes_of(run).entries if entry.length > 6)
    shown = again(run, episode=str(number), headless=True)
    assert shown.status == 1 and "departs from the log at step 5 of" in shown.out and ": observation[0] is " in shown.out
    assert "it has changed since, or does not follow from its seed alone" in shown.out


def test_where_the_environment_has_changed_its_pictures_end_and_those_of_the_log_go_on(
    again: Callable[..., Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(tmp_path / "run", own("Changes"), 600)
    entry = next(entry for entry in episodes_of(run).entries if entry.length > 6)
    frames: list[np.ndarray] = []
    monkeypatch.setattr(repeat, "Recorder", lambda open_for: Film(frames))
    monkeypatch.setattr(repeat, "video_writer", lambda path, speed: None)

    def bright() -> list[bool]:
        return [bool((frame[:, :LEAST_HEIGHT] == 200).all()) for frame in frames]

    assert again(run, episode=str(entry.number), video="film.mp4").status == 0
    assert all(bright()) and len(frames) > entry.length
    frames.clear()
    monkeypatch.setattr(Changes, "changed", True)
    shown = again(run, episode=str(entry.number), video="film.mp4")
    assert shown.status == 1 and f"departs from the log at step 4 of {entry.length}" in shown.out
    assert bright() == [True] * 4 + [False] * (len(frames) - 4)
    assert len({frame.shape for frame in frames}) == 1, "a film has pictures of one size"


class Film:
    def __init__(self, frames: list[np.ndarray]) -> None:
        self.show = frames.append

    def close(self) -> None: ...


def test_where_an_environment_has_no_pictures_the_observed_ones_are_shown(
    again: Callable[..., Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(tmp_path / "run", own("Blind"), 300)
    entry = next(entry for entry in episodes_of(run).entries if entry.logged.truncated and entry.length > 4)
    frames: list[np.ndarray] = []
    monkeypatch.setattr(repeat, "Recorder", lambda open_for: Film(frames))
    monkeypatch.setattr(repeat, "video_writer", lambda path, speed: None)
    assert again(run, episode=str(entry.number), video="film.mp4").status == 0
    shades = [int(frame[4, 4, 0]) for frame in frames[: entry.length + 1]]
    assert shades == [8 * step for step in range(entry.length + 1)]


def test_after_a_loss_episodes_are_exact_again_from_the_next_seed_on(again: Callable[..., Shown], tmp_path: Path) -> None:
    run = played(tmp_path / "run", own("Walk"), 3000)
    whole = len(episodes_of(run).entries)
    files = segments(run.segments)
    files[0].unlink()  # evicted
    files[len(files) // 2].unlink()  # lost
    found = episodes_of(run)
    assert len(found.entries) < whole
    departing = [entry for entry in found.entries if entry.logged.start is None and not found.before(entry)]
    assert 0 < len(departing) < len(found.entries) / 2
    shown = again(run, check=True)
    assert shown.status == 1
    assert shown.out.startswith(f"{len(found.entries) - len(departing):,} of {len(found.entries):,} episodes repeat exactly")
    assert "the log does not reach back to the seed" in again(run, episode=str(departing[0].number), headless=True).out


def test_an_episode_that_is_evicted_while_it_is_sought_costs_no_environment(
    again: Callable[..., Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(tmp_path / "run", own("Walk"), 1500)
    made: list[object] = []
    make, number = Repeater.make, len({entry.logged.stream for entry in episodes_of(run).entries})

    def counted(repeater: Repeater, entry: Entry, pictures: bool) -> Any:
        made.append(entry)
        return make(repeater, entry, pictures)

    def gone(repeater: Repeater, entry: Entry) -> None:
        raise Evicted("evicted")

    monkeypatch.setattr(Repeater, "make", counted)
    monkeypatch.setattr(Repeater, "rows", gone)
    again(run, check=True)
    assert len(made) == number


def test_another_number_of_shards_keeps_the_seeds(again: Callable[..., Shown], tmp_path: Path) -> None:
    run = played(tmp_path / "run", own("Walk"), 600)
    before = again(run, check=True)
    reshard(run.segments, RunSource(str(run.path)).spec, 2, print)
    assert again(run, check=True).out == before.out and before.status == 0


def test_best_worst_first_success_and_nearest_are_chosen_among_whole_episodes(
    again: Callable[..., Shown], tmp_path: Path
) -> None:
    run = played(tmp_path / "run", own("Walk"), 1500)
    entries = episodes_of(run).entries
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.step for entry in entries] == sorted(entry.step for entry in entries)
    listed = again(run, list=True).out.splitlines()[1:]
    rows = [(int(line.split()[0]), float(line.split()[2]), "cut" in line, "terminated" in line) for line in listed]
    kept = [row for row in rows if not row[2]]
    assert len(rows) == len(entries) and 0 < len(rows) - len(kept) <= 3, "the first of each environment may be cut"

    def number(**options: Any) -> int:
        shown = again(run, headless=True, **options)
        assert shown.status == 0
        return int(shown.out.split()[1].strip(","))

    assert number(episode="best") == max(kept, key=lambda row: row[1])[0]
    assert number(episode="worst") == min(kept, key=lambda row: row[1])[0]
    assert number(episode="first-success") == next(row[0] for row in rows if row[3]), "a Walk terminates by success alone"
    least = max(row[1] for row in rows[5:])
    assert number(episode="first-success", least_return=least) == next(row[0] for row in rows if row[1] >= least)
    assert number(step=entries[9].step) in {entry.number for entry in entries if entry.step == entries[9].step}
    assert number(step=10**9) in {entry.number for entry in entries if entry.step == entries[-1].step}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"episode": "0"}, "--episode 0: the log holds episodes 1 to "),
        ({"episode": "9999"}, "with returns of "),
        ({"episode": "first-success", "least_return": 1e6}, "no episode in the log has a return of 1e+06"),
    ],
)
def test_an_episode_that_is_not_there_is_one_line_with_those_that_are(
    options: dict[str, Any], says: str, again: Callable[..., Shown], tmp_path: Path
) -> None:
    shown = again(played(tmp_path / "run", own("Walk"), 300), **options)
    assert shown.status == 2 and says in shown.err and shown.err.count("\n") == 1


def test_an_environment_that_reports_no_success_asks_for_a_return(again: Callable[..., Shown], tmp_path: Path) -> None:
    shown = again(played(tmp_path / "run", EnvConfig(id="CartPole-v1"), 300), episode="first-success")
    assert shown.status == 2 and "--least-return X" in shown.err


def test_runs_of_rollouts_say_that_they_keep_no_experience(again: Callable[..., Shown], tmp_path: Path) -> None:
    run = played(tmp_path / "run", own("Walk"), 300)
    spec = msgspec.structs.replace(RunSource(str(run.path)).spec, unit="rollouts")
    run.spec.write_bytes(write_spec(spec))
    document = {"env": env_section(own("Walk")), "algorithm": {"name": "ppo"} | msgspec.to_builtins(PpoConfig())}
    write_settings(run, document)
    shown = again(run)
    assert shown.status == 2 and "runs of ppo keep no experience" in shown.err


def test_logs_of_older_versions_have_no_seeds_and_say_so(
    again: Callable[..., Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chunker, "seeded", lambda self, starts: None)
    run = played(tmp_path / "run", own("Walk"), 300)
    assert b"starts" not in segments(run.segments)[0].read_bytes()
    shown = again(run, headless=True)
    assert shown.status == 1 and "its log has no seeds: it is of an older version" in shown.out


def test_where_the_environment_cannot_be_made_any_more_the_log_is_shown(
    again: Callable[..., Shown], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(tmp_path / "run", own("Walk"), 300)
    monkeypatch.delattr(f"{__name__}.Walk")
    shown = again(run, headless=True)
    assert shown.status == 1 and "departs from the log at its start: the environment cannot be made: " in shown.out
    assert again(run, check=True).status == 2
