"""`headrace presets`: settings known to work, by environment."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy.children import ROOT
from deploy.cli.common import DONE
from deploy.config.errors import ConfigError
from deploy.config.presets import presets
from transport.names import nearest


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("name", nargs="?", metavar="NAME", help="print this one")


def run(parsed: argparse.Namespace) -> int:
    """Prints the presets, or one of them."""
    known = {preset.name: preset for preset in presets()}
    if parsed.name is None:
        for preset in known.values():
            print(f"{preset.name:<12} {', '.join(preset.envs) or '(--preset)':<28} {preset.about}")
        return DONE
    if parsed.name not in known:
        raise ConfigError(f"no preset {parsed.name!r}; {nearest(parsed.name, known)}")
    print((ROOT / "deploy" / "presets" / f"{parsed.name}.toml").read_text(encoding="utf-8"), end="")
    return DONE
