"""Episodes through every form, and into the chunks of a run and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from actors.datasets.base import DatasetError, Episode, Space, open_source
from actors.datasets.chunks import write_segment
from actors.datasets.npz import write_npz
from actors.datasets.parquet import write_parquet
from actors.envs.spaces import describe_space
from replay.config import ReplayConfig
from replay.log.demonstrations import Demonstrations, check, ring_bytes
from replay.log.segments import Scan, scan_segment
from replay.shards import Shard
from replay.table.layout import layout
from tests.actors.datasets.episodes import BOX, DICT_ACTION, MANY, PICTURE, REALS, Memory, same, some, spec_of
from transport.experience import write_spec

TWO = spaces.Discrete(2, start=1)
LENGTHS = [5, 1, 9, 4, 2]
SPACES: dict[str, tuple[Space, Space]] = {
    "vectors": (BOX, REALS),
    "many parts": (MANY, TWO),
    "pictures": (PICTURE, spaces.MultiDiscrete([3, 2], start=[1, 0])),
    "structured actions": (BOX, DICT_ACTION),
    "names of other columns": (spaces.Dict({"reward": BOX, "inner": spaces.Dict({"action": BOX}), "action": BOX}), TWO),
    "wide choices": (BOX, spaces.MultiDiscrete([40, 40])),
}


def to_npz(folder: Path, found: list[Episode], of: tuple[Space, Space]) -> str:
    write_npz(str(folder / "data.npz"), found, of, "tests")
    return str(folder / "data.npz")


def to_parquet(folder: Path, found: list[Episode], of: tuple[Space, Space]) -> str:
    pytest.importorskip("pyarrow")
    write_parquet(str(folder / "data"), found, of, "tests")
    return str(folder / "data")


def to_minari(folder: Path, found: list[Episode], of: tuple[Space, Space]) -> str:
    pytest.importorskip("minari")
    from actors.datasets.minari import write_minari

    write_minari("headrace/toy-v0", found, of, "tests")
    return "minari:headrace/toy-v0"


def to_run(folder: Path, found: list[Episode], of: tuple[Space, Space]) -> str:
    run = folder / "run"
    (run / "replay").mkdir(parents=True)
    spec = spec_of(*of)
    (run / "spec.json").write_bytes(write_spec(spec))
    (run / "spaces.json").write_bytes(
        msgspec.json.encode({"observation": describe_space(of[0]), "action": describe_space(of[1])})
    )
    write_segment(run / "replay" / "0000000000000000.segment", Memory(found, of), spec, of, None)
    return str(run)


FORMS: dict[str, Callable[[Path, list[Episode], tuple[Space, Space]], str]] = {
    "npz": to_npz,
    "parquet": to_parquet,
    "minari": to_minari,
    "run": to_run,
}


@pytest.fixture(autouse=True)
def minari_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of", SPACES)
@pytest.mark.filterwarnings("ignore")
def test_what_is_written_is_read_again(of: str, form: str, tmp_path: Path) -> None:
    found = some(*SPACES[of], LENGTHS)
    source = open_source(FORMS[form](tmp_path, found, SPACES[of]))
    again = list(source.episodes())
    if form == "run":  # the last episode's last observation comes by draining, which keeps no row of its own
        assert len(again) == len(found)
    assert [len(one.rewards) for one in again][:-1] == LENGTHS[:-1]
    for ours, theirs in zip(found[:-1], again, strict=False):
        same(ours, theirs)
    assert source.spaces is not None and source.spaces == SPACES[of]


@pytest.mark.parametrize(("stack", "n_step"), [(1, 1), (3, 2)])
def test_demonstrations_are_a_share_of_each_batch_with_keys_of_their_own(stack: int, n_step: int, tmp_path: Path) -> None:
    of, spec = SPACES["vectors"], spec_of(*SPACES["vectors"], stack, n_step)
    found = some(*of, [20, 30, 25])
    totals = write_segment(tmp_path / "0.segment", Memory(found, of), spec, of, None)
    assert (totals.episodes, totals.steps) == (3, 75)
    config = ReplayConfig(demonstrations="x", demonstration_share=0.25, demonstration_steps=1_000, capacity=100, min_size=1)
    shown = Demonstrations(tmp_path, spec, config, 0, Shard())
    assert shown.size == 75
    assert 0 < shown.ring.capacity_bytes <= ring_bytes(tmp_path, spec)
    drawn = [shown.rows(30, 0) for _ in range(2_000)]
    assert np.mean(drawn) == pytest.approx(7.5, abs=0.1) and set(drawn) == {7, 8}
    assert (shown.share(500), shown.share(1_000), shown.share(5_000)) == (0.125, 0, 0)
    arrays = {name: np.zeros(shape, dtype) for name, shape, dtype in layout(spec, 200).arrays}
    assert shown.draw(arrays, 150) == 200
    assert (arrays["key"] >> 56 == 64).all() and arrays["probability"] == pytest.approx(1 / 150)
    seen = np.concatenate([episode.observations["observation"][:-1] for episode in found])
    now = np.take_along_axis(arrays["observation/observation"], arrays["observation_index"][:, -1, None, None], 1)[:, 0]
    assert all((row == seen).all(1).any() for row in now)
    assert shown.ring.update_priorities(arrays["key"], np.ones(200)) == 200
    assert shown.ring.update_priorities(arrays["key"] & (2**56 - 1), np.ones(200)) == 0


def test_a_terminal_step_stays_terminal_and_a_truncated_one_does_not(tmp_path: Path) -> None:
    of, spec = SPACES["vectors"], spec_of(*SPACES["vectors"])
    found = some(*of, [6, 6])
    write_segment(tmp_path / "0.segment", Memory(found, of), spec, of, None)
    shown = Demonstrations(tmp_path, spec, ReplayConfig(demonstrations="x", min_size=1), 0, Shard())
    arrays = {name: np.zeros(shape, dtype) for name, shape, dtype in layout(spec, 400).arrays}
    shown.draw(arrays, 12)
    ends = {float(reward) for reward in arrays["reward"][arrays["terminated"]].ravel()}
    assert ends == {float(found[0].rewards[-1])}


def test_damaged_demonstrations_are_found(tmp_path: Path) -> None:
    of, spec = SPACES["vectors"], spec_of(*SPACES["vectors"])
    segment = tmp_path / "0.segment"
    write_segment(segment, Memory(some(*of, [20, 20]), of), spec, of, None)
    check(tmp_path, spec)
    whole = segment.read_bytes()
    for place in (10, len(whole) // 2, len(whole) - 3):
        content = bytearray(whole)
        content[place] ^= 1
        segment.write_bytes(content)
        with pytest.raises(ValueError, match="fsck") as error:
            check(tmp_path, spec)
        assert "\n" not in str(error.value)
    segment.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match="is damaged"):
        Demonstrations(tmp_path, spec, ReplayConfig(demonstrations="x", min_size=1), 0, Shard())


def test_each_shard_has_a_part_of_the_demonstrations(tmp_path: Path) -> None:
    of, spec = SPACES["vectors"], spec_of(*SPACES["vectors"])
    write_segment(tmp_path / "0.segment", Memory(some(*of, [40, 40]), of), spec, of, None)
    config = ReplayConfig(demonstrations="x", min_size=1)
    for count in (3, 7):  # more shards than a chunk has items, too
        sizes = [Demonstrations(tmp_path, spec, config, 0, Shard(index, count)).size for index in range(count)]
        assert sum(sizes) == 80 and max(sizes) - min(sizes) <= 8


def changed(episode: Episode, **other: Any) -> Episode:
    return episode._replace(**other)


ONE = some(BOX, REALS, [4])[0]
SPOILT: dict[str, tuple[Episode, str]] = {
    "other parts": (changed(ONE, observations=dict.fromkeys(("a", "b"), ONE.observations["observation"])), "no observation"),
    "one part more": (changed(ONE, observations=ONE.observations | {"x": np.zeros((5, 1))}), "x is no part"),
    "another shape": (changed(ONE, observations={"observation": np.zeros((5, 4))}), r"shape \[4\]"),
    "a value that is no number": (changed(ONE, observations={"observation": np.full((5, 3), np.nan)}), "not finite"),
    "text": (changed(ONE, observations={"observation": np.full((5, 3), "a")}), "no numbers"),
    "a huge value": (changed(ONE, observations={"observation": np.full((5, 3), 1e30)}), "beyond"),
    "an infinite reward": (changed(ONE, rewards=np.array([0, 1, np.inf, 0])), "reward has a value"),
    "a huge reward": (changed(ONE, rewards=np.array([0, 1, 1e20, 0])), "reward has a value beyond"),
    "another action": (changed(ONE, actions=np.zeros((4, 3))), "3 numbers"),
    "an action that is no number": (changed(ONE, actions=np.full((4, 2), np.inf)), "action has a value"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_an_episode_of_another_environment_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    episode, reason = SPOILT[name]
    of, spec = (BOX, REALS), spec_of(BOX, REALS)
    with pytest.raises(DatasetError, match=reason) as error:
        write_segment(tmp_path / "0.segment", Memory([ONE, episode], of), spec, of, None)
    assert "episode 1" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("action", "reason"), [(3, "none of the environment's"), (0, "none of the environment's"), (1.5, "no whole")]
)
def test_choices_that_do_not_exist_are_refused(action: float, reason: str, tmp_path: Path) -> None:
    of, spec = (BOX, TWO), spec_of(BOX, TWO)
    episode = changed(ONE, actions=np.full(4, action))
    with pytest.raises(DatasetError, match=reason):
        write_segment(tmp_path / "0.segment", Memory([episode], of), spec, of, None)


def test_d4rl_arrays_are_read(tmp_path: Path) -> None:
    arrays = {
        "observations": np.arange(7, dtype=np.float32)[:, None],
        "actions": np.arange(7),
        "rewards": np.ones(7),
        "terminals": np.array([0, 0, 1, 0, 0, 0, 0]),
        "timeouts": np.array([0, 0, 0, 0, 0, 1, 0]),
    }
    np.savez(tmp_path / "d.npz", **arrays)
    first, second = open_source(str(tmp_path / "d.npz")).episodes()
    assert first.terminated and first.observations["observation"].ravel().tolist() == [0, 1, 2, 2]
    assert not second.terminated and second.observations["observation"].ravel().tolist() == [3, 4, 5]
    assert second.actions.tolist() == [3, 4]
    np.savez(tmp_path / "d.npz", **arrays, next_observations=arrays["observations"] + 0.5)
    _, second = open_source(str(tmp_path / "d.npz")).episodes()
    assert second.observations["observation"].ravel().tolist() == [3, 4, 5, 5.5]
    following = arrays["observations"] + 1
    following[4] = 77  # another episode begins at step 5, without a timeout
    del arrays["timeouts"]
    np.savez(tmp_path / "d.npz", **arrays, next_observations=following)
    found = [one.observations["observation"].ravel().tolist() for one in open_source(str(tmp_path / "d.npz")).episodes()]
    assert found == [[0, 1, 2, 3], [3, 4, 77], [5, 6, 7]]


def test_a_single_part_may_have_another_name(tmp_path: Path) -> None:
    spec = spec_of(BOX, REALS)
    episode = changed(ONE, observations={"state": ONE.observations["observation"]})
    assert write_segment(tmp_path / "0.segment", Memory([episode], None), spec, (BOX, REALS), None).steps == 4


@pytest.mark.parametrize("spoil", ["lengths", "terminated", "actions", "rewards", "observations", "about"])
def test_a_damaged_npz_is_refused_in_a_line(spoil: str, tmp_path: Path) -> None:
    path = Path(to_npz(tmp_path, some(BOX, REALS, [3, 4]), (BOX, REALS)))
    whole = dict(np.load(path, allow_pickle=False))
    for values in (None, np.zeros(0), np.array("x"), np.full(3, np.nan), whole[spoil][None]):
        arrays = {key: value for key, value in whole.items() if key != spoil} | ({} if values is None else {spoil: values})
        np.savez(path, **arrays)  # type: ignore[arg-type]
        if spoil == "about" and values is None:
            continue  # it is then read without its spaces
        with pytest.raises((DatasetError, ValueError)) as error:
            source = open_source(str(path))
            write_segment(tmp_path / "0.segment", source, spec_of(BOX, REALS), (BOX, REALS), None)
        assert isinstance(error.value, DatasetError) and "\n" not in str(error.value)


def test_a_file_that_is_cut_or_has_objects_is_refused_in_a_line(tmp_path: Path) -> None:
    path = Path(to_npz(tmp_path, some(BOX, REALS, [30]), (BOX, REALS)))
    whole = path.read_bytes()
    for content in (b"", whole[:100], whole[: len(whole) // 2], b"PK" + bytes(500)):
        path.write_bytes(content)
        with pytest.raises(DatasetError) as error:
            open_source(str(path))
        assert "\n" not in str(error.value)
    np.savez(path, actions=np.array([{"a": 1}], object), rewards=np.ones(1))
    with pytest.raises(DatasetError):
        open_source(str(path))


def test_there_is_no_such_data_set(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no run"):
        open_source(str(tmp_path / "nothing"))


def test_a_damaged_chunk_costs_its_episode_alone(tmp_path: Path) -> None:
    of = SPACES["vectors"]
    found = some(*of, [6] * 12)
    run = Path(to_run(tmp_path, found, of))
    segment = run / "replay" / "0000000000000000.segment"
    scan = Scan()
    scan_segment(segment, spec_of(*of), scan)
    content = bytearray(segment.read_bytes())
    content[scan.entries[6].offset + 5] ^= 0xFF
    segment.write_bytes(content)
    again = list(open_source(str(run)).episodes())
    assert 8 <= len(again) < 12
    starts = {float(one.observations["observation"][0, 0]) for one in found}
    assert all(float(one.observations["observation"][0, 0]) in starts for one in again)


def test_info_of_a_parquet_folder_may_be_damaged(tmp_path: Path) -> None:
    folder = Path(to_parquet(tmp_path, some(BOX, REALS, [3]), (BOX, REALS)))
    for content in ("{", json.dumps({"headrace": {"observation": {"kind": "x"}, "action": 3}}), "[]"):
        (folder / "meta" / "info.json").write_text(content)
        with pytest.raises(DatasetError) as error:
            open_source(str(folder))
        assert "\n" not in str(error.value)
