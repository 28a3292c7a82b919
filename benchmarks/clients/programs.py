"""The clients of docs/clients/: what each needs, and how it is started."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from deploy.children import ROOT

FOLDER = ROOT / "docs" / "clients"


class Language(NamedTuple):
    """`build` and `command` may name {source} and {folder}, which is for what is built."""

    source: str
    tools: tuple[str, ...]
    build: tuple[str, ...]
    command: tuple[str, ...]

    @property
    def missing(self) -> str:
        """The tools that this machine lacks."""
        return ", ".join(tool for tool in self.tools if shutil.which(tool) is None)

    def built(self, folder: Path) -> list[str]:
        """The command that runs it, which an address follows."""
        names = {"source": FOLDER / self.source, "folder": folder}
        if self.build:
            subprocess.run([word.format(**names) for word in self.build], check=True)
        return [word.format(**names) for word in self.command]


LANGUAGES = {
    "python": Language("cartpole.py", (), (), (sys.executable, "{source}")),
    "javascript": Language("cartpole.mjs", ("node",), (), ("node", "--experimental-websocket", "{source}")),
    "c": Language(
        "cartpole.c", ("cc",), ("cc", "-std=c99", "-O2", "{source}", "-lm", "-o", "{folder}/cartpole"), ("{folder}/cartpole",)
    ),
    "c#": Language(
        "Cartpole.cs",
        ("mcs", "mono"),
        ("mcs", "{source}", "-r:System.dll", "-out:{folder}/Cartpole.exe"),
        ("mono", "{folder}/Cartpole.exe"),
    ),
    "gdscript": Language(
        "godot/cartpole.gd",
        ("godot3-server",),
        (),
        ("godot3-server", "--path", str(FOLDER / "godot"), "-s", "cartpole.gd"),
    ),
}
