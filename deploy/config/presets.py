"""The presets: settings that are known to work for some environments, or that an algorithm needs."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

from deploy.config.files import Layer, read_toml

PRESETS = Path(__file__).parent.parent / "presets"


@dataclass(frozen=True)
class Preset:
    """Settings that are known to work for some environments."""

    name: str
    about: str
    envs: tuple[str, ...]
    preferred: bool  # where an algorithm is not asked for, among the presets of an environment
    layer: Layer

    @property
    def algorithm(self) -> str:
        """The algorithm that it is for."""
        return str(self.layer.values.get("algorithm", {}).get("name", ""))


def presets() -> tuple[Preset, ...]:
    """All presets that are shipped."""
    return tuple(read_preset(path) for path in sorted(PRESETS.glob("*.toml")))


def read_preset(path: Path) -> Preset:
    """Reads one; besides the keys of a run it holds `about`, `envs` (patterns), `preferred` and the tables under `on_gpu`."""
    values = read_toml(path)
    about, envs, on_gpu = values.pop("about"), tuple(values.pop("envs")), values.pop("on_gpu", {})
    return Preset(path.stem, about, envs, values.pop("preferred", True), Layer(f"preset {path.stem}", values, on_gpu))


def preset_for(env_id: str, algorithm: str | None = None) -> Preset | None:
    """The preset that fits an environment, and the algorithm if one is asked for; None if there is none."""
    fits = [preset for preset in presets() if any(fnmatch.fnmatchcase(env_id, pattern) for pattern in preset.envs)]
    return next((preset for preset in fits if (preset.preferred if algorithm is None else preset.algorithm == algorithm)), None)
