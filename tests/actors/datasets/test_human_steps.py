"""The human steps of a run as a data set: parts of episodes, each from where a person took over."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from actors.datasets.base import DatasetError
from actors.datasets.human_steps import HumanStepsSource
from actors.envs.spaces import describe_space
from tests.replay.log.test_human_steps import SPEC, Table, steered
from transport.experience import write_spec
from transport.run_dir import RunDir

ENDS = {24: "truncated", 27: "terminated"}  # so positions 21 to 30 are three parts, and 25 is an observation without action


def run_of(folder: Path, mine: range) -> RunDir:
    run = RunDir(folder / "mine")
    table = Table(run.path)
    table.insert(steered(mine=mine, ends=ENDS))
    table.stop()
    run.spec.write_bytes(write_spec(SPEC))
    of = spaces.Dict(position=spaces.Box(-np.inf, np.inf, ())), spaces.Discrete(4)
    run.spaces.write_bytes(msgspec.json.encode({"observation": describe_space(of[0]), "action": describe_space(of[1])}))
    return run


def test_each_part_that_a_person_has_steered_is_an_episode(tmp_path: Path) -> None:
    run = run_of(tmp_path, range(21, 31))
    found = list(HumanStepsSource(str(run.path)).episodes())
    assert [part.observations["position"].tolist() for part in found] == [[*range(21, 26)], [26, 27, 28, 28], [29, 30, 31]]
    assert [part.actions.tolist() for part in found] == [[1, 2, 3, 0], [2, 3, 0], [1, 2]]
    assert [part.terminated for part in found] == [False, True, False]
    assert [part.rewards.tolist() for part in found] == [[210, 220, 230, 240], [260, 270, 280], [290, 300]]


def test_a_run_that_nobody_has_steered_says_so(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nobody has taken over"):
        HumanStepsSource(str(run_of(tmp_path, range(0)).path))
