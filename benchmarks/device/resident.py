"""Real updates of every shipped algorithm and network on made-up batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from benchmarks.device.operations import Operation, Recorder
from learner.algorithms.arithmetic.copies import copy_into
from learner.algorithms.base import ALGORITHMS, Needs, find_algorithm, join
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import DqnUpdate
from learner.algorithms.ppo.algorithm import Ppo as PpoAlgorithm
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.ppo.update import PpoUpdate
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.devices.capabilities import capabilities
from learner.feed.batches import dummy_batch, to_chunks, to_device
from learner.updates.base import Batch
from learner.updates.runtime import LearnerRuntime
from replay.client.base import SampledBatch
from transport.experience import Categorical, Columns, Continuous, ExperienceSpec, observed

CPU = torch.device("cpu")
IMAGE = (observed("observation", (84, 84), "|u1", 1 / 255),)
GOALS = tuple(observed(name, (size,), "<f4") for name, size in (("observation", 19), ("achieved_goal", 3), ("desired_goal", 3)))
Config = DqnConfig | PpoConfig | SacConfig


class Network(NamedTuple):
    """An algorithm with one of its networks, as a preset has it."""

    name: str
    config: Config
    spec: ExperienceSpec
    images: bool = False


def networks() -> list[Network]:
    """Every kind that is shipped."""
    n, reals = Categorical(7), Continuous((-1.0,) * 6, (1.0,) * 6)
    vector = (observed("observation", (22,), "<f4"),)
    items = ExperienceSpec(IMAGE, n, 32, 4, 3)
    robot, pictures = (
        join(env, PpoAlgorithm(PpoConfig()).needs(env))
        for env in (ExperienceSpec(vector, reals, 32), ExperienceSpec(IMAGE, n, 32, 4))
    )
    ppo: dict[str, Any] = {"n_epochs": 1, "minibatches": 1}
    return [
        Network("DQN Nature", DqnConfig(), items, True),
        Network("DQN BatchNorm", DqnConfig(network="nature_batchnorm"), items, True),
        Network("DQN MLP", DqnConfig(network="mlp", hidden=256), ExperienceSpec(vector, n, 32, 1, 3)),
        Network("PPO MLP", msgspec.convert(ppo | {"hidden": 128}, PpoConfig), robot),
        Network("PPO images", msgspec.convert(ppo | {"hidden": 512}, PpoConfig), pictures, True),
        Network("SAC", SacConfig(), join(ExperienceSpec(GOALS, reals, 32), Needs(goals=4))),
    ]


def recorded(device: torch.device, items: int, say: Callable[[str], None]) -> list[Operation]:
    """All operations of all networks: in float32, those of images also in bfloat16 where the device has it; Adam's step as the
    device's learner has it."""
    found: dict[Any, Operation] = {}
    able = capabilities(device)
    for network in networks():
        for precision in ("float32", "bfloat16") if network.images else ("float32",):
            if precision in able.precisions:
                say(f"recording {network.name} in {precision}")
                record(network, items, precision, found)
    if able.adam != capabilities(CPU).adam:
        for key in [key for key, one in found.items() if "adam" in one.name]:
            del found[key]
        record_adam(able.adam, found)
    return list(found.values())


def record_adam(kind: str, found: dict[Any, Operation]) -> None:
    """Adds the operations of a step of that kind."""
    parameters = [torch.randn(shape, requires_grad=True) for shape in ((32, 4, 8, 8), (512, 3136), (512,))]
    adam = torch.optim.Adam(parameters, fused=kind == "fused", foreach=kind == "foreach")
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    with Recorder(found, f"Adam, {kind}"):
        adam.step()


def record(network: Network, items: int, precision: str, found: dict[Any, Operation]) -> None:
    """Adds the operations of one update on the CPU, of a batch of `items`, the upload left out. For PPO: of a whole rollout."""
    torch.manual_seed(0)
    (algorithm,) = (one for one in map(find_algorithm, ALGORITHMS) if isinstance(network.config, one.Config))
    learner = msgspec.convert({"batch_size": items, "precision": precision, "device": "cpu"}, LearnerConfig)
    runtime = LearnerRuntime(learner, CPU, max_policy_lag=1)
    update = updating(algorithm(network.config).update(network.spec, runtime), network.spec, items)
    update()  # the first also looks at how much memory it takes
    name = network.name if precision == "float32" else f"{network.name}, {precision}"
    with Recorder(found, name):
        update()


def updating(learned: Any, spec: ExperienceSpec, items: int) -> Callable[[], None]:
    """What does an update."""
    batch: Batch
    if isinstance(learned, PpoUpdate):
        batch = to_chunks(random_arrays(spec, max(items // spec.chunk_length, 1)), spec, CPU)
    else:
        batch = to_device(SampledBatch(0, 0, random_arrays(spec, items)), spec, CPU)

    def update() -> None:
        learned.update(batch)
        if isinstance(learned, DqnUpdate):
            copy_into(learned.target, learned.policy)

    return update


def random_arrays(spec: ExperienceSpec, items: int) -> Columns:
    """Arrays of replay's, filled with something that can be learned from."""
    random = np.random.default_rng(0)
    arrays = dummy_batch(spec, items)
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            array[:] = random.random(array.shape, np.float32) + 0.1
        elif name.startswith("observation/"):
            array[:] = random.integers(0, 256, array.shape)
    if isinstance(spec.action, Categorical):
        arrays["action"][:] = random.integers(0, spec.action.n, arrays["action"].shape)
    if "log_prob" in arrays:
        arrays["log_prob"][:] = -2.0
    return arrays
