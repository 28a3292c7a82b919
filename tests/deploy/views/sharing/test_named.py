"""Policies by name."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.children import child_environment
from deploy.views.sharing import named
from tests.deploy.views.sharing.stand_in import FOREIGN, OWN, StandIn, serving

FILE = Path(__file__).parents[3] / "headrace" / "older" / "format2-ppo.safetensors"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("huggingface_hub") is None, reason="needs headrace[hub]")


@pytest.fixture
def server() -> Iterator[StandIn]:
    with serving("", {}) as stand_in:
        stand_in.files = {"policy.safetensors": FILE.read_bytes(), "README.md": b"# a card", "other.bin": b"x" * 100}
        yield stand_in


def headrace(folder: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in child_environment().items() if not name.startswith("HF_")}
    given = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    command = [sys.executable, "-P", "-m", "deploy.cli.main", *words]
    return subprocess.run(command, cwd=folder, env=own | given, capture_output=True, text=True, timeout=120)


def test_a_policy_is_pulled_with_its_card_and_played_by_its_name(server: StandIn, tmp_path: Path) -> None:
    done = headrace(tmp_path, server.url, "pull", OWN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["policy/policy.safetensors", "policy/README.md"]
    assert (tmp_path / "policy" / "policy.safetensors").read_bytes() == FILE.read_bytes()
    assert not (tmp_path / "policy" / "other.bin").exists()
    done = headrace(tmp_path, server.url, "eval", f"hub:{OWN}", "--episodes", "2")
    assert done.returncode == 0 and "policy v4" in done.stdout, done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_repository_that_is_none_is_one_line(server: StandIn, tmp_path: Path) -> None:
    server.files.pop("policy.safetensors")
    (tmp_path / "README.md").touch()
    for words, reason in (
        (["pull", OWN], "has no policy.safetensors"),
        (["pull", FOREIGN, "other"], "no such repository"),
        (["pull", "nobody"], "write OWNER/NAME"),
        (["pull", OWN, "."], "is there already"),
        (["eval", "hub:a/b/c"], "write OWNER/NAME"),
    ):
        done = headrace(tmp_path, server.url, *words)
        assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.slow  # the Hub's library tries for 20 seconds
def test_a_hub_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    done = headrace(tmp_path, "http://127.0.0.1:9", "pull", OWN, "third")
    assert done.returncode == 2 and "cannot be reached" in done.stderr


def test_a_name_is_a_file_or_none() -> None:
    assert named.policy_file(str(FILE)) == FILE and named.policy_file("some-run") is None
