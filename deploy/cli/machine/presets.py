"""`headrace presets`: settings that work well, by environment."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy.cli.common import DONE
from deploy.config.files import PRESETS, presets
from deploy.errors import ConfigError
from transport.names import nearest


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("name", nargs="?", metavar="NAME", help="print the file of this preset (default: list all)")


def run(parsed: argparse.Namespace) -> int:
    known = {preset.name: preset for preset in presets()}
    if parsed.name is None:
        for preset in known.values():
            print(f"{preset.name:<12} {', '.join(preset.envs) or '(--preset)':<28} {preset.about}")
        return DONE
    if parsed.name not in known:
        raise ConfigError(f"there is no preset {parsed.name!r}; {nearest(parsed.name, known)}")
    print((PRESETS / f"{parsed.name}.toml").read_text(encoding="utf-8"), end="")
    return DONE
