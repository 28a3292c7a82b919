"""Which emulator plays Mario: `python -m actors.envs.mario.backend` prints what `auto` means to its interpreter.

nes_py is the default although retro is faster: what a run does must not depend on what else is installed. `auto` is for
those who ask for it, and `headrace up` writes what it stood for into the run's configuration.
"""

from __future__ import annotations

from importlib.util import find_spec


def settled(backend: str) -> str:
    """Gives nes_py or retro for what env.backend says. `auto` is retro where stable-retro is installed."""
    if backend == "auto":
        return "retro" if find_spec("stable_retro") else "nes_py"
    return backend or "nes_py"


if __name__ == "__main__":
    print(settled("auto"))
