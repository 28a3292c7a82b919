"""The checker of what reaches a learner from the counting environment."""

from __future__ import annotations

import msgspec
import numpy as np

from replay.client.base import SampledBatch
from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.table.layout import array_name
from replay.table.ring import Ring
from tests.flow.counting_env import ACTIONS, REWARD_BASE, code, ends_by_termination, episode_length, mix, reward_of
from tests.replay.examples import every_item
from transport.experience import Chunk, ExperienceSpec
from transport.run_dir import RunDir


class Checker:
    """Proves of every row of every batch that it is what an actor saw. Remembers which items came, and under which version."""

    def __init__(self, spec: ExperienceSpec, known_policy: bool = True) -> None:
        """Nothing seen yet. A known policy takes the action version mod ACTIONS."""
        self.spec = spec
        self.stack, self.n_step = spec.stack, spec.n_step
        self.image = spec.fields[0].dtype == "|u1"
        self.known_policy = known_policy
        self.seen: dict[tuple[int, int, int], int] = {}  # (identity, episode, step) -> times
        self.shortened: set[tuple[int, int, int]] = set()  # bootstrapped early: right only where a stream was drained
        self.versions: dict[int, dict[tuple[int, int], int]] = {}  # identity -> (episode, step) -> policy_version
        self.keys: dict[int, tuple[tuple[int, int, int], int]] = {}  # item key -> (identity, episode, step), action

    def check(self, batch: SampledBatch) -> None:
        """Every item of a batch."""
        arrays = batch.arrays
        assert (arrays["probability"] > 0).all()
        for b in range(len(arrays["key"])):
            self._item({name: array[b] for name, array in arrays.items()})

    def check_rollouts(self, batch: SampledBatch) -> None:
        """Every item of whole chunks, by way of a table of transitions."""
        items = msgspec.structs.replace(self.spec, unit="transitions")
        for b, length in enumerate(batch.arrays["length"].tolist()):
            rows = slice(0, self.spec.rows(length))
            columns = {column.name: batch.arrays[array_name(self.spec, column)][b][rows] for column in self.spec.resting}
            table = Ring(items, ReplayConfig(min_size=1, capacity=self.spec.chunk_length), seed=0)
            table.skip_to(int(batch.arrays["key"][b]))
            if table.insert(Chunk(0, length, columns)):
                self.check(SampledBatch(0, 0, every_item(table)))

    def _decode(self, row: np.ndarray) -> tuple[int, int, int, int]:
        flat = row.reshape(-1)
        name = flat[:8].astype(np.uint8)
        if self.image:
            assert (flat == np.resize(name, flat.shape)).all(), "torn frame"
        high, low, episode_high, episode_low, step_high, step_low, action, checksum = (int(number) for number in name)
        assert mix(*(int(number) for number in name[:7])) & 255 == checksum, "not an observation"
        return high * 256 + low, episode_high * 256 + episode_low, step_high * 256 + step_low, action

    def _item(self, item: dict[str, np.ndarray]) -> None:
        rows = item["observation/observation"]  # [W, *shape]
        identity, episode, step, _ = self._decode(rows[item["observation_index"][-1]])
        length, terminates = episode_length(identity, episode), ends_by_termination(identity, episode)
        m = int(item["steps"])
        assert step < length and 1 <= m <= min(self.n_step, length - step)
        if m < min(self.n_step, length - step):
            self.shortened.add((identity, episode, step))
        assert bool(item["terminated"]) == (terminates and step + m == length)
        self._check_stack(rows, item["observation_index"], identity, episode, step)
        if not item["terminated"]:
            self._check_stack(rows, item["next_index"], identity, episode, step + m)
        action = int(item["action"])
        for k in range(m):
            reward = float(item["reward"][k])
            taken = int(reward) // REWARD_BASE
            assert reward == reward_of(identity, episode, step + k, taken)
            if k == 0:
                assert taken == action
            if not (terminates and step + k + 1 == length):  # the observation that followed names the action as well
                following = self._decode(rows[self.stack + k])
                assert following == (identity, episode, step + k + 1, taken)
        version = int(item["policy_version"])
        if self.known_policy and version > 0:  # version 0 explores
            assert action == version % ACTIONS
        name = (identity, episode, step)
        self.seen[name] = self.seen.get(name, 0) + 1
        self.keys[int(item["key"])] = name, action
        self.versions.setdefault(identity, {})[episode, step] = version

    def _check_stack(self, rows: np.ndarray, index: np.ndarray, identity: int, episode: int, step: int) -> None:
        """Oldest first, never across the reset, byte for byte."""
        for place, at in enumerate(index):
            age = max(step - (self.stack - 1 - place), 0)
            found = self._decode(rows[at])
            assert found[:3] == (identity, episode, age)
            if age == 0:
                assert (rows[at].reshape(-1)[:8] == code(identity, episode, 0, ACTIONS)).all()

    def check_nothing_lost_or_doubled(self) -> None:
        """Of every stream: each step of each episode exactly once, from the first on, without a gap."""
        assert set(self.seen.values()) == {1}, "an item came twice"
        for identity in {name[0] for name in self.seen}:
            expected = (0, 0)
            in_time = sorted(name[1:] for name in self.seen if name[0] == identity)
            assert {name[1:] for name in self.shortened if name[0] == identity} <= set(in_time[-self.n_step :])
            for episode, step in in_time:
                assert (episode, step) == expected, f"stream {identity}: {expected} is missing"
                expected = (episode, step + 1) if step + 1 < episode_length(identity, episode) else (episode + 1, 0)

    def check_none_shortened(self) -> None:
        """Before any stream has ended, every item reaches n steps or its episode's end."""
        assert not self.shortened

    def check_versions_rise(self) -> None:
        """Of every stream: versions never fall with time."""
        for versions in self.versions.values():
            in_time = [versions[moment] for moment in sorted(versions)]
            assert in_time == sorted(in_time)


def check_log(run_dir: RunDir, spec: ExperienceSpec, checker: Checker) -> Ring:
    """Checks every item that a run has on disk, once, oldest first."""
    config = ReplayConfig(min_size=1, capacity=400_000)
    table = Ring(spec, config, seed=0)
    journal = Journal(run_dir.segments, table, config, lambda: False)
    checker.check(SampledBatch(0, 0, every_item(table)))
    journal.close(lambda: journal.counters)
    return table
