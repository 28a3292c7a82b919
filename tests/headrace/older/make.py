"""Makes the files of this folder: each is what an older version exported, or the folder of its run, after a thousand steps.

`python tests/headrace/older/make.py [NAME …]` checks each version out into a temporary worktree, in which it trains and exports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DQN = "--env CartPole-v1 --algorithm.hidden 8 --replay.min-size 64 --learner.batch-size 32"
FEW = f"{DQN} --replay.capacity 1000"
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


RUNS = {  # whole runs: what a resume, an evaluation and fsck need of their folders
    "format2-dqn-run": ("650df756", "deploy.cli.main", FEW),
    "format3-ppo-run": ("be2b9373", "deploy.cli.main", PPO),
    "format4-dqn-run": ("1be7cd5e", "deploy.cli.main", FEW),
    "format4-sac-run": ("1be7cd5e", "deploy.cli.main", SAC),
}
KEPT = ("config.toml", "spec.json", "spaces.json", "policy.json", "status.json", "checkpoints", "replay")


def make(name: str, commit: str, module: str, settings: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        tree, folder = Path(made) / "tree", Path(made) / "folder"
        folder.mkdir()
        subprocess.run(["git", "worktree", "add", "--detach", tree, commit], cwd=HERE, check=True)
        try:
            environment = os.environ | {"PYTHONPATH": str(tree), "XDG_STATE_HOME": made}
            commands = [["up", "--run", "old", *settings.split(), *SMALL.split()]]
            commands += [["export", "old", str(folder / "out")]] if name in FILES else []
            for words in commands:
                subprocess.run([sys.executable, "-P", "-m", module, *words], cwd=folder, env=environment, check=True)
            if name in FILES:
                (HERE / f"{name}.safetensors").write_bytes((folder / "out").read_bytes())
            else:
                pack(folder / "runs" / "old", HERE / f"{name}.tar.gz")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=HERE, check=True)


def pack(run: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz") as file:
        for path in run.iterdir():
            if path.name in KEPT:
                file.add(path, f"old/{path.name}")


if __name__ == "__main__":
    for name, how in (FILES | RUNS).items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(name, *how)
