import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from learner.updates.memory_fit import bytes_per_item, fitting_parts, free_bytes, is_out_of_memory


def test_the_activations_of_a_backward_pass_are_counted_per_item() -> None:
    layers = nn.Sequential(nn.Linear(100, 50, bias=False), nn.Tanh())
    rows = torch.zeros(8, 100)
    found = bytes_per_item(lambda: layers(rows).sum(), list(layers.parameters()), 8)
    assert found == 2 * 4 * (100 + 50)  # the input of the product and the output of tanh, twice


def test_it_grows_with_the_network_not_with_its_parameters() -> None:
    rows = torch.zeros(8, 100)

    def of(width: int, depth: int) -> float:
        layers = nn.Sequential(*(layer for _ in range(depth) for layer in (nn.LazyLinear(width), nn.ReLU())))
        layers(rows)
        return bytes_per_item(lambda: layers(rows).sum(), list(layers.parameters()), 8)

    assert of(50, 8) > 2 * of(50, 2)
    assert of(500, 2) < 10 * of(50, 2)  # parameters would be 50 times as many


@pytest.mark.parametrize(
    ("free", "parts"),
    [(10**9, 1), (1_000_000, 1), (999_999, 2), (300_000, 4), (1, 1_000)],
)
def test_a_batch_is_split_until_it_fits(free: int, parts: int) -> None:
    assert fitting_parts(1_000, 1, 800.0, free) == parts


def test_configured_micro_batches_are_never_joined() -> None:
    assert fitting_parts(1_000, 8, 1.0, 10**12) == 8


def test_a_limit_counts_where_it_is_below_what_is_free() -> None:
    cpu = torch.device("cpu")
    assert free_bytes(cpu, 1_000) == 1_000
    assert 1_000 < free_bytes(cpu, 0) < 10**15


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_an_out_of_memory_error_is_recognised(error: RuntimeError, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory


STARVED = """
import json, resource, sys
import psutil, torch
from learner.algorithms.dqn.config import DqnConfig
from learner.config import LearnerConfig
from learner.updates.trees import part
from tests.learner.examples import image, make_batch, make_spec, make_update

torch.set_num_threads(1)
spec = make_spec(image(), stack=4, n_step=1)
dqn = make_update(spec, DqnConfig(hidden=32, n_step=1), LearnerConfig(batch_size=1024, precision="float32"))
batch, optimiser = make_batch(spec, 1024), dqn.optimiser
dqn.update(part(batch, 0, 8))  # whatever the first update takes for good
room = psutil.Process().memory_info().vms + 300_000_000  # far less than 1,024 take, far more than 128
resource.setrlimit(resource.RLIMIT_AS, (room, room))
for _ in range(2):
    metrics, priorities = dqn.update(batch)
finite = torch.stack([p.isfinite().all() for p in dqn.policy.parameters()]).all()
print(json.dumps([optimiser.parts, len(priorities), bool(finite)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of a process's memory are Linux's")
def test_a_process_that_really_runs_out_of_memory_goes_on_with_smaller_micro_batches() -> None:
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    *said, result = done.stdout.splitlines()
    parts, priorities, finite = json.loads(result)
    assert parts > 1 and priorities == 1024 and finite
    assert said[-1].endswith(f"accumulated over {parts}") and all(line.startswith("out of memory:") for line in said)
