"""Every update on the stand-in for a GPU: no tensor on the wrong device, the CPU's figures, and how often the host waits."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device.updates import CASES
from deploy.children import child_environment
from tests.labs.gpu.stand_in import VARIABLE
from tests.labs.gpu.updates import SETTINGS, wanted

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("the updates of a GPU"), pytest.mark.timeout(1200)]

Lines = dict[tuple[str, str], dict[str, Any]]
# Of one update. Updates from rollouts read how many items there are, which says the shapes of all that follows.
MOST_WAITS = {"dqn": 0, "sac": 0, "r2d2": 0, "ppo": 1, "pqn": 1, "reppo": 1}
EPOCHS_OF_TARGET_KL = 4  # each waits, because the next one depends on it
# Parameters and relative figures. Convolutions have other kernels than the CPU's own, whose rounding Adam enlarges.
APART, IMAGES_APART, ROUNDED_APART = (1e-5, 1e-4), (5e-3, 5e-3), (2e-2, 0.5)


@pytest.fixture(scope="module")
def lines(device: Path) -> Lines:
    """What `python -m tests.labs.gpu.updates` prints, by case and setting: torch is imported once for all of them."""
    command = [sys.executable, "-m", "tests.labs.gpu.updates"]
    done = subprocess.run(
        command, env=child_environment(**{VARIABLE: str(device)}), stdout=subprocess.PIPE, text=True, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {(line["case"], line["setting"]): line for line in found}


@pytest.mark.parametrize(
    ("name", "setting"), [(name, setting) for name in CASES for setting in SETTINGS if wanted(name, setting)]
)
def test_an_update_there_is_the_cpus_and_the_host_goes_ahead_of_it(lines: Lines, name: str, setting: str) -> None:
    line, case = lines[name, setting], CASES[name]
    assert "error" not in line, line["error"]
    most = MOST_WAITS[case.algorithm] + (EPOCHS_OF_TARGET_KL if "target_kl" in case.options else 0)
    assert sum(line["waits"].values()) <= most, line["waits"]
    exact = setting not in ("bfloat16", "float16")
    parameters, relative = (IMAGES_APART if case.images else APART) if exact else ROUNDED_APART
    assert line["apart"] <= parameters
    for figure, expected in line["expected"].items():
        found = line["figures"][figure]
        assert math.isclose(found, expected, rel_tol=relative, abs_tol=parameters), f"{figure}: {found}, on the CPU {expected}"


def test_a_device_without_streams_gets_each_batch_as_one_copy(device: Path) -> None:
    environment = child_environment(**{VARIABLE: str(device)})
    command = [sys.executable, "-m", "tests.labs.gpu.feeds"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    waits = json.loads(done.stdout)
    assert len(waits) == 9 and all(sum(each.values()) == 1 for each in waits.values()), waits


def test_the_stand_in_refuses_mixed_devices_and_a_copy_arrives_when_it_is_waited_for(device: Path) -> None:
    program = """
from tests.labs.gpu import stand_in
import torch
here, there = torch.zeros(3, pin_memory=True), torch.ones(3, device="cuda")
try:
    print(there + torch.ones(3))
except RuntimeError as error:
    print("devices" in str(error))
_, waits = stand_in.card.waits_of(lambda: here.copy_(there, non_blocking=True))
print(sum(waits.values()), here.tolist() == [1, 1, 1])
_, waits = stand_in.card.waits_of(lambda: torch.cuda.synchronize())
print(sum(waits.values()), here.tolist() == [1, 1, 1])
_, waits = stand_in.card.waits_of(lambda: (float(there.sum()), there[there > 0], there.nonzero(), torch.tensor([1]).to("cuda")))
print(sum(waits.values()))
"""
    environment = child_environment(**{VARIABLE: str(device)})
    done = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == ["True", "0 False", "1 True", "4"]
