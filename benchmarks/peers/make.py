"""`python benchmarks/peers/make.py NAME …`: an environment of its own for each peer, outside of the source tree, with pins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "peers"
TORCH = "torch==2.13.0"
BOX2D = ("Box2D==2.3.10", "pygame-ce==2.5.8")
OLD = ("gymnasium==0.29.1", "numpy==1.26.4")  # what CleanRL and Sample Factory were written for
PINS = {
    "cleanrl": ("gym==0.23.1", "stable-baselines3==2.3.2", TORCH, *OLD, *BOX2D),
    "jax": ("jax==0.10.0", "gymnax==1.0.1", "flax==0.12.8", "optax==0.2.8", "six==1.17.0"),
    "rlox": ("rlox==1.2.0", "gymnasium==1.4.0", TORCH, *BOX2D),
    "sample-factory": ("sample-factory==2.1.1", TORCH, *OLD, *BOX2D),
    "sbx": ("sbx-rl==0.28.0", "jax==0.10.2", "stable-baselines3==2.9.2", "gymnasium==1.4.0", TORCH, *BOX2D),
    "stable-baselines3": ("stable-baselines3==2.9.2", "gymnasium==1.4.0", TORCH, *BOX2D),
}
ALONE = {"cleanrl": "cleanrl==1.2.0"}  # asks for old versions and an old Python, which its single files do without


def python_of(name: str) -> str:
    """The interpreter of a peer's environment, which may not be there yet."""
    return str(PLACE / name / "bin" / "python")


def make(name: str) -> None:
    """With the Python that runs this. Raises CalledProcessError: pip has said why."""
    print(f"{name}: {PLACE / name}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(PLACE / name)], check=True)
    pip = [python_of(name), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *PINS[name]], check=True)
    if name in ALONE:
        subprocess.run([*pip, "--no-deps", "--ignore-requires-python", ALONE[name]], check=True)
    print(python_of(name))


def main(names: list[str]) -> int:
    if not names or set(names) - set(PINS):
        print(f"name some of {', '.join(PINS)}", file=sys.stderr)
        return 2
    for name in names:
        make(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
