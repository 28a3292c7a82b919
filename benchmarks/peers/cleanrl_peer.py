"""CleanRL's single files `ppo` and `dqn`, as they are published, as contestants of `headrace suite`.

Settings: `file`, and the file's own options with underscores, such as `total_timesteps`. The file runs unchanged; what it would
write to TensorBoard comes here instead, and on these occasions its policy is saved.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
import types
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from actors.evaluation.pipe import Act
from benchmarks.peers.contestant import Arrays, Contestant, Request, Saver, Wrong, environment, numpy_mlp, run

FILES = {"ppo": ("agent", "actor", np.tanh), "dqn": ("q_network", "network", lambda x: np.maximum(x, 0.0))}
HERE = {"file", "env", "env_kwargs"}


class Writer:
    """Stands in for TensorBoard's. `saver` and `file` are set before one is made."""

    saver: Saver
    file: str
    steps = 0

    def __init__(self, _folder: str) -> None:
        pass

    def add_text(self, *_arguments: object) -> None:
        pass

    def add_scalar(self, _name: str, _value: object, step: int) -> None:
        found = sys._getframe(1).f_globals[FILES[self.file][0]]
        Writer.steps = step
        if not self.saver.turn(step, lambda: arrays(found)):
            raise SystemExit

    def close(self) -> None:
        pass


def arrays(network: Any) -> Arrays:
    return {name: value.numpy().copy() for name, value in network.state_dict().items()}


def check(request: Request) -> None:
    """Raises Wrong, and whatever an environment raises."""
    if request["settings"].get("file") not in FILES:
        raise Wrong(f"file must be one of {', '.join(FILES)}")
    env_id, options = environment(request)
    if options:
        raise Wrong("CleanRL's files take no options of environments")
    gymnasium.make(env_id).close()


def train(request: Request) -> tuple[int, dict[str, Any]]:
    torch.set_num_threads(request["threads"])
    settings = request["settings"]
    Writer.saver, Writer.file = Saver(request), settings["file"]
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    chosen = {key: value for key, value in settings.items() if key not in HERE}
    chosen |= {"env_id": environment(request)[0], "seed": request["seed"], "cuda": False}
    found = importlib.util.find_spec("cleanrl")
    (folder,) = found.submodule_search_locations or [""] if found else [""]
    sys.argv = [f"{folder}/{settings['file']}.py"]
    sys.argv += [word for key, value in chosen.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    try:
        done = runpy.run_path(sys.argv[0], run_name="__main__")
        Writer.saver.save(done["global_step"], arrays(done[FILES[settings["file"]][0]]))
    except SystemExit as ended:
        if ended.code:
            raise
    return Writer.steps, settings


def load(request: Request) -> Callable[[str], Act]:
    _, part, active = FILES[request["settings"]["file"]]

    def read(path: str) -> Act:
        with np.load(path, allow_pickle=False) as file:
            pairs = [(file[f"{part}.{number}.weight"].T, file[f"{part}.{number}.bias"]) for number in (0, 2, 4)]
        outputs = numpy_mlp(pairs, active)
        return lambda observation: outputs(observation).argmax(1)

    return read


if __name__ == "__main__":
    run(Contestant(check, train, load, ("cleanrl", "gym", "gymnasium", "torch", "numpy")), *sys.argv[1:])
