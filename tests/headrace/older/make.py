"""Makes the files of this folder: each is what an older version exported after a thousand steps.

`python tests/headrace/older/make.py` checks each version out into a temporary worktree and lets it train and export there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DQN = "--env CartPole-v1 --algorithm.hidden 8 --replay.min-size 64 --learner.batch-size 32"
SAC = "--env Pendulum-v1 --algo sac --algorithm.hidden 8 --replay.min-size 64 --learner.batch-size 32"
PPO = "--env CartPole-v1 --algo ppo --algorithm.hidden 8 --learner.batch-size 512"
SMALL = "--actors 1 --total-steps 1000 --device cpu --evaluator.enabled false"
FILES = {  # name: the commit of the version, the module of its command line, how it trains
    "format1-dqn": ("27da574", "deploy.cli", DQN),  # no spaces
    "format1-ppo": ("27da574", "deploy.cli", PPO),
    "format1-sac": ("27da574", "deploy.cli", SAC),
    "format1-dqn-with-spaces": ("f8dfc63", "deploy.cli.main", DQN),
    "format2-ppo": ("7151b46", "deploy.cli.main", PPO),  # the first with a format number in the file
}


def make(name: str, commit: str, module: str, settings: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        tree, folder = Path(made) / "tree", Path(made) / "folder"
        folder.mkdir()
        subprocess.run(["git", "worktree", "add", "--detach", tree, commit], cwd=HERE, check=True)
        try:
            environment = os.environ | {"PYTHONPATH": str(tree), "XDG_STATE_HOME": made}
            for words in (["up", "--run", "old", *settings.split(), *SMALL.split()], ["export", "old", str(folder / "out")]):
                subprocess.run([sys.executable, "-P", "-m", module, *words], cwd=folder, env=environment, check=True)
            (HERE / f"{name}.safetensors").write_bytes((folder / "out").read_bytes())
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=HERE, check=True)


if __name__ == "__main__":
    for name, how in FILES.items():
        make(name, *how)
