"""`headrace init`: writes a small package for a user's own environment and network."""

from __future__ import annotations

import argparse
import keyword
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from deploy.cli.common import DONE
from deploy.errors import ConfigError

DESCRIPTION = """\
Write a small package: an environment, a network, settings and a test. It trains as it is; change it into your own.

  headrace init my_project
  cd my_project && python -m pytest
"""
TEMPLATES = Path(__file__).with_name("project")
NAME = "PROJECT"  # in the templates and their paths: the package's name
FILES = {  # in the new folder -> the template
    "README.md": "README.md.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "config.toml": "config.toml.txt",
    f"{NAME}/__init__.py": "",
    f"{NAME}/environment.py": "environment.py.txt",
    f"{NAME}/network.py": "network.py.txt",
    f"tests/test_{NAME}.py": "test_project.py.txt",
}


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("folder", type=Path, metavar="NAME", help="the folder to make; its last part is the package's name")


def run(parsed: argparse.Namespace) -> int:
    folder, name = parsed.folder, check_name(parsed.folder.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"there is a {folder} already; give another name, or remove it")
    for target, template in FILES.items():
        path = folder / target.replace(NAME, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (TEMPLATES / template).read_text(encoding="utf-8") if template else f'"""{name}."""\n'
        path.write_text(text.replace(NAME, name), encoding="utf-8")
        print(path)
    print(f"\ncd {folder}\n{command(name)}")
    return DONE


def command(name: str) -> str:
    """The command that trains it."""
    parts = f"--env {name}.environment:make --algorithm.network {name}.network:Torso"
    return f"headrace up {parts} --config config.toml --run first"


def check_name(name: str) -> str:
    """Raises ConfigError where a package cannot be called so."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        meant = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name).strip("_")
        hint = f"; {meant}?" if meant.isidentifier() and not keyword.iskeyword(meant) else ""
        raise ConfigError(f"{name!r} cannot be the name of a package: write letters, digits and underscores{hint}")
    if find_spec(name) is not None and not Path(name).is_dir():
        raise ConfigError(f"{name!r} is the name of a package that is installed: give another name")
    return name
