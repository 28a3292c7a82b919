"""`headrace bench NAME`: what the table of names, the README of the benchmarks and the modules say of one another."""

from __future__ import annotations

import importlib
import re

import pytest

from benchmarks.peers.make import PINS
from deploy.children import ROOT
from deploy.cli.machine.bench import BENCHMARKS
from deploy.studies.suite.base import PEERS


@pytest.mark.parametrize("module", BENCHMARKS.values())
def test_a_benchmark_is_a_module_with_a_main(module: str) -> None:
    package = (ROOT / module.replace(".", "/")).is_dir()
    assert callable(importlib.import_module(f"{module}.__main__" if package else module).main)


def test_the_readme_names_every_benchmark_and_no_other() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`headrace bench ([a-z_]+)", text)) == set(BENCHMARKS)


def test_every_kind_of_peer_has_a_script_and_an_environment() -> None:
    assert all((ROOT / "benchmarks" / "peers" / f"{script}.py").is_file() for script in PEERS.values())
    assert set(PEERS) - {"jitted-ppo"} | {"jax"} == set(PINS)


def test_no_folder_of_benchmarks_has_more_than_eleven_files() -> None:
    folders = [
        folder for folder in (ROOT / "benchmarks").iterdir() if folder.is_dir() and folder.name not in ("results", "__pycache__")
    ]
    counts = {folder.name: len(list(folder.glob("*.py"))) for folder in folders}
    assert max(counts.values()) <= 11, counts
